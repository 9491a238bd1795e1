// Tokens with their probabilities over the text that they became.
//
// The text is what the server made of the tokens: markers are gone, the end may be cut at a stop string, and one
// character may take several tokens. alignTokens walks both, byte by byte, and leaves out the tokens that left no text.

import { el, byId } from "./dom.js";

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const isInsideCharacter = (byte) => byte !== undefined && (byte & 0xc0) === 0x80;

// [{text, tokens}] whose texts joined are `text`; `tokens` is empty for text that no token explains.
export function alignTokens(text, tokens) {
  const bytes = encoder.encode(text);
  const pieces = [];
  let begin = 0; // of the piece in hand
  let end = 0;
  let group = [];
  for (const token of tokens) {
    if (token.bytes.length === 0 || !token.bytes.every((byte, i) => bytes[end + i] === byte)) continue;
    end += token.bytes.length;
    group.push(token);
    if (isInsideCharacter(bytes[end])) continue;
    pieces.push({ text: decoder.decode(bytes.subarray(begin, end)), tokens: group });
    begin = end;
    group = [];
  }
  if (begin < bytes.length) pieces.push({ text: decoder.decode(bytes.subarray(begin)), tokens: [] });
  return pieces;
}

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const shown = (text) => text.replaceAll("\n", "⏎").replaceAll(" ", "␣");

// Five shades, from sure to unlikely.
function shade(logprob) {
  const p = Math.exp(logprob);
  return p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
}

function candidates(token) {
  const others = token.top_logprobs.some((top) => top.token === token.token)
    ? token.top_logprobs
    : [token, ...token.top_logprobs];
  return others.map((top) =>
    el(
      "li",
      { class: top.token === token.token ? "chosen" : null },
      el("code", {}, shown(top.token)),
      el("meter", { min: 0, max: 1, value: Math.exp(top.logprob).toFixed(4) }),
      el("span", {}, percent(top.logprob)),
    ),
  );
}

function showCard(target, tokens) {
  const card = byId("token-card");
  card.replaceChildren(...tokens.map((token) => el("ol", {}, ...candidates(token))));
  card.hidden = false;
  const box = target.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - card.offsetWidth - 8);
  const below = box.bottom + 6 + card.offsetHeight < innerHeight;
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${below ? box.bottom + 6 : box.top - 6 - card.offsetHeight}px`;
}

export const hideCard = () => {
  byId("token-card").hidden = true;
};

function tokenSpan({ text, tokens }) {
  if (tokens.length === 0) return document.createTextNode(text);
  const least = Math.min(...tokens.map((token) => token.logprob));
  const label = `${text.trim() || "space"}, ${tokens.map((token) => percent(token.logprob)).join(" and ")}`;
  const show = (event) => showCard(event.currentTarget, tokens);
  return el(
    "span",
    {
      class: `token shade-${shade(least)}`,
      tabindex: -1,
      "aria-label": label,
      role: "img",
      onmouseenter: show,
      onfocus: show,
      onmouseleave: hideCard,
      onblur: hideCard,
    },
    text,
  );
}

// The arrows go from token to token, so that Tab has one stop for all of them.
function onKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const spans = [...event.currentTarget.querySelectorAll(".token")];
  spans[spans.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}

// The text as spans; hovering or focusing one shows what else could have stood there.
export function tokenText(pieces) {
  const node = el("div", { class: "tokens", onkeydown: onKey }, ...pieces.map(tokenSpan));
  node.querySelector(".token")?.setAttribute("tabindex", "0");
  return node;
}
