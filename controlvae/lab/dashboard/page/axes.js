// Ranges and ticks of charts.

import { number, shortStep } from "./format.js";
import { extent } from "./series.js";
import { ink } from "./theme.js";

const ROOM = 0.06; // share of the range left free above and below the curves

// Range of the y axis. A spike in the first steps must not flatten a chart: while it shows all steps,
// the range ignores a share of them (spec.skip). levels: values that must be inside.
export function rangeOf(rows, x, shown, spec, isLog, levels = []) {
  const [from, to] = indices(x, shown);
  const whole = from === 0 && to === x.length;
  const skipped = whole && x.length > 20 ? Math.floor((spec.skip ?? 0) * x.length) : 0;
  const positive = (row) => (isLog ? row.map((value) => (value > 0 ? value : null)) : row);
  let [low, high] = extent(rows.map(positive), from + skipped, to);
  for (const level of levels) {
    if (isLog && level <= 0) continue;
    low = Math.min(low, level);
    high = Math.max(high, level);
  }
  if (!Number.isFinite(low) || !Number.isFinite(high)) return isLog ? [0.1, 10] : [0, 1];
  if (isLog) {
    const factor = low === high ? 2 : (high / low) ** ROOM;
    return [low / factor, high * factor];
  }
  const isFromZero = spec.fromZero && !shown;
  if (isFromZero) low = Math.min(0, low);
  const room = ROOM * (high - low || Math.abs(high) || 1);
  return [isFromZero && low === 0 ? 0 : low - room, high + room];
}

// First index within a range of steps, and the one after the last.
function indices(x, shown) {
  if (!shown) return [0, x.length];
  let from = x.findIndex((step) => step >= shown[0]), to = x.findLastIndex((step) => step <= shown[1]);
  if (from < 0) from = x.length;
  return [Math.max(0, from - 1), Math.min(x.length, to + 2)];
}

// Round numbers that divide a range, about `count` of them.
export function ticks(low, high, count = 5) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const width = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / width); at * width <= high + 1e-9 * width; at++) found.push(at * width);
  return found.map((value) => Number(value.toPrecision(12)));
}

// Powers of ten of a logarithmic range, with 2 and 5 in between where they are few.
export function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    const factors = Math.log10(high / low) < 2.5 ? [1, 2, 5] : [1];
    found.push(...factors.map((factor) => Number((factor * 10 ** power).toPrecision(6))));
  }
  return found.filter((value) => value >= low && value <= high);
}

const axis = () => ({
  stroke: () => ink("--quiet"),
  grid: { stroke: () => ink("--grid"), width: 1 },
  ticks: { stroke: () => ink("--grid"), width: 1, size: 4 },
  font: "11px system-ui, sans-serif",
  gap: 4,
});

// The first tick names the unit.
export const xAxis = () => ({ ...axis(), size: 26,
  values: (_, values) => values.map((value, at) => `${shortStep(value)}${at === 0 ? " steps" : ""}`) });

export const yAxis = (isLog) => ({
  ...axis(), size: 46,
  splits: (plot, index, low, high) =>
    (isLog ? logTicks(low, high) : ticks(low, high, Math.max(2, Math.floor(plot.height / 45)))),
  values: (_, values) => values.map((value) => (value == null ? "" : number(value))),
});
