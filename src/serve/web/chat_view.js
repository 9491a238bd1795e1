// The chat: conversations, messages, the box to write in.
//
//   A conversation's messages are the truth; elements are made when it is shown. An answer goes on growing in its
//   message while another conversation is shown. At most one answer grows in a conversation.

import { addChunk, Meter, newAnswer } from "./answer.js";
import { ApiError, streamChat } from "./api.js";
import { byId, el } from "./dom.js";
import { MessageView } from "./message_view.js";
import { chatBody, SettingError } from "./request.js";
import { keyField, markField, settings } from "./settings.js";
import { loadChats, newChat, saveChats } from "./store.js";
import { hideCard } from "./tokens.js";

const TITLE_LENGTH = 60;
const NEAR_END = 80; // pixels: closer to the end than this, the view follows the answer

const list = byId("messages");
const prompt = byId("prompt");

let chats = [];
let current = null;
let views = new Map(); // message -> MessageView, of the conversation that is shown
const running = new Map(); // id of a conversation -> AbortController
let openPanel = () => {};

// ---- keeping --------------------------------------------------------------------------------------------------------

function save() {
  const kept = chats.filter((chat) => chat.messages.length > 0);
  if (!saveChats(kept)) announce("The browser has no room left for conversations; delete some.", true);
}

function announce(text, isProblem = false) {
  byId("announcement").textContent = text;
  byId("announcement").classList.toggle("unseen", !isProblem);
}

// ---- the list of conversations --------------------------------------------------------------------------------------

function chatRow(chat) {
  const title = chat.title || "New conversation";
  const open = el(
    "button",
    { type: "button", class: "title", "aria-current": chat === current ? "true" : null, onclick: () => show(chat) },
    title,
  );
  const remove = el("button", { type: "button", class: "small", "aria-label": `Delete: ${title}` }, "×");
  remove.addEventListener("click", () => removeChat(chat));
  return el("li", {}, open, remove);
}

function showList() {
  byId("chat-list").replaceChildren(...chats.map(chatRow));
}

function removeChat(chat) {
  running.get(chat.id)?.abort();
  chats = chats.filter((other) => other !== chat);
  save();
  if (chat === current) show(chats[0] ?? addChat());
  else showList();
}

function addChat() {
  const chat = newChat();
  chats.unshift(chat);
  return chat;
}

// ---- messages -------------------------------------------------------------------------------------------------------

function show(chat) {
  if (chat !== current) views = new Map();
  current = chat;
  hideCard();
  showList();
  showMessages();
  list.scrollTop = list.scrollHeight;
}

// The last message of the user can be edited, the last answer made anew and its calls answered, unless it still grows.
function actionsFor(chat, index) {
  if (running.has(chat.id)) return {};
  const message = chat.messages[index];
  const isLast = index === chat.messages.length - 1;
  if (message.role === "user" && index === chat.messages.findLastIndex((other) => other.role === "user")) {
    return { edit: (text) => editMessage(chat, index, text) };
  }
  if (message.role !== "assistant" || !isLast) return {};
  return {
    regenerate: () => answerAgain(chat, index),
    sendResults: (texts) => sendResults(chat, message, texts),
  };
}

// Elements that are there stay, with what is unfolded in them.
function showMessages() {
  const isRunning = running.has(current.id);
  const last = current.messages.length - 1;
  const nodes = current.messages.map((message, index) => {
    if (!views.has(message)) views.set(message, new MessageView(message));
    views.get(message).show(actionsFor(current, index), isRunning && index === last);
    return views.get(message).node;
  });
  if (nodes.length === 0) nodes.push(el("p", { class: "empty quiet" }, "Ask something."));
  nodes.forEach((node, i) => {
    if (list.childNodes[i] !== node) list.insertBefore(node, list.childNodes[i] ?? null);
  });
  while (list.childNodes.length > nodes.length) list.lastChild.remove();
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
}

function followEnd(change) {
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END;
  change();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

function send(text) {
  current.messages.push({ role: "user", content: text });
  if (!current.title) current.title = text.trim().slice(0, TITLE_LENGTH);
  answer(current);
}

function editMessage(chat, index, text) {
  chat.messages.splice(index, Infinity, { role: "user", content: text });
  if (index === 0) chat.title = text.trim().slice(0, TITLE_LENGTH);
  answer(chat);
}

function answerAgain(chat, index) {
  chat.messages.splice(index, 1);
  answer(chat);
}

function sendResults(chat, message, texts) {
  message.calls.forEach((call, i) => {
    chat.messages.push({ role: "tool", tool_call_id: call.id, content: texts[i] });
  });
  answer(chat);
}

// Lets the model answer what the conversation holds.
async function answer(chat) {
  const controller = new AbortController();
  const history = [...chat.messages];
  const message = newAnswer();
  chat.messages.push(message);
  running.set(chat.id, controller);
  save();
  if (chat === current) show(chat);
  announce("The model answers.");
  try {
    await grow(chat, message, chatBody(history, settings()), controller.signal);
  } catch (error) {
    fail(message, error);
  } finally {
    running.delete(chat.id);
    save();
    if (chat === current) followEnd(showMessages);
  }
  announce(message.error ? "" : "The answer ended.");
}

async function grow(chat, message, body, signal) {
  const meter = new Meter(performance.now());
  let isDrawn = true;
  const draw = () => {
    isDrawn = true;
    if (chat !== current || !running.has(chat.id)) return;
    followEnd(() => views.get(message)?.update(true));
  };
  try {
    for await (const chunk of streamChat(body, signal)) {
      addChunk(message, chunk);
      meter.add(chunk, performance.now());
      message.figures = meter.figures();
      if (isDrawn) requestAnimationFrame(draw);
      isDrawn = false;
    }
  } finally {
    if (meter.tokens > 0) message.figures = meter.figures();
  }
}

function fail(message, error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError || error instanceof SettingError)) throw error;
  message.error = { message: error.message, field: error.field, retryAfter: error.retryAfter ?? null };
  const field = error.status === 401 ? keyField() : markField(error.field);
  if (field) openPanel(field);
}

// ---- the box --------------------------------------------------------------------------------------------------------

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function submit() {
  const text = prompt.value;
  if (!text.trim() || running.has(current.id)) return;
  prompt.value = "";
  fitPrompt();
  markField(null);
  send(text);
}

function onPromptKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  } else if (event.key === "ArrowUp" && prompt.value === "") {
    const last = current.messages.findLast((message) => message.role === "user");
    if (last && !running.has(current.id)) {
      event.preventDefault();
      views.get(last).startEdit();
    }
  }
}

export function stopAnswer() {
  running.get(current.id)?.abort();
}

// Another tab changed the conversations; this one's own answers win while they grow.
function onStorage(event) {
  if (event.key !== "deepinfer.chats" || running.size > 0) return;
  const shown = current.id;
  chats = loadChats();
  show(chats.find((chat) => chat.id === shown) ?? addChat());
}

// `open(field)` brings a field of the settings into view.
export function startChat(open) {
  openPanel = open;
  chats = loadChats();
  show(chats[0] ?? addChat());
  byId("new-chat").addEventListener("click", () => {
    show(chats[0]?.messages.length === 0 ? chats[0] : addChat());
    prompt.focus();
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("stop").addEventListener("click", stopAnswer);
  prompt.addEventListener("keydown", onPromptKey);
  prompt.addEventListener("input", fitPrompt);
  list.addEventListener("scroll", hideCard);
  addEventListener("storage", onStorage);
  addEventListener("beforeunload", () => running.forEach((controller) => controller.abort()));
  addEventListener("pagehide", save);
}
