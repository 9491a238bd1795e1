// One message as an element. A MessageView keeps the elements of an answer and updates them while it grows; what the
// buttons do is given from outside (chat_view.js).
//
//   user        text, or a box to edit it
//   assistant   reasoning (folded), content as Markdown or as tokens, tool calls with a box for their result, figures

import { copyButton, el } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { tokenText } from "./tokens.js";

const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });

function figuresText({ generated, perSecond, firstMs, drafted, accepted, prompt, hit }) {
  const parts = [`${number(generated)} tokens`];
  if (perSecond !== null) parts.push(`${number(perSecond, 1)} tokens/s`);
  if (firstMs !== null) parts.push(`first after ${number(firstMs)} ms`);
  if (drafted) parts.push(`${number((100 * accepted) / drafted)} % of ${number(drafted)} drafts accepted`);
  if (prompt) parts.push(`${number(hit)} of ${number(prompt)} prompt tokens from the cache`);
  return parts.join(" · ");
}

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
  // actions: {regenerate, edit(text), sendResults(texts)}; one that is missing has no button.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = el("article", { class: `message ${message.role}`, "aria-label": this.label() });
    this.showsTokens = true;
    if (message.role === "assistant") this.build();
    else if (message.role === "tool") this.node.append(el("pre", { tabindex: 0 }, message.content));
    else this.showUser();
    this.update(false);
  }

  label() {
    return { user: "You", assistant: "Model", tool: "Result of a tool" }[this.message.role];
  }

  // ---- user -----------------------------------------------------------------------------------------------------------

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

  // ---- assistant ------------------------------------------------------------------------------------------------------

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
    if (message.role !== "assistant") return;
    this.node.classList.toggle("growing", isGrowing);
    this.node.setAttribute("aria-busy", String(isGrowing));
    this.updateTexts(isGrowing);
    this.updateCalls(isGrowing);
    this.problems.replaceChildren(
      ...(ENDINGS[message.finish] ? [el("p", { class: "quiet" }, ENDINGS[message.finish])] : []),
      ...(message.error ? [problem(message.error)] : []),
    );
    this.figures.textContent = message.figures ? figuresText(message.figures) : "";
    this.updateButtons(isGrowing);
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
    const node = tokenText(reasoning + content, tokens);
    const thought = el("div", { class: "tokens" });
    for (let left = reasoning.length; left > 0 && node.firstChild; ) {
      left -= node.firstChild.textContent.length;
      thought.append(node.firstChild);
    }
    this.reasoning.replaceChildren(thought);
    this.content.replaceChildren(node);
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
    if (!isGrowing && calls.length > 0 && this.actions.sendResults) this.addResultBoxes();
  }

  callNode(call, text) {
    const head = el("header", {}, el("span", {}, "Calls "), el("strong", {}, call.name));
    return el("section", { class: "call", "aria-label": `Call of ${call.name}` }, head, el("pre", {}, el("code", {}, text)));
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
