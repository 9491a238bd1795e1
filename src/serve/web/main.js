// The page: which view is open, the panels beside it, the theme, and the keys that work everywhere.

import { listModels } from "./api.js";
import { startChat, stopAnswer } from "./chat_view.js";
import { byId } from "./dom.js";
import { keyField, startSettings } from "./settings.js";
import { closeStatus, openStatus } from "./status_view.js";
import { loadTheme, saveTheme } from "./store.js";
import { hideCard } from "./tokens.js";

// ---- views: #chat and #status ---------------------------------------------------------------------------------------

function showView() {
  const isStatus = location.hash === "#status";
  byId("chat-view").hidden = isStatus;
  byId("status-view").hidden = !isStatus;
  for (const [id, isOpen] of [["to-chat", !isStatus], ["to-status", isStatus]]) {
    if (isOpen) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  hideCard();
  if (isStatus) openStatus();
  else closeStatus();
}

// ---- panels: beside the chat on wide windows, over it on phones -----------------------------------------------------

const PANELS = { chats: "toggle-chats", settings: "toggle-settings" };
const isNarrow = () => matchMedia("(max-width: 800px)").matches;
const isOpen = (panel) => byId(panel).classList.contains("open");

function setPanel(panel, open) {
  if (open && isNarrow()) Object.keys(PANELS).forEach((other) => other !== panel && setPanel(other, false));
  byId(panel).classList.toggle("open", open);
  byId(PANELS[panel]).setAttribute("aria-expanded", String(open));
}

function openField(field) {
  setPanel("settings", true);
  field.closest("details")?.setAttribute("open", "");
  field.scrollIntoView({ block: "center" });
  field.focus();
}

// ---- theme ----------------------------------------------------------------------------------------------------------

const isDarkSystem = () => matchMedia("(prefers-color-scheme: dark)").matches;

function showTheme() {
  const theme = loadTheme();
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

// Back to what the system says where that is the same.
function toggleTheme() {
  const system = isDarkSystem() ? "dark" : "light";
  const shown = loadTheme() ?? system;
  const wanted = shown === "dark" ? "light" : "dark";
  saveTheme(wanted === system ? null : wanted);
  showTheme();
}

// ---- keys -----------------------------------------------------------------------------------------------------------

function onKey(event) {
  if (event.key !== "Escape") return;
  const open = isNarrow() ? Object.keys(PANELS).find(isOpen) : null;
  if (!byId("token-card").hidden) hideCard();
  else if (open) setPanel(open, false);
  else stopAnswer();
}

async function showModel() {
  const models = await listModels().catch(() => []); // without a key the list is refused; sending says so
  byId("model").textContent = models.map((model) => model.id).join(", ");
}

showTheme();
startSettings();
startChat(openField);
for (const [panel, button] of Object.entries(PANELS)) {
  byId(button).addEventListener("click", () => setPanel(panel, !isOpen(panel)));
  setPanel(panel, !isNarrow());
}
byId("chat-list").addEventListener("click", () => isNarrow() && setPanel("chats", false));
byId("new-chat").addEventListener("click", () => isNarrow() && setPanel("chats", false));
keyField().addEventListener("change", showModel);
byId("toggle-theme").addEventListener("click", toggleTheme);
addEventListener("keydown", onKey);
addEventListener("hashchange", showView);
showView();
showModel();
if (!isNarrow()) byId("prompt").focus();
