// Everything the server has sent: summaries of all runs, logs of the selected ones, and settings.

import { getJson } from "./dom.js";
import { natural } from "./format.js";
import { sameSteps } from "./series.js";

export const store = {
  root: "",
  version: null, // of the list, so that a new stream need not send it again
  readOnly: false,
  isLoaded: false, // false until the list has arrived
  summaries: [], // in natural order of their names
  // run -> {log, validation, marks, revision, names: of all columns with numbers, requested: names of the
  // columns that were asked for, isWhole: all were}
  logs: new Map(),
  settings: new Map(), // run -> {name: value}
};
const byName = new Map();
const RUNS_PER_REQUEST = 50;
const SETTLE = 100; // ms after which the marks of a log should have come, too

export const summaryOf = (run) => byName.get(run);

export function receiveList({ root, version, read_only: readOnly, runs }) {
  Object.assign(store, { root, version: version ?? null, readOnly: Boolean(readOnly) });
  byName.clear();
  for (const summary of runs) byName.set(summary.run, summary);
  sort();
}

export function receiveChanges({ version, runs, removed }) {
  store.version = version ?? null;
  for (const run of removed) {
    byName.delete(run);
    store.logs.delete(run);
  }
  for (const summary of runs) byName.set(summary.run, summary);
  sort();
}

function sort() {
  store.isLoaded = true;
  store.summaries = [...byName.values()].sort((one, other) => natural(one.run, other.run));
}

export function logOf(run) {
  if (!store.logs.has(run)) {
    store.logs.set(run, { marks: null, revision: 0, names: new Set(), requested: new Set(), isWhole: false });
  }
  return store.logs.get(run);
}

// reset: earlier columns are void, as after a resume from before.
export function receiveValidation({ run, columns }, reset) {
  const held = logOf(run);
  held.revision++;
  if (reset || !held.validation) held.validation = columns ?? undefined;
  else if (columns) append(held.validation, columns);
}

// requested: names of the columns that were asked for; null for all of them. isFirst: of a stream,
// which may bring more columns of a log that is here already.
export function receiveLog({ run, columns, names, reset }, isFirst, requested) {
  const held = logOf(run), before = held.log;
  held.revision++;
  held.arrived = performance.now();
  for (const name of names ?? Object.keys(columns ?? {})) {
    if (name !== "step" && name !== "latents") held.names.add(name);
  }
  const adds = isFirst && before && columns && sameSteps(before.step, columns.step);
  if (adds) held.log = { ...before, ...columns, step: before.step };
  else if (isFirst || reset || !before) held.log = columns ?? undefined;
  else if (columns) append(before, columns, requested);
  if (adds) {
    requested?.forEach((name) => held.requested.add(name));
    held.isWhole ||= requested === null;
  } else {
    held.requested = new Set(requested);
    held.isWhole = requested === null;
  }
}

// Appends the records that are later than those held. Columns that no longer grow are dropped.
function append(held, columns, requested = null) {
  const { length } = held.step, last = held.step.at(-1) ?? -Infinity;
  const first = columns.step.findIndex((step) => step > last);
  if (first < 0) return;
  if (requested !== null) {
    for (const name of Object.keys(held)) {
      if (name !== "step" && !requested.includes(name)) delete held[name];
    }
  }
  for (const [name, values] of Object.entries(columns)) {
    if (name !== "latents") pad((held[name] ??= []), length).push(...values.slice(first));
    else values.forEach((more, latent) => held.latents?.[latent]?.push(...more.slice(first)));
  }
}

// A column may begin after the first line of a log.
function pad(values, length) {
  while (values.length < length) values.push(null);
  return values;
}

export function receiveMarks(run, marks) {
  const held = logOf(run);
  held.marks = marks; // always all of them
  held.revision++;
}

// Columns of a run that have not been requested yet, out of these; null stands for all columns.
export function missingColumns(run, columns) {
  const { isWhole, requested: have } = store.logs.get(run) ?? {};
  if (isWhole) return [];
  return columns === null ? null : columns.filter((name) => !have?.has(name));
}

// True if these columns of a run's log are here, up to the step that the list tells.
export function hasArrived(run, columns) {
  const { log } = store.logs.get(run) ?? {};
  return Boolean(log) && log.step.at(-1) === summaryOf(run)?.step && missingColumns(run, columns)?.length === 0;
}

// True if nothing more is expected of a run: its log is here and nobody trains it. Its marks come
// right after its log, if it has any.
export function isComplete(run, columns) {
  const { marks, arrived } = store.logs.get(run) ?? {};
  if (summaryOf(run)?.state === "training" || !hasArrived(run, columns)) return false;
  return marks !== null || performance.now() > arrived + SETTLE;
}

const asked = new Map(); // run -> promise of its settings

// Loads the settings of these runs, where they are missing. Returns true if there were any. They are
// kept once all have arrived, so that no group is shown with a part of its runs.
export async function loadSettings(runs) {
  const missing = runs.filter((run) => !asked.has(run)), answers = [];
  for (let at = 0; at < missing.length; at += RUNS_PER_REQUEST) {
    const some = missing.slice(at, at + RUNS_PER_REQUEST), answer = requestSettings(some);
    some.forEach((run) => asked.set(run, answer));
    answers.push(answer);
  }
  for (const found of await Promise.all(answers)) {
    for (const [run, settings] of found) store.settings.set(run, settings);
  }
  await Promise.all(runs.map((run) => asked.get(run)));
  return missing.length > 0;
}

// Returns pairs of a run and its settings.
async function requestSettings(runs) {
  const answer = await getJson("/settings", runs.map((run) => ["run", run]));
  if (answer.error) {
    if (answer.unreachable) runs.forEach((run) => asked.delete(run)); // asked again later
    return [];
  }
  return answer.runs.map((run, place) => {
    const values = answer.settings.map(({ name, values }) => [name, values[place]]);
    return [run, Object.fromEntries(values.filter(([, value]) => value != null))];
  });
}
