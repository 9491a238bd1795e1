// The status view: /metrics read once a second while it is open, shown as figures and charts. Shares and quantiles are
// over the last WINDOW seconds, or since the view was opened.

import { metricsText } from "./api.js";
import { barChart, lineChart } from "./chart.js";
import { byId, el } from "./dom.js";
import { parseMetrics, quantile, sumOf } from "./prometheus.js";

const PERIOD_MS = 1000;
const SLOTS = 60; // values kept for a chart
const LEAST_SLOTS = 20; // a chart that begins is not stretched further
const WINDOW = 30;
const RATE_WINDOW = 5; // shorter: a rate that falls shows soon

let timer = null;
let snapshots = []; // [{at, families}], oldest first, of the window
let series = {}; // name -> values, oldest first

const whole = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const share = (value) => `${(100 * value).toFixed(0)} %`;
const seconds = (value) =>
  value >= 1 ? `${value.toFixed(1)} s` : `${(1000 * value).toLocaleString("en", { maximumSignificantDigits: 3 })} ms`;

// ---- from snapshots to values ---------------------------------------------------------------------------------------

// Tokens that were sent: the first one of each answer, and those after one.
const tokensSent = (f) => sumOf(f, "time_to_first_token_seconds_count") + sumOf(f, "inter_token_latency_seconds_count");

function valuesNow() {
  const first = snapshots[0];
  const last = snapshots.at(-1);
  const previous = snapshots.at(-1 - RATE_WINDOW) ?? first;
  const f = last.families;
  const grown = (measure) => measure(f) - measure(first.families);
  const source = (name) => (g) => sumOf(g, "prompt_tokens_by_source_total", { source: name });
  const ratio = (part, rest) => (part + rest > 0 ? part / (part + rest) : null);
  const elapsed = (last.at - previous.at) / 1000;
  const sentNow = tokensSent(f) - tokensSent(previous.families);
  const drafted = grown((g) => sumOf(g, "draft_tokens_total"));
  const accepted = grown((g) => sumOf(g, "accepted_at_position_total"));
  return {
    running: sumOf(f, "requests_running"),
    waiting: sumOf(f, "requests_waiting"),
    rate: elapsed > 0 ? sentNow / elapsed : null,
    first50: quantile(first.families, f, "time_to_first_token_seconds", 0.5),
    first95: quantile(first.families, f, "time_to_first_token_seconds", 0.95),
    between50: quantile(first.families, f, "inter_token_latency_seconds", 0.5),
    between95: quantile(first.families, f, "inter_token_latency_seconds", 0.95),
    hits: ratio(grown(source("device")), grown(source("computed"))),
    acceptance: ratio(accepted, drafted - accepted),
  };
}

function acceptanceByPosition(families) {
  const bars = (families.get("draft_tokens_total") ?? []).map(({ labels, value }) => ({
    name: labels.position,
    value: value > 0 ? sumOf(families, "accepted_at_position_total", labels) / value : null,
  }));
  return bars.sort((a, b) => a.name - b.name); // the server gives them in any order
}

// ---- drawing --------------------------------------------------------------------------------------------------------

function tilesFor(f) {
  const used = sumOf(f, "blocks") - sumOf(f, "blocks_available");
  const finishes = (f.get("requests_total") ?? []).map(({ labels, value }) => `${value} ${labels.finish}`);
  return [
    ["State", sumOf(f, "ready") ? "ready" : "not ready"],
    ["Running", whole(sumOf(f, "requests_running"))],
    ["Waiting", whole(sumOf(f, "requests_waiting"))],
    ["Predicted wait", seconds(sumOf(f, "predicted_wait_seconds"))],
    ["Connections", whole(sumOf(f, "connections"))],
    ["Cache blocks in use", `${whole(used)} of ${whole(sumOf(f, "blocks"))}`],
    ["Answers", finishes.join(", ") || "none yet"],
    ["Turned away", whole(sumOf(f, "requests_rejected_total"))],
  ];
}

function draw() {
  const f = snapshots.at(-1).families;
  const tiles = tilesFor(f).map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)));
  byId("tiles").replaceChildren(...tiles);
  const slots = Math.max(LEAST_SLOTS, series.running.length);
  const chart = (title, format, lines, limit = null) =>
    lineChart({ title, format, limit, slots, lines: lines.map(([name, key]) => ({ name, values: series[key] })) });
  byId("charts").replaceChildren(
    chart("Requests", whole, [
      ["running", "running"],
      ["waiting", "waiting"],
    ]),
    chart("Tokens per second", whole, [["now", "rate"]]),
    chart("Time to first token", seconds, [
      ["p50", "first50"],
      ["p95", "first95"],
    ]),
    chart("Between tokens", seconds, [
      ["p50", "between50"],
      ["p95", "between95"],
    ]),
    chart("Prompt tokens from the cache", share, [["now", "hits"]], 1),
    chart("Drafts accepted", share, [["now", "acceptance"]], 1),
    barChart({ title: "Drafts accepted by position, since the start", bars: acceptanceByPosition(f), format: share }),
  );
}

async function poll() {
  const problem = byId("status-error");
  const mine = timer;
  try {
    const families = parseMetrics(await metricsText());
    if (timer !== mine) return; // closed while the answer came
    snapshots = [...snapshots, { at: performance.now(), families }].slice(-WINDOW - 1);
    for (const [name, value] of Object.entries(valuesNow())) {
      series[name] = [...(series[name] ?? []), value].slice(-SLOTS);
    }
    draw();
    problem.hidden = true;
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
  if (timer === mine) timer = setTimeout(poll, PERIOD_MS);
}

export function openStatus() {
  if (timer !== null) return;
  snapshots = [];
  series = {};
  timer = setTimeout(poll, 0);
}

export function closeStatus() {
  clearTimeout(timer);
  timer = null;
}
