// Curves of the selected runs. A chart is rebuilt when its lines change, and updated when they grow.

import { element } from "./element.js";

export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f94"];
const MAX_NAMED_LATENTS = 12; // latents with a colour and a legend entry
const charts = new Map(); // name -> {plot, box, lines, ends: first and last step of its data}

const quantities = { kl: "KL", tc: "total correlation", reconstruction: "reconstruction" };

// selected: [{summary, columns, validation, colour, name}]; focus: the run whose latents are drawn
export function draw(place, selected, focus) {
  const logged = selected.filter((run) => run.columns);
  const specs = logged.length ? describe(logged, logged.includes(focus) ? focus : null) : [];
  for (const [name, { plot, box }] of charts) {
    if (!specs.some((spec) => spec.name === name)) { plot.destroy(); box.remove(); charts.delete(name); }
  }
  for (const spec of specs) show(spec);
  const boxes = specs.map((spec) => charts.get(spec.name).box);
  if (boxes.some((box, at) => place.children[at] !== box)) place.append(...boxes);
}

function describe(runs, focus) {
  const specs = [];
  for (const column of ["kl", "tc", "reconstruction"]) {
    const logging = runs.filter((run) => column in run.columns);
    if (!logging.length) continue;
    const biased = (run) => column === "tc" && !("critic_accuracy" in run.columns) && !("tc_bias" in run.columns); // version 0.1
    const lines = logging.map((run) => line(run, column, biased(run) ? `${run.name}, biased` : run.name));
    lines.push(...targets(logging.filter((run) => run.summary.controlled === column)));
    const error = column === "reconstruction";
    specs.push({ name: `${quantities[column]}, nats per example`, lines, fromZero: !error, skip: error ? 0.1 : 0.05 });
  }
  const weights = runs.map((run) => line(run, "beta", runs.length === 1 ? "β" : run.name));
  // The terms of a law on log β would dwarf β itself.
  if (runs.length === 1 && /^(PI|PID|LagrangeMultiplier)\(/.test(runs[0].summary.law)) {
    weights.push({ ...line(runs[0], "p", "P"), colour: COLOURS[1], dash: [2, 3] });
    weights.push({ ...line(runs[0], "i", "I"), colour: COLOURS[4], dash: [5, 4] });
  }
  specs.push({ name: "β, the weight", lines: weights, fromZero: true });
  specs.push({ name: "ELBO, nats per example", lines: runs.map((run) => line(run, "elbo", run.name)), skip: 0.1 });
  const validated = runs.filter((run) => run.validation);
  if (validated.length) {
    const lines = validated.map((run) => ({ ...line(run, "elbo", run.name), x: run.validation.step, y: run.validation.elbo, dots: true }));
    specs.push({ name: "ELBO on validation examples", lines });
  }
  const critics = runs.filter((run) => "critic_accuracy" in run.columns);
  if (critics.length) specs.push({ name: "accuracy of the critic", lines: critics.map((run) => line(run, "critic_accuracy", run.name)) });
  if (focus?.columns.latents) {
    specs.push({ name: `KL per latent of ${focus.name}, nats`, lines: latents(focus.columns), fromZero: true, skip: 0.05 });
  }
  return specs;
}

// Seeds of one experiment share their target, which is drawn once.
function targets(runs) {
  const targeted = runs.filter((run) => run.columns.target?.some((value) => value !== null));
  const groups = Map.groupBy(targeted, (run) => `${run.columns.target[0]} ${run.columns.target.at(-1)}`);
  return [...groups.values()].map((same) => ({
    ...line(same[0], "target", groups.size === 1 ? "target" : `target of ${same[0].name}`), dash: [5, 4],
    ...(same.length > 1 && { colour: COLOURS[6] }),
  }));
}

function line(run, column, label) {
  return { label, x: run.columns.step, y: run.columns[column] ?? [], colour: run.colour };
}

// Latents of largest KL have names and colours. They are in index order, because a ranking would
// change with every record.
function latents({ step, latents }) {
  const last = (latent) => latents[latent].at(-1) ?? 0;
  const all = [...latents.keys()];
  const named = all.filter((latent) => last(latent) >= 0.01).sort((a, b) => last(b) - last(a)).slice(0, MAX_NAMED_LATENTS).sort((a, b) => a - b);
  const rest = all.filter((latent) => !named.includes(latent));
  return [...named, ...rest].map((latent, place) => ({
    label: `z${subscript(latent + 1)}`, x: step, y: latents[latent], unnamed: place >= named.length,
    colour: place < named.length ? COLOURS[place % 6] : "#b8c0c4", dash: place >= 6 && place < named.length ? [6, 3] : undefined,
  }));
}

const subscript = (number) => [...String(number)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]).join("");

