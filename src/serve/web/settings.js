// The settings form: its values as {name: text} (a ticked box is "on", an empty field is missing), kept in the browser;
// the API key apart, in the session. Marks the field that an error names.

import { byId } from "./dom.js";
import { apiKey, loadSettings, saveApiKey, saveSettings } from "./store.js";

const form = byId("settings-form");
const EXAMPLE_SCHEMA = `{
  "type": "object",
  "properties": {
    "answer": {"type": "string"},
    "certain": {"type": "boolean"}
  },
  "required": ["answer", "certain"],
  "additionalProperties": false
}`;

// Names of request fields, as errors give them, that stand in the form under another name.
const FIELD_OF = {
  reasoning_effort: "effort",
  response_format: "schema",
  max_completion_tokens: "max_tokens",
  "thinking.type": "thinking",
};

export function settings() {
  const values = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  delete values.key;
  return values;
}

// Marks the field that an error names and returns it; null if the form has no such field.
export function markField(name) {
  unmark();
  const first = name?.split(/[.[]/)[0];
  const field = name ? form.elements.namedItem(FIELD_OF[name] ?? FIELD_OF[first] ?? first) : null;
  field?.setAttribute("aria-invalid", "true");
  return field;
}

export const keyField = () => form.elements.key;

function unmark() {
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

function showSchemaBox() {
  const isSchema = form.elements.format.value === "json_schema";
  byId("schema-box").hidden = !isSchema;
  if (isSchema && !form.elements.schema.value) form.elements.schema.value = EXAMPLE_SCHEMA;
}

function show(values) {
  for (const field of form.elements) {
    if (!field.name || field.name === "key") continue;
    if (field.type === "checkbox") field.checked = values[field.name] === "on";
    else field.value = values[field.name] ?? "";
  }
  showSchemaBox();
}

export function startSettings() {
  show(loadSettings());
  form.elements.key.value = apiKey();
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    event.target.removeAttribute("aria-invalid");
    if (event.target.name === "key") return saveApiKey(event.target.value.trim());
    showSchemaBox();
    saveSettings(settings());
  });
  byId("reset-settings").addEventListener("click", () => {
    show({});
    unmark();
    saveSettings({});
  });
}
