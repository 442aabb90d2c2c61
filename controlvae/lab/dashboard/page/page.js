// The page: connects the stream, the view and the parts that draw them.

import * as charts from "./charts.js";
import { assignSlots } from "./colours.js";
import { debounce, find, setText } from "./dom.js";
import * as explorer from "./explorer.js";
import { matches, needsSettings, parseFilter } from "./filter.js";
import * as focus from "./focus.js";
import { folderOf, natural, number, shortNames } from "./format.js";
import { differing, groupRuns } from "./groups.js";
import * as keys from "./keys.js";
import * as list from "./list.js";
import { describeCharts } from "./specs.js";
import * as steer from "./steer.js";
import { loadSettings, store, summaryOf } from "./store.js";
import * as stream from "./stream.js";
import * as tables from "./tables.js";
import * as theme from "./theme.js";
import { isForeign, readAddress, toggled, view, writeAddress } from "./view.js";

const MAX_DEFAULT = 6; // runs selected when the address names none
const chartActions = {
  zoom: (range) => change({ zoom: range }),
  toggle: (key) => change({ hidden: toggled(view.hidden, key) }),
  setLog: (id) => change({ log: toggled(view.log, id) }),
  complete,
};
// Requested before it is known which charts there are: those that fit on a usual screen.
const FIRST_COLUMNS = ["kl", "tc", "target", "beta", "reconstruction", "elbo", "critic_accuracy"];
const REST = 3; // a pause after drawing, in times that it took
const MAX_WAITS = 600; // of 50 ms, for the curves of a download
let isDrawing = false, isPainting = false, isDue = false, wasSettled = false, restUntil = 0, restTimer = 0;
let shownRuns = [], shownFocus = null, listed = [], specsOf = "", specs = [], choicesOf = "";

function change(part) {
  Object.assign(view, part);
  writeAddress();
  follow();
  refresh();
}

function select(names, isOn) {
  const others = (view.runs ?? []).filter((run) => !names.includes(run));
  change({ runs: isOn ? [...others, ...names] : others });
}

// Shows the state, target and latents of a run, and selects it.
function showRun(run) {
  const isNew = !(view.runs ?? []).includes(run);
  change({ focus: run, ...(isNew && { runs: [...(view.runs ?? []), run] }) });
}

function step(by) {
  const at = shownRuns.findIndex((run) => run === shownFocus), next = shownRuns[at + by];
  if (next) change({ focus: next.summary.run });
}

// The run in training, or else the newest, with its other seeds.
function selectDefault() {
  const usable = store.summaries.filter((each) => !each.error);
  const newest = [...usable].sort((one, other) => (other.created ?? 0) - (one.created ?? 0));
  const start = newest.find((each) => each.state === "training") ?? newest[0];
  if (!start) return;
  const home = folderOf(start.run);
  const seeds = usable.filter((each) => folderOf(each.run) === home && each.preset === start.preset);
  const runs = (home ? seeds : [start]).map(({ run }) => run).sort(natural).slice(0, MAX_DEFAULT);
  view.runs = runs.includes(start.run) ? runs : [start.run, ...runs.slice(1)];
  if (start.state === "training") view.focus = start.run;
  follow();
}

// Requests what the view shows and is not here: of the focused run everything, of the others the
// columns of the charts that have been on the screen.
function follow() {
  const runs = view.runs ?? [], isUsable = (run) => !summaryOf(run)?.error;
  const columns = specs.length ? charts.seenColumns(specs) : FIRST_COLUMNS;
  const whole = runs.includes(view.focus) && isUsable(view.focus) ? view.focus : runs.find(isUsable);
  stream.follow(runs, columns, whole ?? null);
  wasSettled &&= stream.isSettled();
}

function refresh() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    isPainting = true;
    const began = performance.now();
    redraw();
    // The canvases are painted after this function. Only then is it known how long it took.
    requestAnimationFrame(() => setTimeout(() => {
      isPainting = false;
      restUntil = performance.now() + REST * (performance.now() - began);
      if (isDue) refreshSoon();
    }));
  });
}