function show(chart) {
  const lines = chart.lines.map(({ label, colour, dash }) => `${label} ${colour} ${dash}`).join("|");
  const before = charts.get(chart.name);
  const data = uPlot.join(chart.lines.map(({ x, y }) => [x, y]));
  const zoom = before && zoomed(before), box = before?.box ?? frame(chart.name);
  let plot = before?.plot;
  if (before?.lines === lines) plot.setData(data);
  else {
    plot?.destroy();
    plot = new uPlot(options(box, chart), data, box);
  }
  if (zoom) plot.setScale("x", zoom);
  charts.set(chart.name, { plot, box, lines, ends: [data[0][0], data[0].at(-1)] });
}

function frame(name) {
  const box = element("div", "chart");
  box.append(element("h3", "", name));
  new ResizeObserver(() => charts.get(name)?.plot.setSize(size(box))).observe(box);
  return box;
}

// Range of steps the user has zoomed in on; null if all are shown.
function zoomed({ plot, ends: [first, last] }) {
  const { min, max } = plot.scales.x;
  return min > first || max < last ? { min, max } : null;
}

const size = (box) => ({ width: Math.max(260, box.clientWidth), height: 220 });

function options(box, chart) {
  const ink = (name) => () => getComputedStyle(document.body).getPropertyValue(name); // light or dark
  const axis = { stroke: ink("--quiet"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1 } };
  const steps = (plot, values) => values.map((v) => (v >= 1e6 ? `${v / 1e6}M` : v >= 1e4 ? `${v / 1e3}k` : `${v}`));
  return {
    ...size(box),
    scales: { x: { time: false }, y: { range: (plot, low, high) => within(plot, low, high, chart) } },
    axes: [{ ...axis, values: steps }, { ...axis, size: 60 }],
    series: [{ label: "step", value: (plot, value) => (value == null ? "–" : value.toLocaleString("en")) },
      ...chart.lines.map(({ label, colour, dash, unnamed, dots }) => ({
        label, stroke: colour, dash, width: unnamed ? 0.8 : 1.5, spanGaps: true, points: { show: Boolean(dots) },
        value: (plot, value) => (value == null ? "–" : Number(value.toPrecision(4)).toLocaleString("en")),
      }))],
    legend: { show: chart.lines.filter((each) => !each.unnamed).length <= 14 && chart.lines.length <= 40 },
    cursor: { drag: { x: true, y: false } },
  };
}

// A spike in the first steps must not flatten the chart: the range ignores a share of them.
function within(plot, low, high, { fromZero = false, skip = 0 }) {
  const [x, ...lines] = plot.data;
  const [from, to] = plot.series[0].idxs ?? [0, x.length - 1];
  if (skip > 0 && from === 0 && to === x.length - 1 && x.length > 20) { // not zoomed
    const late = lines.flatMap((line) => line.slice(Math.floor(skip * x.length)).filter((value) => value != null));
    low = Math.min(...late.slice(0, 1), ...chunks(late, Math.min));
    high = Math.max(...late.slice(0, 1), ...chunks(late, Math.max));
  }
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (fromZero) low = Math.min(0, low);
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  return [fromZero && low === 0 ? 0 : low - room, high + room];
}

function* chunks(values, pick) {
  for (let at = 0; at < values.length; at += 10_000) yield pick(...values.slice(at, at + 10_000));
}
