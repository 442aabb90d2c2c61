// All charts of the page. They share their cursor and their zoom.

import { Chart } from "./chart.js";
import { find, setChildren } from "./dom.js";

const charts = new Map(); // id -> Chart
const drawn = new Map(); // id -> text that tells whether anything of it has changed
const waiting = new Map(); // id -> function that draws it, for charts off the screen
const seen = new Set(); // ids of the charts that have been on the screen, or opened under "more"
const MARGIN = 150; // pixels around the screen

// specs: of describeCharts; options: {view, marks, reach, revision}; actions: see Chart.
// revision is a text that changes with the numbers of the selected runs.
export function draw(specs, options, actions) {
  for (const [id, chart] of charts) {
    if (specs.some((spec) => spec.id === id)) continue;
    chart.destroy();
    charts.delete(id);
    drawn.delete(id);
    waiting.delete(id);
  }
  const places = { stage: find("#stage"), grid: find("#grid"), more: find("#more-charts") };
  const more = find("#more");
  for (const [name, place] of Object.entries(places)) {
    const inside = specs.filter((spec) => spec.place === name);
    for (const spec of inside) {
      if (!charts.has(spec.id)) charts.set(spec.id, new Chart(spec, actions));
    }
    setChildren(place, inside.map((spec) => charts.get(spec.id).box));
    if (name === "more") more.hidden = !inside.length;
    if (name === "more" && !more.open) continue; // drawn when it is opened
    for (const spec of inside) update(spec, options);
  }
  noteSeen();
}

// A chart on the screen is drawn at once; others when they come into view, or when nothing else is to do.
function update(spec, { view, marks, reach, revision }) {
  const own = { isLog: view.log.includes(spec.id), zoom: view.zoom, hidden: view.hidden,
    reach: spec.isControlled ? reach : null };
  const text = JSON.stringify([revision, own]);
  if (drawn.get(spec.id) === text) return;
  drawn.set(spec.id, text);
  waiting.set(spec.id, () => charts.get(spec.id)?.update(spec, marks, own));
  if (isNear(charts.get(spec.id).box)) flush(spec.id);
  else requestIdleCallback(flushNext);
}

// Draws a chart now if it waits to be drawn.
export function flush(id) {
  const draw = waiting.get(id);
  waiting.delete(id);
  draw?.();
}

function flushNext() {
  const [next] = waiting.keys();
  if (next === undefined) return;
  flush(next);
  if (waiting.size) requestIdleCallback(flushNext);
}

function isNear(box) {
  const { top, bottom } = box.getBoundingClientRect();
  return bottom > -MARGIN && top < innerHeight + MARGIN;
}

// Notes the charts that are on the screen. Returns true if there are new ones.
function noteSeen() {
  const before = seen.size;
  for (const [id, { box }] of charts) {
    if (!seen.has(id) && box.isConnected && box.checkVisibility() && isNear(box)) seen.add(id);
  }
  return seen.size > before;
}

// Calls a function when further charts have come into view.
export function onSeen(call) {
  addEventListener("scroll", () => noteSeen() && call(), { passive: true });
  addEventListener("resize", () => noteSeen() && call());
}

// Counts a chart as seen from now on.
export const see = (id) => seen.add(id);

// Columns of the log that the charts show that have been on the screen.
export const seenColumns = (specs) =>
  [...new Set(specs.filter(({ id }) => seen.has(id)).flatMap(({ columns }) => columns))];

addEventListener("scroll", () => {
  for (const id of [...waiting.keys()]) if (isNear(charts.get(id).box)) flush(id);
}, { passive: true });

// Draws the canvases again, as after a change of the theme.
export function redrawAll() {
  drawn.clear();
}
