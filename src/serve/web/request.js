// From a conversation and the settings to the body of a request. Pure: no element, no storage.
//
// Numbers are sent as they are typed: the server checks them and names the field, and a seed of 64 bits keeps its
// digits. An empty setting is not sent, so the server's own default holds.

export const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "max_tokens",
  "seed",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
];

const NUMBER = /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/;
const numberText = (text) => (NUMBER.test(text) ? text.replace(/^(-?)0+(?=\d)/, "$1") : JSON.stringify(text));

// Calls that nobody answered are left out, cut ones among them: the API wants a result for each call.
function asSent(message, index, messages) {
  if (message.role !== "assistant") return message;
  const sent = { role: "assistant", content: message.content };
  if (message.reasoning) sent.reasoning_content = message.reasoning;
  if (messages[index + 1]?.role === "tool") {
    sent.tool_calls = message.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return sent;
}

// A mistake in one of the boxes that hold JSON; found here because it cannot be sent.
export class SettingError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function parseBox(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(field, `${field} is not JSON: ${error.message}`);
  }
}

// The body as JSON text.
export function chatBody(messages, settings) {
  const body = { messages: messages.map(asSent) };
  if (settings.system) body.messages.unshift({ role: "system", content: settings.system });
  if (settings.thinking) body.thinking = { type: settings.thinking };
  if (settings.tools?.trim()) body.tools = parseBox("tools", settings.tools);
  if (settings.format === "json_object") body.response_format = { type: "json_object" };
  if (settings.format === "json_schema") {
    const schema = parseBox("response_format", settings.schema?.trim() || "{}");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (settings.logprobs) {
    body.logprobs = true;
    body.top_logprobs = 5;
  }
  Object.assign(body, { stream: true, stream_options: { include_usage: true }, timings: true, return_token_ids: true });

  const numbers = NUMBERS.filter((name) => settings[name]?.trim()).map((name) => [name, settings[name].trim()]);
  if (settings.effort?.trim()) numbers.push(["reasoning_effort", settings.effort.trim()]);
  const fields = numbers.map(([name, text]) => `,${JSON.stringify(name)}:${numberText(text)}`);
  return JSON.stringify(body).slice(0, -1) + fields.join("") + "}";
}
