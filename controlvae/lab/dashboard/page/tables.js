// Tables of the selected runs: their metrics, and the settings in which they differ.

import { find, getJson, make, setText } from "./dom.js";
import { differing } from "./groups.js";
import { loadSettings, store } from "./store.js";

const MAX_RUNS = 30; // columns of a table
let metricsOf = ""; // runs and steps whose metrics are shown

export function setUp(redraw) {
  for (const id of ["#metrics", "#settings"]) find(id).addEventListener("toggle", redraw);
  find("#all-settings").addEventListener("change", redraw);
}

// runs: the selected runs, with or without a log
export function draw(runs) {
  const some = runs.slice(0, MAX_RUNS);
  find("#tables").hidden = !some.length;
  find("#tables-note").hidden = runs.length <= MAX_RUNS;
  setText(find("#tables-note"), `The tables show the first ${MAX_RUNS} of ${runs.length} selected runs.`);
  if (find("#metrics").open) drawMetrics(some);
  if (find("#settings").open) drawSettings(some);
}

async function drawMetrics(runs) {
  const key = JSON.stringify(runs.map(({ summary, name }) => [summary.run, name, summary.state]));
  if (key === metricsOf) return;
  metricsOf = key;
  const place = find("#metrics-table");
  const found = await getJson("/metrics", runs.map(({ summary }) => ["run", summary.run]));
  if (metricsOf !== key) return; // other runs were selected meanwhile
  if (found.error) {
    metricsOf = "";
    place.replaceChildren(make("p", { class: "quiet" }, `No metrics: ${found.error}.`));
  } else if (!found.metrics.length) {
    place.replaceChildren(make("p", { class: "quiet" }, "Not evaluated yet. Evaluate a run: ",
      make("code", {}, "controlvae evaluate RUN")));
  } else {
    place.replaceChildren(table(runs, found.metrics.map(metricRow)));
  }
}

function metricRow({ label, unit, better, decimals, values }) {
  const numbers = values.filter((value) => value != null);
  const best = !better || new Set(numbers).size < 2 ? null
    : better === "higher" ? Math.max(...numbers) : Math.min(...numbers);
  const hint = better ? ` (${better === "higher" ? "↑" : "↓"})` : "";
  const cells = values.map((value) => {
    if (value == null) return make("td", { class: "quiet" }, "–");
    const text = value.toFixed(decimals ?? 3).replace("-", "−");
    return value === best
      ? make("td", { class: "best" }, make("b", {}, text),
        make("span", { class: "hidden-text" }, " best"))
      : make("td", {}, text);
  });
  const title = better ? `${better} is better` : null;
  const name = unit && !label.endsWith(unit) ? `${label}, ${unit}` : label;
  return make("tr", {}, make("th", { scope: "row", title }, `${name}${hint}`), ...cells);
}

let settingsOf = "", settingsWanted = "";

async function drawSettings(runs) {
  const names = runs.map(({ summary }) => summary.run);
  settingsWanted = JSON.stringify(names);
  await loadSettings(names);
  if (JSON.stringify(names) !== settingsWanted) return; // other runs were selected meanwhile
  const all = find("#all-settings").checked, key = JSON.stringify([names, all]);
  if (key === settingsOf) return;
  settingsOf = key;
  const place = find("#settings-table");
  const shown = all
    ? [...new Set(names.flatMap((run) => Object.keys(store.settings.get(run) ?? {})))]
    : differing(names, store.settings);
  if (!shown.length) {
    const text = names.length > 1 ? "These runs have the same settings."
      : "Select several runs to compare their settings.";
    place.replaceChildren(make("p", { class: "quiet" }, text));
    return;
  }
  place.replaceChildren(table(runs, shown.map((name) => settingRow(name, names))));
}

function settingRow(name, runs) {
  const values = runs.map((run) => store.settings.get(run)?.[name]);
  return make("tr", {}, make("th", { scope: "row" }, name), ...values.map((value) =>
    (value == null ? make("td", { class: "quiet" }, "–")
      : make("td", {}, typeof value === "object" ? JSON.stringify(value) : String(value)))));
}

function table(runs, rows) {
  const heads = runs.map(({ name, summary }) => make("th", { scope: "col", title: summary.run }, name));
  const head = make("thead", {}, make("tr", {}, make("td", {}), ...heads));
  return make("table", {}, head, make("tbody", {}, ...rows));
}
