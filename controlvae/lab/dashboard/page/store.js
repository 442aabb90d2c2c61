// Everything the server has sent: summaries of all runs, logs of the selected ones, and settings.

import { getJson } from "./dom.js";
import { natural } from "./format.js";

export const store = {
  root: "",
  version: null, // of the list, so that a new stream need not send it again
  readOnly: false,
  isLoaded: false, // false until the list has arrived
  summaries: [], // in natural order of their names
  logs: new Map(), // run -> {log, validation, marks, revision}
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
  if (!store.logs.has(run)) store.logs.set(run, { marks: null, revision: 0 });
  return store.logs.get(run);
}

// kind: "log" or "validation". reset: earlier columns are void, as after a resume from before.
export function receiveColumns(kind, run, reset, columns) {
  const held = logOf(run), before = reset ? null : held[kind];
  held.revision++;
  held.arrived = performance.now();
  if (!before) {
    held[kind] = columns ?? undefined;
    return;
  }
  if (columns) append(before, columns);
}

// Appends the records that are later than those held.
function append(held, columns) {
  const { length } = held.step, last = held.step.at(-1) ?? -Infinity;
  const first = columns.step.findIndex((step) => step > last);
  if (first < 0) return;
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

export function receiveMarks(run, reset, marks) {
  const held = logOf(run);
  held.marks = [...(reset ? [] : held.marks ?? []), ...marks];
  held.revision++;
}

// True if nothing more is expected of a run: its whole log is here and nobody trains it. Its marks
// come right after its log, if it has any.
export function isComplete(run) {
  const summary = summaryOf(run), { log, marks, arrived } = store.logs.get(run) ?? {};
  if (!summary || !log || summary.state === "training") return false;
  return log.step.at(-1) === summary.step && (marks !== null || performance.now() > arrived + SETTLE);
}

const requested = new Map(); // run -> promise of its settings

// Loads the settings of these runs, where they are missing. Returns true if there were any.
export async function loadSettings(runs) {
  const missing = runs.filter((run) => !requested.has(run));
  for (let at = 0; at < missing.length; at += RUNS_PER_REQUEST) {
    const some = missing.slice(at, at + RUNS_PER_REQUEST), answer = requestSettings(some);
    some.forEach((run) => requested.set(run, answer));
  }
  await Promise.all(runs.map((run) => requested.get(run)));
  return missing.length > 0;
}

async function requestSettings(runs) {
  const answer = await getJson("/settings", runs.map((run) => ["run", run]));
  if (answer.error) {
    if (answer.unreachable) runs.forEach((run) => requested.delete(run)); // asked again later
    return;
  }
  answer.runs.forEach((run, place) => {
    const values = answer.settings.map(({ name, values }) => [name, values[place]]);
    store.settings.set(run, Object.fromEntries(values.filter(([, value]) => value != null)));
  });
}
