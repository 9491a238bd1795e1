// Prometheus' text format, and what charts need of it: sums, differences over a window, quantiles of histograms. Pure.

const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const PREFIX = "deepinfer_";

const toNumber = (text) => (text === "+Inf" ? Infinity : Number(text));

// Map: name without prefix -> [{labels, value}].
export function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : line.match(SAMPLE);
    if (!match) continue;
    const name = match[1].startsWith(PREFIX) ? match[1].slice(PREFIX.length) : match[1];
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(LABEL)].map(([, key, value]) => [key, value]));
    if (!families.has(name)) families.set(name, []);
    families.get(name).push({ labels, value: toNumber(match[3]) });
  }
  return families;
}

// Sum of a metric's samples that have the given label values; 0 if there are none.
export function sumOf(families, name, labels = {}) {
  const isWanted = (sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value);
  return (families.get(name) ?? []).filter(isWanted).reduce((sum, sample) => sum + sample.value, 0);
}

// Counts at or below each boundary between two moments: [[boundary, count], ...], growing.
function bucketsBetween(before, after, name) {
  const boundaries = (after.get(`${name}_bucket`) ?? []).map((sample) => sample.labels.le);
  const count = (families, le) => sumOf(families, `${name}_bucket`, { le });
  return boundaries
    .map((le) => [toNumber(le), count(after, le) - count(before, le)])
    .sort((a, b) => a[0] - b[0]);
}

// The q-quantile of what a histogram saw between two moments, linear within its bucket as in PromQL; null if it saw
// nothing. In the last bucket, which has no end, its beginning.
export function quantile(before, after, name, q) {
  const buckets = bucketsBetween(before, after, name);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const rank = q * total;
  const i = buckets.findIndex(([, count]) => count >= rank);
  const [end, count] = buckets[i];
  const [begin, below] = i > 0 ? buckets[i - 1] : [0, 0];
  if (end === Infinity) return begin;
  return count === below ? end : begin + ((end - begin) * (rank - below)) / (count - below);
}
