// Curves of the chosen runs. A chart is made anew when its lines change, and given data when only they grow.

import { element } from "./element.js";

export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f94"];
const NAMED = 12; // latents with a colour; a legend of more is a wall
const made = new Map(); // chart's name -> {plot, box, lines, ends: the first and last step it was given}

const held = { kl: "KL", tc: "total correlation", reconstruction: "reconstruction" };

// chosen: [{summary, columns, validation, colour, name}]; focus: one of them, whose latents are drawn
export function draw(place, chosen, focus) {
  const drawn = chosen.filter((run) => run.columns);
  const charts = drawn.length ? describe(drawn, drawn.includes(focus) ? focus : null) : [];
  for (const [name, { plot, box }] of made) {
    if (!charts.some((chart) => chart.name === name)) { plot.destroy(); box.remove(); made.delete(name); }
  }
  for (const chart of charts) show(chart);
  const boxes = charts.map((chart) => made.get(chart.name).box);
  if (boxes.some((box, at) => place.children[at] !== box)) place.append(...boxes);
}

function describe(runs, focus) {
  const charts = [];
  for (const column of ["kl", "tc", "reconstruction"]) {
    const having = runs.filter((run) => column in run.columns);
    if (!having.length) continue;
    const biased = (run) => column === "tc" && !("critic_accuracy" in run.columns); // a minibatch's estimate
    const lines = having.map((run) => line(run, column, biased(run) ? `${run.name}, biased` : run.name));
    lines.push(...targets(having.filter((run) => run.summary.held === column)));
    const error = column === "reconstruction";
    charts.push({ name: `${held[column]}, nats per example`, lines, fromZero: !error, skip: error ? 0.1 : 0.05 });
  }
  const weights = runs.map((run) => line(run, "beta", runs.length === 1 ? "β" : run.name));
  // The parts of a law on log β would dwarf β itself.
  if (runs.length === 1 && /^(PI|PID|LagrangeMultiplier)\(/.test(runs[0].summary.law)) {
    weights.push({ ...line(runs[0], "p", "P"), colour: COLOURS[1], dash: [2, 3] });
    weights.push({ ...line(runs[0], "i", "I"), colour: COLOURS[4], dash: [5, 4] });
  }
  charts.push({ name: "β, the weight", lines: weights, fromZero: true });
  charts.push({ name: "ELBO, nats per example", lines: runs.map((run) => line(run, "elbo", run.name)), skip: 0.1 });
  const looked = runs.filter((run) => run.validation);
  if (looked.length) {
    const lines = looked.map((run) => ({ ...line(run, "elbo", run.name), x: run.validation.step, y: run.validation.elbo, dots: true }));
    charts.push({ name: "ELBO of validation examples", lines });
  }
  const judged = runs.filter((run) => "critic_accuracy" in run.columns);
  if (judged.length) charts.push({ name: "critic's accuracy", lines: judged.map((run) => line(run, "critic_accuracy", run.name)) });
  if (focus?.columns.latents) {
    charts.push({ name: `KL per latent of ${focus.name}, nats`, lines: latents(focus.columns), fromZero: true, skip: 0.05 });
  }
  return charts;
}

// Seeds of one run share their set point: one line says it.
function targets(runs) {
  const given = runs.filter((run) => run.columns.target?.some((value) => value !== null));
  const alike = Map.groupBy(given, (run) => `${run.columns.target[0]} ${run.columns.target.at(-1)}`);
  return [...alike.values()].map((same) => ({
    ...line(same[0], "target", alike.size === 1 ? "target" : `target of ${same[0].name}`), dash: [5, 4],
    ...(same.length > 1 && { colour: COLOURS[6] }),
  }));
}

function line(run, column, label) {
  return { label, x: run.columns.step, y: run.columns[column] ?? [], colour: run.colour };
}

// Those of largest KL have names and colours, in the order of the latents: a ranking would change with every line.
function latents({ step, latents }) {
  const last = (latent) => latents[latent].at(-1) ?? 0;
  const all = [...latents.keys()];
  const named = all.filter((latent) => last(latent) >= 0.01).sort((a, b) => last(b) - last(a)).slice(0, NAMED).sort((a, b) => a - b);
  const rest = all.filter((latent) => !named.includes(latent));
  return [...named, ...rest].map((latent, place) => ({
    label: `z${subscript(latent + 1)}`, x: step, y: latents[latent], unnamed: place >= named.length,
    colour: place < named.length ? COLOURS[place % 6] : "#b8c0c4", dash: place >= 6 && place < named.length ? [6, 3] : undefined,
  }));
}

const subscript = (number) => [...String(number)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]).join("");

function show(chart) {
  const lines = chart.lines.map(({ label, colour, dash }) => `${label} ${colour} ${dash}`).join("|");
  const before = made.get(chart.name);
  const data = uPlot.join(chart.lines.map(({ x, y }) => [x, y]));
  const zoom = before && zoomed(before), box = before?.box ?? frame(chart.name);
  let plot = before?.plot;
  if (before?.lines === lines) plot.setData(data);
  else {
    plot?.destroy();
    plot = new uPlot(options(box, chart), data, box);
  }
  if (zoom) plot.setScale("x", zoom);
  made.set(chart.name, { plot, box, lines, ends: [data[0][0], data[0].at(-1)] });
}

function frame(name) {
  const box = element("div", "chart");
  box.append(element("h3", "", name));
  new ResizeObserver(() => made.get(name)?.plot.setSize(size(box))).observe(box);
  return box;
}

// The part of the steps that someone has zoomed in on; null where all are shown.
function zoomed({ plot, ends: [first, last] }) {
  const { min, max } = plot.scales.x;
  return min > first || max < last ? { min, max } : null;
}

const size = (box) => ({ width: Math.max(260, box.clientWidth), height: 220 });

function options(box, chart) {
  const ink = (name) => () => getComputedStyle(document.body).getPropertyValue(name); // day and night
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

// A spike of the first steps must not flatten the whole picture: the range is that of what comes after a share of them.
function within(plot, low, high, { fromZero = false, skip = 0 }) {
  const [x, ...lines] = plot.data;
  const [from, to] = plot.series[0].idxs ?? [0, x.length - 1];
  if (skip > 0 && from === 0 && to === x.length - 1 && x.length > 20) { // nobody has zoomed in
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