// Draws what has arrived, with pauses, so that a stream of many logs leaves time to read it.
function refreshSoon() {
  isDue = isPainting;
  if (isDrawing || isPainting) return;
  const isSettled = stream.isSettled(); // the last log that was waited for is drawn at once
  const wait = isSettled && !wasSettled ? 0 : restUntil - performance.now();
  wasSettled = isSettled;
  clearTimeout(restTimer);
  if (wait <= 0) refresh();
  else restTimer = setTimeout(refreshSoon, wait);
}

function redraw() {
  const groups = drawList();
  const names = (view.runs ?? []).filter((run) => summaryOf(run) && !summaryOf(run).error);
  const short = shortNames(names), byGroup = Boolean(view.group);
  const drawn = byGroup ? groupRuns(names.map(summaryOf), view.group, store.settings) : null;
  const slots = assignSlots(drawn ? drawn.map(({ key }) => `group ${key}`) : names);
  shownRuns = names.map((run) => ({ summary: summaryOf(run), name: short.get(run),
    slot: slots.get(run) ?? 0, ...store.logs.get(run) }));
  shownFocus = shownRuns.find(({ summary }) => summary.run === view.focus) ?? shownRuns[0] ?? null;
  const state = { selected: new Set(names), slots, byGroup, focus: shownFocus?.summary.run };
  list.draw(find("#runs"), groups, state, { select, focus: showRun });
  setText(find("#count"), `${names.length} of ${store.summaries.length} selected`);
  focus.draw(store.root, shownRuns, shownFocus, (run) => change({ focus: run }));
  steer.draw(shownFocus, store.readOnly);
  drawCharts(drawn, slots);
  drawEmpty();
  explorer.draw(shownFocus);
  tables.draw(shownRuns);
  drawTitle();
}

// Returns the groups of the listed runs.
function drawList() {
  const terms = parseFilter(view.filter);
  const needed = view.group || needsSettings(terms, store.summaries);
  if (needed && store.isLoaded) {
    loadSettings(store.summaries.map(({ run }) => run)).then((isNew) => isNew && refresh());
  }
  listed = store.summaries.filter((each) => matches(terms, each, store.settings.get(each.run)));
  find("#no-match").hidden = !store.summaries.length || listed.length > 0;
  drawGroupChoices();
  return groupRuns(listed, view.group, store.settings);
}

function drawGroupChoices() {
  const known = `${store.summaries.length} ${store.settings.size} ${view.group}`;
  if (known === choicesOf) return;
  choicesOf = known;
  const choice = find("#group"), names = differing(store.summaries.map(({ run }) => run), store.settings);
  if (view.group && view.group !== "seeds" && !names.includes(view.group)) names.push(view.group);
  const options = [["", "folder"], ["seeds", "all settings but the seed"], ...names.map((name) => [name, name])];
  if (choice.options.length !== options.length) {
    choice.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  }
  choice.value = view.group;
}

// Waits until the curves of all selected runs are in a chart, as before it is downloaded.
async function complete(id) {
  charts.see(id);
  follow();
  for (let waits = 0; waits < MAX_WAITS && !stream.isSettled(); waits++) {
    await new Promise((done) => setTimeout(done, 50));
  }
  redraw();
  charts.flush(id);
}

