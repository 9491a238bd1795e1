// Building elements. Text always goes in as text nodes, never as markup, so nothing that a model writes can become an
// element, and no style or script attribute is ever set (the page's Content-Security-Policy would refuse it).

// el("button", {class: "plain", onclick: f, "aria-label": "Stop"}, "Stop", child, ...)
// Attributes: on* are listeners, booleans and null set or leave out, `class` and others as they are written in HTML.
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// The same for SVG.
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const byId = (id) => document.getElementById(id);

// A button that copies; null where the browser allows no copying (a page over plain HTTP from another host).
export function copyButton(text) {
  if (!navigator.clipboard) return null;
  const copy = async (event) => {
    const button = event.currentTarget;
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  };
  return el("button", { type: "button", class: "small", onclick: copy }, "Copy");
}
