// One message as an element. A MessageView keeps the elements of an answer and updates them while it grows; what the
// buttons do is given from outside (chat_view.js).
//
//   user        text, or a box to edit it
//   assistant   reasoning (folded), content as Markdown or as tokens, tool calls with a box for their result, figures

import { copyButton, el } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { alignTokens, tokenText } from "./tokens.js";

const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });

function figuresText({ generated, perSecond, firstMs, drafted, accepted, prompt, hit }) {
  const parts = [`${number(generated)} tokens`];
  if (perSecond !== null) parts.push(`${number(perSecond, 1)} tokens/s`);
  if (firstMs !== null) parts.push(`first after ${number(firstMs)} ms`);
  if (drafted) parts.push(`${number((100 * accepted) / drafted)} % of ${number(drafted)} drafts accepted`);
  if (prompt) parts.push(`${number(hit)} of ${number(prompt)} prompt tokens from the cache`);
  return parts.join(" · ");
}

const LABELS = { user: "You", assistant: "Model", tool: "Result of a tool" };
const ENDINGS = {
  length: "Ended at max_tokens.",
  stopped: "Stopped.",
  content_filter: "Ended by the server.",
};

// Arguments with indentation if they are JSON, else as they are: they may still be growing.
function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function problem(error) {
  const node = el("p", { class: "problem", role: "alert" });
  if (error.field) node.append(el("code", {}, error.field), " ");
  node.append(error.message);
  if (error.retryAfter) node.append(` Try again in ${error.retryAfter} s.`);
  return node;
}

function button(text, onclick, label = null) {
  return el("button", { type: "button", class: "small", onclick, "aria-label": label }, text);
}

export class MessageView {
  constructor(message) {
    this.message = message;
    this.actions = {};
    this.node = el("article", { class: `message ${message.role}`, "aria-label": LABELS[message.role] });
    this.showsTokens = true;
    if (message.role === "assistant") this.build();
    if (message.role === "tool") this.node.append(el("pre", { tabindex: 0 }, message.content));
  }

  // Shows the message with buttons for the actions: {regenerate, edit(text), sendResults(texts)}, each only if given.
  show(actions, isGrowing) {
    this.actions = actions;
    if (this.message.role === "user") this.showUser();
    if (this.message.role === "assistant") this.update(isGrowing);
  }

  // ---- user ---------------------------------------------------------------------------------------------------------

  showUser() {
    const edit = this.actions.edit ? button("Edit", () => this.startEdit(), "Edit this message") : null;
    this.node.replaceChildren(el("div", { class: "text" }, this.message.content), ...(edit ? [edit] : []));
  }

  startEdit() {
    const box = el("textarea", { rows: 3, "aria-label": "Edited message" });
    box.value = this.message.content;
    const save = () => box.value.trim() && this.actions.edit(box.value);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.showUser();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    });
    this.node.replaceChildren(box, button("Send", save), button("Cancel", () => this.showUser()));
    box.focus();
  }

  // ---- assistant ----------------------------------------------------------------------------------------------------

  build() {
    this.summary = el("summary", {}, "Reasoning");
    this.reasoning = el("div", { class: "text" });
    this.thought = el("details", { class: "reasoning" }, this.summary, this.reasoning);
    this.content = el("div", { class: "markdown" });
    this.calls = el("div");
    this.problems = el("div");
    this.figures = el("p", { class: "figures quiet" });
    this.buttons = el("div", { class: "buttons" });
    this.node.append(this.thought, this.content, this.calls, this.problems, this.figures, this.buttons);
  }

  // Shows what the message holds now; `isGrowing` while its stream is open.
  update(isGrowing) {
    const message = this.message;
    this.node.classList.toggle("growing", isGrowing);
    this.node.setAttribute("aria-busy", String(isGrowing));
    this.updateTexts(isGrowing);
    this.updateCalls(isGrowing);
    this.problems.replaceChildren(...this.ending(isGrowing));
    this.figures.textContent = message.figures ? figuresText(message.figures) : "";
    this.updateButtons(isGrowing);
  }

  ending(isGrowing) {
    const { error, finish } = this.message;
    if (error) return [problem(error)];
    return !isGrowing && ENDINGS[finish] ? [el("p", { class: "quiet" }, ENDINGS[finish])] : [];
  }

  updateTexts(isGrowing) {
    const { reasoning, content, tokens } = this.message;
    const isTokens = this.showsTokens && !isGrowing && tokens?.length > 0;
    this.thought.hidden = reasoning === "";
    this.summary.textContent = isGrowing && content === "" ? "Reasoning …" : "Reasoning";
    if (!isTokens) {
      this.reasoning.textContent = reasoning;
      if (this.content.firstChild?.className === "tokens") this.content.replaceChildren();
      renderMarkdown(this.content, content);
      return;
    }
    // One walk over both texts, since the tokens come as one list.
    const pieces = alignTokens(reasoning + content, tokens);
    let split = 0;
    for (let length = 0; length < reasoning.length; split += 1) length += pieces[split].text.length;
    this.reasoning.replaceChildren(tokenText(pieces.slice(0, split)));
    this.content.replaceChildren(tokenText(pieces.slice(split)));
    this.content.blocks = null;
  }

  updateCalls(isGrowing) {
    const { calls } = this.message;
    while (this.calls.childNodes.length > calls.length) this.calls.lastChild.remove();
    calls.forEach((call, i) => {
      const text = prettyArguments(call.arguments);
      const shown = this.calls.childNodes[i];
      if (shown) shown.querySelector("code").textContent = text;
      else this.calls.append(this.callNode(call, text));
    });
    if (!this.actions.sendResults) for (const box of this.calls.querySelectorAll("textarea, button")) box.remove();
    else if (calls.length > 0) this.addResultBoxes();
  }

  callNode(call, text) {
    const head = el("header", {}, el("span", {}, "Calls "), el("strong", {}, call.name));
    const shown = el("pre", { tabindex: 0 }, el("code", {}, text));
    return el("section", { class: "call", "aria-label": `Call of ${call.name}` }, head, shown);
  }

  addResultBoxes() {
    if (this.calls.querySelector("textarea")) return;
    const boxes = this.message.calls.map((call, i) => {
      const box = el("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "Its result" });
      this.calls.childNodes[i].append(box);
      return box;
    });
    const send = () => this.actions.sendResults(boxes.map((box) => box.value));
    this.calls.lastChild.append(button(boxes.length > 1 ? "Send the results" : "Send the result", send));
  }

  updateButtons(isGrowing) {
    const { tokens, content, reasoning } = this.message;
    const buttons = [];
    if (!isGrowing) {
      if (this.actions.regenerate) buttons.push(button("Regenerate", this.actions.regenerate));
      if (content) buttons.push(copyButton(content));
      if (tokens?.length > 0 && content + reasoning !== "") {
        const toggle = button("Probabilities", () => {
          this.showsTokens = !this.showsTokens;
          this.update(false);
        });
        toggle.setAttribute("aria-pressed", String(this.showsTokens));
        buttons.push(toggle);
      }
    }
    this.buttons.replaceChildren(...buttons.filter((b) => b !== null));
  }
}
