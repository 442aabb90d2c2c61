// The page: which runs there are, which are chosen, and what the server tells of them.

import * as charts from "./charts.js";
import * as focus from "./focus.js";
import * as list from "./list.js";

const find = (selector) => document.querySelector(selector);
let root = "", summaries = [], chosen = inAddress(), focused = null;
const logs = new Map(), validations = new Map();
let stream = null, drawing = false;

function inAddress() {
  try {
    const runs = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return Array.isArray(runs) ? runs : null;
  } catch { return null; }
}

function follow() {
  stream?.close();
  stream = new EventSource(`/events?${new URLSearchParams((chosen ?? []).map((run) => ["run", run]))}`);
  const told = new Set(); // by this stream; what is kept of other logs is from the one before, to be replaced
  stream.onopen = () => { find("#lost").hidden = true; told.clear(); };
  stream.onerror = () => { find("#lost").hidden = false; };
  stream.addEventListener("runs", ({ data }) => {
    ({ root, runs: summaries } = JSON.parse(data));
    summaries.forEach((each) => focus.clock(each));
    if (chosen === null && summaries.length) choose(first(), true);
    refresh();
  });
  for (const [kind, kept] of [["log", logs], ["validation", validations]]) {
    stream.addEventListener(kind, ({ data }) => {
      const { run, anew, columns } = JSON.parse(data), log = `${kind} ${run}`;
      take(kept, run, anew || !told.has(log), columns);
      told.add(log);
    });
  }
}

// What to show when nobody has chosen: what is being trained, else the newest; all seeds of it.
function first() {
  const start = summaries.find((each) => each.state === "training") ?? summaries.find((each) => !each.error) ?? summaries[0];
  const beside = summaries.filter((each) => !each.error && list.home(each.run) === list.home(start.run) && each.preset === start.preset);
  return (list.home(start.run) ? beside : [start]).map((each) => each.run).sort().slice(0, 6);
}

function choose(runs, silent) {
  chosen = runs;
  if (!silent) history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(runs))}`);
  follow();
  refresh();
}

function take(kept, run, anew, columns) {
  const before = anew ? null : kept.get(run);
  if (!before) { if (columns) kept.set(run, columns); else kept.delete(run); }
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
  const shown = (chosen ?? []).map((name) => summaries.find((each) => each.run === name)).filter((each) => each && !each.error);
  const apart = new Set(shown.map((each) => list.short(each.run))).size === shown.length;
  const runs = shown.map((summary, place) => ({
    summary, name: list.short(summary.run, apart ? 1 : 2), colour: charts.COLOURS[place % charts.COLOURS.length],
    columns: logs.get(summary.run), validation: validations.get(summary.run),
  }));
  const watched = runs.find((run) => run.summary.run === focused) ?? runs[0] ?? null;
  find("#root").textContent = root;
  list.draw(find("#runs"), root, summaries, chosen ?? [], new Map(runs.map((run) => [run.summary.run, run.colour])), choose);
  const empty = find("#empty");
  empty.hidden = runs.some((run) => run.columns);
  empty.textContent = !summaries.length ? "No runs here yet. Train one: controlvae train shapes2d-quick"
    : runs.length ? "Nothing is logged yet." : "Choose runs on the left.";
  charts.draw(find("#charts"), runs, watched);
  focus.draw(find("#focus"), root, runs, watched, (run) => { focused = run; refresh(); });
}

// A browser opens six connections to a server, whatever the number of tabs: those nobody looks at give theirs back.
document.addEventListener("visibilitychange", () => { if (document.hidden) stream.close(); else follow(); });
addEventListener("hashchange", () => location.reload());
follow();
