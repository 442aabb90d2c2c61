// The view, which the address holds: selection, focused run, filter, grouping, smoothing, logarithmic
// axes, zoom and hidden curves. A copied address opens the same view.

const START = {
  runs: null, // names of the selected runs; null selects some by default
  focus: null, // the run whose state, target and latents are shown
  filter: "",
  group: "", // "" by folder, "seeds" by all settings but the seed, or the name of a setting
  smooth: 0,
  log: [], // charts with a logarithmic axis
  zoom: null, // [first step, last step]
  hidden: [], // keys of hidden curves
};

export const view = { ...START };
let written = null; // the address as this page has written it

export function readAddress() {
  Object.assign(view, START, parse(location.hash.slice(1)));
  written = location.hash;
}

function parse(text) {
  if (/^(%5B|\[)/i.test(text)) return { runs: listOfNames(text) }; // addresses of version 0.2
  const query = new URLSearchParams(text), found = {};
  if (query.has("run") || query.has("none")) found.runs = query.getAll("run");
  for (const name of ["focus", "filter", "group"]) {
    if (query.has(name)) found[name] = query.get(name);
  }
  for (const name of ["log", "hidden"]) if (query.has(name)) found[name] = query.getAll(name);
  const smooth = Number(query.get("smooth"));
  if (smooth > 0 && smooth < 1) found.smooth = smooth;
  const zoom = (query.get("zoom") ?? "").split("..").map(Number);
  if (zoom.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1]) found.zoom = zoom;
  return found;
}

function listOfNames(text) {
  try {
    const runs = JSON.parse(decodeURIComponent(text));
    return Array.isArray(runs) ? runs.filter((run) => typeof run === "string") : null;
  } catch {
    return null;
  }
}

export function writeAddress() {
  const query = new URLSearchParams();
  for (const run of view.runs ?? []) query.append("run", run);
  if (view.runs?.length === 0) query.append("none", "");
  for (const name of ["focus", "filter", "group"]) if (view[name]) query.append(name, view[name]);
  if (view.smooth) query.append("smooth", view.smooth);
  for (const name of ["log", "hidden"]) for (const each of view[name]) query.append(name, each);
  if (view.zoom) query.append("zoom", view.zoom.map((step) => Math.round(step)).join(".."));
  const text = `#${query}`.replaceAll("%2F", "/");
  if (text === written || (text === "#" && !location.hash)) return;
  history.replaceState(null, "", text);
  written = location.hash;
}

// True if the address was changed by the user and not by this page.
export const isForeign = () => location.hash !== written;

// Adds a name to a list or takes it out.
export const toggled = (names, name) =>
  names.includes(name) ? names.filter((each) => each !== name) : [...names, name];
