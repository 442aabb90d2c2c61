// Which charts the selected runs have, and which curves each one holds.
//
// A chart is {id, title, unit, place, columns, lines, fromZero, skip, marks}. place is "stage" (first
// screen), "grid" or "more". columns are those of the log that it shows; the focused run has all. A line is {key, label, x, y, slot, dash, width, ghost, dots, low, high}.

import { number, subscript } from "./format.js";
import { smooth, spread } from "./series.js";

const QUANTITIES = { kl: "KL", tc: "Total correlation", reconstruction: "Reconstruction" };
const TERMS = /^(PI|PID|LagrangeMultiplier)\(/; // laws whose terms are on the scale of β
const NAMED = new Set(["step", "latents", "target", "elbo", "beta", "critic_accuracy",
  ...Object.keys(QUANTITIES)]);
const MORE_TITLES = { kl_sd: "Standard deviation of the KL over batches",
  saturated: "Share of steps at a bound of β", p: "P term", i: "I term", d: "D term",
  tc_bias: "Bias of the TC estimate" };
const MAX_NAMED_LATENTS = 12; // latents with a colour and a legend entry
const MAX_GHOSTS = 4; // raw curves drawn faintly behind smoothed ones

// runs: [{summary, name, log, names, validation, slot}]; groups: null, or [{label, slot, runs}] to draw as
// mean and spread; focus: the focused run or null; weight: of the smoothing.
export function describeCharts(runs, groups, focus, weight) {
  const logged = runs.filter((run) => run.log);
  if (!logged.length) return [];
  const context = { logged, groups, weight };
  const controlled = focus?.summary.controlled ?? logged[0].summary.controlled;
  const has = (column) => logged.some((run) => run.names.has(column));
  const quantities = Object.keys(QUANTITIES).filter(has)
    .sort((one, other) => (other === controlled) - (one === controlled));
  const charts = quantities.map((column) => quantityChart(context, column, column === controlled));
  // Their place is kept while the columns of a newly focused run are on their way.
  if (focus?.log && (focus.log.latents || !focus.isWhole)) charts.splice(1, 0, latentChart(focus));
  charts.push(weightChart(context));
  if (has("elbo")) charts.push(plainChart(context, "elbo", "ELBO", { unit: "nats", skip: 0.1 }));
  const validated = logged.filter((run) => run.validation);
  if (validated.length) charts.push(validationChart(validated));
  if (has("critic_accuracy")) charts.push(plainChart(context, "critic_accuracy", "Accuracy of the critic"));
  return [...charts, ...otherCharts(context)];
}

function quantityChart(context, column, isControlled) {
  const error = column === "reconstruction";
  const lines = curves(context, column);
  if (column === "tc") lines.forEach(nameBias);
  lines.push(...targets(context.logged.filter((run) => run.summary.controlled === column)));
  return { id: column, title: QUANTITIES[column], unit: "nats", columns: [column, "target"], lines, fromZero: !error,
    skip: error ? 0.1 : 0.05, place: isControlled ? "stage" : "grid", isControlled };
}

// Version 0.1 logged the total correlation with the bias of its batch estimate.
function nameBias(line) {
  const names = line.run?.names;
  if (names && !names.has("critic_accuracy") && !names.has("tc_bias")) line.label += ", biased";
}

function weightChart(context) {
  const [run, ...others] = context.logged, lines = [];
  if (!others.length && TERMS.test(run.summary.law)) {
    const term = (name, slot, dash) => ({ ...line(run, name.toLowerCase(), context.weight),
      key: name, label: name, slot, dash });
    if (run.log.p) lines.push(term("P", 1, [2, 3]));
    if (run.log.i) lines.push(term("I", 5, [6, 4]));
  }
  const weights = curves(context, "beta");
  if (lines.length) Object.assign(weights[0], { label: "β", width: 2.5 }); // on top of its terms
  return { id: "beta", title: "β", unit: "weight of the controlled term", place: "grid", fromZero: true,
    columns: ["beta"], lines: [...lines, ...weights] };
}

function plainChart(context, column, title, more = {}) {
  return { id: column, title, place: "grid", columns: [column], lines: curves(context, column), ...more };
}

function validationChart(validated) {
  const lines = validated.map((run) => ({ ...line(run, "elbo", 0), x: run.validation.step,
    y: run.validation.elbo ?? [], dots: true, ghost: undefined }));
  return { id: "validation", title: "ELBO on validation examples", unit: "nats",
    place: "grid", columns: [], lines };
}

// Every other logged column, so that nothing is hidden.
function otherCharts(context) {
  const names = new Set(context.logged.flatMap((run) => [...run.names]));
  return [...names].filter((name) => !NAMED.has(name) && hasNumbers(context.logged, name)).sort()
    .map((name) => plainChart(context, name, MORE_TITLES[name] ?? name,
      { place: "more", skip: 0.05 }));
}

const hasNumbers = (runs, name) =>
  runs.some(({ log, names }) => names.has(name) &&
    (!log[name] || log[name].some((value) => typeof value === "number")));

// One curve for each run, or mean ± sd for each group.
function curves({ logged, groups, weight }, column) {
  if (!groups) {
    const runs = logged.filter((run) => column in run.log);
    return runs.map((run) => {
      const found = line(run, column, weight);
      return runs.length > MAX_GHOSTS ? { ...found, ghost: undefined } : found;
    });
  }
  return groups.map((group) => groupCurve(group, column, weight)).filter(Boolean);
}

function line(run, column, weight) {
  const raw = run.log[column] ?? [];
  return { key: run.summary.run, label: run.name, slot: run.slot, x: run.log.step, run,
    y: smooth(raw, weight), ghost: weight ? raw : undefined };
}

function groupCurve(group, column, weight) {
  const runs = group.runs.filter((run) => run.log && column in run.log);
  if (!runs.length) return null;
  const { x, mean, low, high } = spread(runs.map((run) => ({ x: run.log.step, y: run.log[column] })));
  const rows = [mean, low, high].map((row) => smooth(row, weight));
  return { key: `group ${group.key}`, label: `${group.label} (${runs.length})`, slot: group.slot, x,
    y: rows[0], ...(runs.length > 1 && { low: rows[1], high: rows[2] }) };
}

// Runs with the same target share one dashed line. A target that only one run has takes its colour.
function targets(runs) {
  const targeted = runs.filter((run) => run.log.target?.some((value) => value != null));
  const same = Map.groupBy(targeted, targetKey);
  return [...same.values()].map((group) => {
    const [run] = group;
    const label = same.size === 1 ? "target" : group.length > 1 ? `target ${number(run.log.target.at(-1))}`
      : `target of ${run.name}`;
    return { key: `target ${run.summary.run}`, label, x: run.log.step, y: run.log.target, isTarget: true,
      dash: [5, 4], slot: group.length === 1 ? run.slot : null, width: 1.5 };
  });
}

// Targets at the first, the middle and the last line of the log.
const targetKey = ({ log: { target } }) =>
  [0, target.length >> 2, target.length >> 1, (3 * target.length) >> 2, target.length - 1]
    .map((at) => target[at]).join(" ");

// Latents of largest KL have names and colours. They are in index order, because a ranking would
// change with every record.
function latentChart(focus) {
  const { step, latents = [] } = focus.log;
  const last = (latent) => latents[latent].at(-1) ?? 0;
  const all = [...latents.keys()];
  const named = all.filter((latent) => last(latent) >= 0.01).sort((a, b) => last(b) - last(a))
    .slice(0, MAX_NAMED_LATENTS).sort((a, b) => a - b);
  const rest = all.filter((latent) => !named.includes(latent));
  const lines = [
    ...rest.map((latent) => ({ key: `z${latent + 1}`, label: `z${subscript(latent + 1)}`, x: step,
      y: latents[latent], slot: null, width: 1, isUnnamed: true })),
    ...named.map((latent, place) => ({ key: `z${latent + 1}`, label: `z${subscript(latent + 1)}`,
      x: step, y: latents[latent], slot: place })),
  ];
  return { id: "latents", title: `KL per latent`, detail: focus.name, unit: "nats", place: "stage",
    columns: [], lines, fromZero: true, skip: 0.05 };
}