// groups: of the selected runs, or null to draw each run by itself
function drawCharts(groups, slots) {
  const byName = new Map(shownRuns.map((run) => [run.summary.run, run]));
  const bands = groups?.map((group) => ({ ...group, slot: slots.get(`group ${group.key}`),
    runs: group.runs.map(({ run }) => byName.get(run)) })) ?? null;
  const revision = JSON.stringify([
    shownRuns.map(({ summary, name, slot, revision: held }) =>
      [summary.run, name, slot, held, summary.controlled]),
    bands?.map(({ key, runs }) => [key, runs.length]), shownFocus?.summary.run, view.smooth,
    theme.isDark(), find("#more").open,
  ]);
  if (revision !== specsOf) {
    specsOf = revision;
    specs = describeCharts(shownRuns, bands, shownFocus, view.smooth);
  }
  const [low, high] = shownFocus?.summary.reach ?? [];
  const reach = { low, high, draft: steer.draftTarget(shownFocus?.summary.run) };
  charts.draw(specs, { view, revision, reach, marks: shownFocus?.marks ?? [] }, chartActions);
  follow();
  find("#smooth").value = view.smooth;
  setText(find("#smooth-value"), view.smooth ? view.smooth.toFixed(2) : "off");
  find("#reset-zoom").hidden = !view.zoom;
}

function drawEmpty() {
  const empty = find("#empty"), waiting = shownRuns.filter(({ log }) => !log);
  empty.hidden = shownRuns.some(({ log }) => log);
  if (empty.hidden) return;
  const text = !store.isLoaded ? "loading …"
    : !store.summaries.length ? "No runs here yet. Train one: controlvae train shapes2d-quick"
    : !shownRuns.length ? "Select runs in the list."
    : waiting.some(({ summary }) => summary.step > 0) ? "loading …" : "Nothing is logged yet.";
  setText(empty, text);
}

// The run and its number, with a dot while it trains, for a glance at the tab.
function drawTitle() {
  const summary = shownFocus?.summary;
  if (!summary) {
    document.title = "controlvae";
    return;
  }
  const measured = summary.latest[summary.controlled];
  const name = list.quantityName(summary.controlled, summary.latest);
  const value = measured == null ? "" : ` · ${name} ${number(measured)}`;
  document.title = `${summary.state === "training" ? "● " : ""}${shownFocus.name}${value} · controlvae`;
}

function listen() {
  const filter = find("#filter");
  filter.value = view.filter;
  filter.addEventListener("input", debounce(() => change({ filter: filter.value }), 60));
  find("#group").addEventListener("focus", () =>
    loadSettings(store.summaries.map(({ run }) => run)).then((isNew) => isNew && refresh()));
  find("#group").addEventListener("change", ({ target }) => change({ group: target.value }));
  const all = () => select(listed.filter((each) => !each.error).map(({ run }) => run), true);
  const none = () => select(view.filter ? listed.map(({ run }) => run) : [...(view.runs ?? [])], false);
  find("#all").addEventListener("click", all);
  find("#none").addEventListener("click", none);
  find("#smooth").addEventListener("input", ({ target }) => change({ smooth: Number(target.value) }));
  find("#reset-zoom").addEventListener("click", () => change({ zoom: null }));
  find("#more").addEventListener("toggle", refresh);
  find("#fold").addEventListener("click", fold);
  list.listenToKeys(find("#runs"), showRun);
  keys.setUp({ "/": () => filter.focus(), a: all, n: none, "[": () => step(-1), "]": () => step(1),
    z: () => change({ zoom: null }), t: theme.cycle, s: () => find("#steer-field").focus() });
  addEventListener("hashchange", () => {
    if (!isForeign()) return;
    readAddress();
    filter.value = view.filter;
    follow();
    refresh();
  });
}

// On a phone the list of runs folds.
function fold() {
  const isOpen = find("nav").classList.toggle("open");
  find("#fold").setAttribute("aria-expanded", isOpen);
}

readAddress();
theme.setUp(() => {
  charts.redrawAll();
  refresh();
});
charts.onSeen(follow);
steer.setUp(refresh);
tables.setUp(refresh);
listen();
stream.setUp({
  onChange(kind) {
    if (view.runs === null && store.summaries.length) selectDefault();
    if (kind === "runs") setText(find("#root"), store.root);
    if (kind === "runs" || kind === "changes") follow();
    refreshSoon();
  },
  onState: (isConnected) => setText(find("#lost"), isConnected ? "" : "The server does not respond; retrying."),
});
follow();
refresh();
