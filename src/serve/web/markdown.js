// The part of Markdown that answers use, as elements: headings, paragraphs, lists, quotes, tables, code, emphasis,
// links.
//
//   text -> blocks (by line) -> elements; inside a line: code, strong, emphasis, links
//
// Everything else stays text. HTML is text. Links keep http, https and mailto only. Nesting ends at MAX_DEPTH, so that
// no answer can exhaust the stack. renderMarkdown keeps the elements of blocks that did not change, so a growing answer
// costs only its last block.

import { copyButton, el } from "./dom.js";

const MAX_DEPTH = 8;
const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)\s*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^\s*>\s?(.*)$/;
const TABLE_LINE = /^\s*\|?(\s*:?-+:?\s*\|)+\s*(:?-+:?)?\s*$/;

// ---- inside a line --------------------------------------------------------------------------------------------------

const SPAN = new RegExp(
  [
    /(`+)(.+?)\1(?!`)/, // `code`
    /\*\*(?=\S)(.+?)(?<=\S)\*\*/, // **strong**
    /\*(?=\S)([^*\n]+?)(?<=\S)\*/, // *emphasis*
    /(?<![\w_])_(?=\S)([^_\n]+?)(?<=\S)_(?![\w_])/, // _emphasis_, not inside_a_word
    /~~(.+?)~~/,
    /\[([^\]\n]+)\]\(([^()\s]+)\)/, // [label](target)
  ]
    .map((part) => part.source)
    .join("|"),
  "g",
);

const SAFE_LINK = /^(https?:|mailto:)/i;

function link(text, target, depth) {
  if (!SAFE_LINK.test(target)) return document.createTextNode(`[${text}](${target})`);
  return el("a", { href: target, rel: "noreferrer noopener", target: "_blank" }, ...inline(text, depth));
}

function inline(text, depth) {
  if (depth > MAX_DEPTH) return [text];
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(SPAN)) {
    const [whole, ticks, code, strong, starred, underscored, struck, label, target] = match;
    if (match.index > end) nodes.push(text.slice(end, match.index));
    end = match.index + whole.length;
    if (ticks) nodes.push(el("code", {}, code.trim() || code));
    else if (strong) nodes.push(el("strong", {}, ...inline(strong, depth + 1)));
    else if (starred ?? underscored) nodes.push(el("em", {}, ...inline(starred ?? underscored, depth + 1)));
    else if (struck) nodes.push(el("del", {}, ...inline(struck, depth + 1)));
    else nodes.push(link(label, target, depth + 1));
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

function paragraph(lines, depth) {
  const node = el("p");
  lines.forEach((line, i) => {
    if (i > 0) node.append(el("br"));
    node.append(...inline(line.trim(), depth));
  });
  return node;
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || BULLET.test(line) || RULE.test(line) || QUOTE.test(line);

// Splits into [{kind, lines, ...}]. A fence without an end takes the rest: the answer may still be growing.
function splitBlocks(text) {
  const lines = text.split("\n");
  const blocks = [];
  let i = 0;
  const takeWhile = (condition) => {
    const begin = i;
    do i += 1;
    while (i < lines.length && condition(lines[i]));
    return lines.slice(begin, i);
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = line.match(FENCE);
    const heading = line.match(HEADING);
    if (line.trim() === "") {
      i += 1;
    } else if (fence) {
      const isEnd = (other) => other.trim().startsWith(fence[1]) && other.trim().replaceAll(fence[1][0], "") === "";
      const taken = takeWhile((other) => !isEnd(other));
      blocks.push({ kind: "code", language: fence[2], lines: taken.slice(1) });
      i += 1; // the end mark
    } else if (heading) {
      blocks.push({ kind: "heading", level: heading[1].length, lines: [heading[2].replace(/\s+#+\s*$/, "")] });
      i += 1;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "rule", lines: [line] });
      i += 1;
    } else if (QUOTE.test(line)) {
      blocks.push({ kind: "quote", lines: takeWhile((other) => QUOTE.test(other)) });
    } else if (BULLET.test(line)) {
      const continues = (other) => BULLET.test(other) || (/^\s+\S/.test(other) && !FENCE.test(other));
      blocks.push({ kind: "list", lines: takeWhile(continues) });
    } else if (line.includes("|") && TABLE_LINE.test(lines[i + 1] ?? "")) {
      blocks.push({ kind: "table", lines: takeWhile((other) => other.includes("|")) });
    } else {
      blocks.push({ kind: "text", lines: takeWhile((other) => other.trim() !== "" && !startsBlock(other)) });
    }
  }
  return blocks;
}

// Items deeper than the first one's indent belong to the item above them.
function list(lines, depth) {
  const first = lines[0].match(BULLET);
  const isOrdered = /\d/.test(first[2]);
  const node = el(isOrdered ? "ol" : "ul", isOrdered ? { start: parseInt(first[2], 10) } : {});
  let item = null;
  const flush = () => {
    if (!item) return;
    const child = el("li", {}, ...inline(item.text, depth));
    if (item.inner.length > 0) child.append(...elements(item.inner.join("\n"), depth + 1));
    node.append(child);
  };
  for (const line of lines) {
    const match = line.match(BULLET);
    if (match && match[1].length <= first[1].length + 1) {
      flush();
      item = { text: match[3], inner: [] };
    } else {
      item.inner.push(line.replace(/^\s{1,4}/, ""));
    }
  }
  flush();
  return node;
}

function table(lines, depth) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|");
  const row = (tag, line) => el("tr", {}, ...cells(line).map((cell) => el(tag, {}, ...inline(cell.trim(), depth))));
  const body = lines.slice(2).map((line) => row("td", line));
  return el("div", { class: "wide" }, el("table", {}, el("thead", {}, row("th", lines[0])), el("tbody", {}, ...body)));
}

function code({ language, lines }) {
  const text = lines.join("\n");
  const head = el("header", {}, el("span", {}, language), copyButton(text));
  return el("div", { class: "code" }, head, el("pre", { tabindex: 0 }, el("code", {}, text)));
}

function elements(text, depth) {
  if (depth > MAX_DEPTH) return [el("p", {}, text)];
  return splitBlocks(text).map((block) => element(block, depth));
}

function element(block, depth) {
  switch (block.kind) {
    case "code":
      return code(block);
    case "heading": // the page has h1 and h2 of its own
      return el(`h${Math.min(6, block.level + 2)}`, {}, ...inline(block.lines[0], depth));
    case "rule":
      return el("hr");
    case "quote": {
      const inner = block.lines.map((line) => line.match(QUOTE)[1]).join("\n");
      return el("blockquote", {}, ...elements(inner, depth + 1));
    }
    case "list":
      return list(block.lines, depth);
    case "table":
      return table(block.lines, depth);
    default:
      return paragraph(block.lines, depth);
  }
}

// Makes `node` show `text`.
export function renderMarkdown(node, text) {
  const blocks = splitBlocks(text);
  const before = node.blocks ?? [];
  const keys = blocks.map((block) => JSON.stringify(block));
  let same = 0;
  while (same < keys.length && keys[same] === before[same]) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  node.append(...blocks.slice(same).map((block) => element(block, 0)));
  node.blocks = keys;
}
