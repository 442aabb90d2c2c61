// The page: lists runs, keeps the selection, and follows the event stream of the server.

import * as charts from "./charts.js";
import * as focus from "./focus.js";
import * as list from "./list.js";

const find = (selector) => document.querySelector(selector);
let root = "", summaries = [], selected = selectionFromAddress(), focused = null;
const logs = new Map(), validations = new Map();
let stream = null, drawing = false;

function selectionFromAddress() {
  try {
    const runs = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return Array.isArray(runs) ? runs : null;
  } catch { return null; }
}

function follow() {
  stream?.close();
  stream = new EventSource(`/events?${new URLSearchParams((selected ?? []).map((run) => ["run", run]))}`);
  const received = new Set(); // logs of this stream; those of an earlier one are replaced
  stream.onopen = () => { find("#lost").hidden = true; received.clear(); };
  stream.onerror = () => { find("#lost").hidden = false; };
  stream.addEventListener("runs", ({ data }) => {
    ({ root, runs: summaries } = JSON.parse(data));
    summaries.forEach((each) => focus.recordSpeed(each));
    if (selected === null && summaries.length) select(defaultSelection(), true);
    refresh();
  });
  for (const [kind, store] of [["log", logs], ["validation", validations]]) {
    stream.addEventListener(kind, ({ data }) => {
      const { run, reset, columns } = JSON.parse(data), log = `${kind} ${run}`;
      append(store, run, reset || !received.has(log), columns);
      received.add(log);
    });
  }
}

// Default selection: the run in training, or else the newest, with its other seeds.
function defaultSelection() {
  const start = summaries.find((each) => each.state === "training") ?? summaries.find((each) => !each.error) ?? summaries[0];
  const seeds = summaries.filter((each) => !each.error && list.home(each.run) === list.home(start.run) && each.preset === start.preset);
  return (list.home(start.run) ? seeds : [start]).map((each) => each.run).sort().slice(0, 6);
}

function select(runs, silent) {
  selected = runs;
  if (!silent) history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(runs))}`);
  follow();
  refresh();
}

function append(store, run, reset, columns) {
  const before = reset ? null : store.get(run);
  if (!before) { if (columns) store.set(run, columns); else store.delete(run); }
  else for (const [name, values] of Object.entries(columns)) {
    if (name === "latents") values.forEach((more, latent) => before.latents?.[latent]?.push(...more));
    else (before[name] ??= []).push(...values);
  }
  refresh();
}

function refresh() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; redraw(); });
}

function redraw() {
  const shown = (selected ?? []).map((name) => summaries.find((each) => each.run === name)).filter((each) => each && !each.error);
  const isUnique = new Set(shown.map((each) => list.short(each.run))).size === shown.length;
  const runs = shown.map((summary, place) => ({
    summary, name: list.short(summary.run, isUnique ? 1 : 2), colour: charts.COLOURS[place % charts.COLOURS.length],
    columns: logs.get(summary.run), validation: validations.get(summary.run),
  }));
  const focusedRun = runs.find((run) => run.summary.run === focused) ?? runs[0] ?? null;
  find("#root").textContent = root;
  list.draw(find("#runs"), root, summaries, selected ?? [], new Map(runs.map((run) => [run.summary.run, run.colour])), select);
  const empty = find("#empty");
  empty.hidden = runs.some((run) => run.columns);
  empty.textContent = !summaries.length ? "No runs here yet. Train one: controlvae train shapes2d-quick"
    : runs.length ? "Nothing is logged yet." : "Select runs on the left.";
  charts.draw(find("#charts"), runs, focusedRun);
  focus.draw(find("#focus"), root, runs, focusedRun, (run) => { focused = run; refresh(); });
}

// A browser opens six connections to a server, however many tabs there are, so a hidden tab closes its own.
document.addEventListener("visibilitychange", () => { if (document.hidden) stream.close(); else follow(); });
addEventListener("hashchange", () => location.reload());
follow();
