// The list of runs, grouped by folder.

import { element, fixed } from "./element.js";

const items = new Map(); // name -> its elements

export const short = (run, parts = 1) => (run === "." ? "this run" : run.split("/").slice(-parts).join("/"));
export const home = (run) => run.split("/").slice(0, -1).join("/");

// selected: names of the ticked runs; colours: of the drawn runs; onSelect: called with the new names
export function draw(place, root, summaries, selected, colours, onSelect) {
  const groups = Map.groupBy(summaries, (each) => home(each.run));
  for (const inside of groups.values()) inside.sort((a, b) => a.run.localeCompare(b.run, "en", { numeric: true }));
  const active = document.activeElement;
  const entries = [...groups].flatMap(([where, inside]) => [
    ...(where || groups.size > 1 ? [heading(where || root)] : []), ...inside.map((each) => entry(each, selected, colours, onSelect))]);
  if (entries.length === place.children.length && entries.every((each, at) => each === place.children[at])) return;
  const hasFocus = place.contains(active);
  place.replaceChildren(...entries);
  if (hasFocus) active.focus();
}

// An entry stays the same element while its numbers change, so that a click is not lost.
function cached(name, make) {
  if (!items.has(name)) items.set(name, make());
  return items.get(name);
}

const heading = (where) => cached(`of ${where}`, () => element("h3", "", where));

function entry(summary, selected, colours, onSelect) {
  const { box, tick, state, detail, bar } = cached(`run ${summary.run}`, () => makeEntry(summary.run));
  tick.checked = selected.includes(summary.run);
  tick.onchange = () => onSelect(tick.checked ? [...selected, summary.run] : selected.filter((run) => run !== summary.run));
  box.style.setProperty("--colour", colours.get(summary.run) ?? "");
  state.className = `state ${summary.error ? "unreadable" : summary.state.split(" ")[0]}`;
  state.textContent = summary.error ? "unreadable" : summary.state;
  detail.textContent = summary.error ?? describeNumbers(summary);
  bar.hidden = summary.state !== "training";
  if (!bar.hidden) Object.assign(bar, { max: summary.steps, value: summary.step });
  return box;
}

function makeEntry(run) {
  const box = element("label", "run"), tick = element("input");
  tick.type = "checkbox";
  const [state, detail, bar] = [element("span"), element("span", "detail"), element("progress")];
  box.append(tick, element("span", "name", short(run)), state, detail, bar);
  return { box, tick, state, detail, bar };
}

function describeNumbers({ latest, controlled, target, step, speed, seconds_left }) {
  if (!step) return "";
  const pace = speed == null ? "" : `   ${fixed(speed)} steps/s, ${duration(seconds_left)} left`;
  const aim = target == null ? "" : ` / ${fixed(target)}`;
  const tc = "critic_accuracy" in latest ? "TC" : "tc_bias" in latest ? "batch TC" : "biased TC"; // version 0.1 logged the bias too
  return `${{ kl: "KL", tc, reconstruction: "rec" }[controlled]} ${fixed(latest[controlled])}${aim}   β ${fixed(latest.beta)}${pace}`;
}

const duration = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
