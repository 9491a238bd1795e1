// Charts as SVG, drawn by hand: lines over time, and bars. Colours come from classes (status.css), so both themes fit.

import { el, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 120;
const LEFT = 44; // room for the numbers of the axis
const BOTTOM = 16;

// The next of 1, 2, 5, 10, 20, ... that is not below the value.
function niceAbove(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

const yOf = (value, top) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - 8);

function axis(top, format) {
  return [0, top / 2, top].flatMap((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: yOf(value, top), y2: yOf(value, top) }),
    svg("text", { class: "axis", x: LEFT - 4, y: yOf(value, top) + 3, "text-anchor": "end" }, format(value)),
  ]);
}

function frame(title, figures, label, shapes) {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...shapes);
  const legend = figures.map(([name, text], i) => el("span", { class: `key line-${i}` }, `${name} ${text}`));
  return el("figure", { class: "chart" }, el("figcaption", {}, el("strong", {}, title), ...legend), picture);
}

// Path of the values that are there; a gap where one is null.
function path(values, top, slots) {
  const step = (WIDTH - LEFT) / Math.max(1, slots - 1);
  let isDown = false;
  return values
    .map((value, i) => {
      if (value === null) {
        isDown = false;
        return "";
      }
      const x = WIDTH - (values.length - 1 - i) * step;
      const command = isDown ? "L" : "M";
      isDown = true;
      return `${command}${x.toFixed(1)} ${yOf(value, top).toFixed(1)}`;
    })
    .join("");
}

// lines: [{name, values}], the newest value last; `slots` values fill the width. `limit`: the top of a scale that is
// known, as 1 for shares.
export function lineChart({ title, lines, slots, format, limit = null }) {
  const seen = lines.flatMap((line) => line.values.filter((value) => value !== null));
  const top = limit ?? niceAbove(Math.max(0, ...seen));
  const figures = lines.map(({ name, values }) => [name, values.at(-1) == null ? "–" : format(values.at(-1))]);
  const label = `${title}: ${figures.map(([name, text]) => `${name} ${text}`).join(", ")}`;
  const shapes = lines.map(({ values }, i) =>
    svg("path", { class: `line line-${i}`, d: path(values, top, slots), fill: "none" }),
  );
  return frame(title, figures, label, [...axis(top, format), ...shapes]);
}

// bars: [{name, value}], value from 0 to 1 or null.
export function barChart({ title, bars, format }) {
  const room = (WIDTH - LEFT) / Math.max(1, bars.length);
  const shapes = bars.flatMap(({ name, value }, i) => {
    const x = LEFT + (i + 0.5) * room;
    const width = Math.min(36, room * 0.6);
    const y = yOf(value ?? 0, 1);
    return [
      svg("rect", { class: "bar-0", x: x - width / 2, y, width, height: HEIGHT - BOTTOM - y }),
      svg("text", { class: "axis", x, y: y - 3, "text-anchor": "middle" }, value === null ? "" : format(value)),
      svg("text", { class: "axis", x, y: HEIGHT - 4, "text-anchor": "middle" }, name),
    ];
  });
  const texts = bars.map(({ name, value }) => `${name} ${value === null ? "–" : format(value)}`);
  return frame(title, [], `${title}: ${texts.join(", ")}`, [...axis(1, format), ...shapes]);
}
