// All charts of the page. They share their cursor and their zoom.

import { Chart } from "./chart.js";
import { find, setChildren } from "./dom.js";

const charts = new Map(); // id -> Chart
const drawn = new Map(); // id -> text that tells whether anything of it has changed

// specs: of describeCharts; options: {view, marks, reach, revision}; actions: see Chart.
// revision is a text that changes with the numbers of the selected runs.
export function draw(specs, options, actions) {
  for (const [id, chart] of charts) {
    if (specs.some((spec) => spec.id === id)) continue;
    chart.destroy();
    charts.delete(id);
    drawn.delete(id);
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
}

function update(spec, { view, marks, reach, revision }) {
  const own = { isLog: view.log.includes(spec.id), zoom: view.zoom, hidden: view.hidden,
    reach: spec.isControlled ? reach : null };
  const text = JSON.stringify([revision, own]);
  if (drawn.get(spec.id) === text) return;
  drawn.set(spec.id, text);
  charts.get(spec.id).update(spec, marks, own);
}

// Draws the canvases again, as after a change of the theme.
export function redrawAll() {
  drawn.clear();
}
