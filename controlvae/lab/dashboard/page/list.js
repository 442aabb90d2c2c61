// The list of runs, in groups with one tick each. Arrow keys go from run to run.

import { colourOf, dashOf } from "./colours.js";
import { make, makeSvg, setAttribute, setChildren, setText } from "./dom.js";
import { duration, number, pace, shortNames, step } from "./format.js";
import { isDark } from "./theme.js";

const entries = new Map(); // run -> its elements
const headings = new Map(); // group -> its elements
let inView = null; // run that the list was scrolled to
const QUANTITIES = { kl: "KL", reconstruction: "rec" };

// groups: [{key, label, runs}]; state: {selected: Set, slots: Map, focus, byGroup}
// actions: {select(names, isOn), focus(name)}
export function draw(place, groups, state, actions) {
  const children = [];
  for (const group of groups) {
    if (groups.length > 1 || group.key) children.push(heading(group, state, actions));
    const names = shortNames(group.runs.map(({ run }) => run));
    for (const summary of group.runs) {
      children.push(entry(summary, names.get(summary.run), state, actions));
    }
  }
  setChildren(place, children);
  makeOneTabStop(place, state.focus);
  if (state.focus !== inView && children.length) {
    inView = state.focus;
    entries.get(inView)?.box.scrollIntoView({ block: "nearest" });
  }
}

// Tab enters the list once, at the focused run or the first one.
function makeOneTabStop(place, focus) {
  const ticks = [...place.querySelectorAll(".tick")];
  const current = ticks.find((tick) => tick === document.activeElement) ??
    ticks.find((tick) => tick.dataset.run === focus) ?? ticks[0];
  for (const tick of ticks) setAttribute(tick, "tabindex", tick === current ? 0 : -1);
}

function heading(group, { selected, slots, byGroup }, { select }) {
  if (!headings.has(group.key)) {
    const tick = make("input", { type: "checkbox", class: "tick" });
    const label = make("span", { class: "name" }), count = make("span", { class: "quiet" });
    const swatch = makeSwatch();
    const box = make("div", { class: "group", role: "listitem" },
      make("label", {}, tick, swatch.box, label), count);
    headings.set(group.key, { box, tick, label, count, swatch });
  }
  const { box, tick, label, count, swatch } = headings.get(group.key);
  const names = group.runs.filter((each) => !each.error).map(({ run }) => run);
  const chosen = names.filter((run) => selected.has(run)).length;
  tick.checked = chosen > 0 && chosen === names.length;
  tick.indeterminate = chosen > 0 && chosen < names.length;
  tick.onchange = () => select(names, tick.checked);
  setAttribute(tick, "aria-label", `All of ${group.label}`);
  setText(label, group.label);
  setAttribute(label, "title", group.label);
  setText(count, chosen ? `${chosen} of ${names.length}` : String(names.length));
  showSwatch(swatch, byGroup && chosen ? slots.get(`group ${group.key}`) : undefined);
  return box;
}

function entry(summary, name, { selected, slots, focus, byGroup }, { select, focus: onFocus }) {
  const { run } = summary;
  if (!entries.has(run)) entries.set(run, makeEntry(run));
  const parts = entries.get(run), { box, tick, title, state, detail, bar, swatch } = parts;
  const slot = byGroup ? undefined : slots.get(run);
  const shown = [summary, name, selected.has(run), slot, run === focus, isDark()];
  if (shown.every((each, at) => each === parts.shown?.[at])) return box;
  parts.shown = shown;
  tick.checked = selected.has(run);
  tick.disabled = Boolean(summary.error);
  tick.onchange = () => select([run], tick.checked);
  title.onclick = () => onFocus(run);
  setText(title, name);
  setAttribute(title, "title", run);
  setAttribute(title, "aria-label", `Show ${name}`);
  setAttribute(tick, "aria-label", run === "." ? name : run);
  setAttribute(box, "aria-current", run === focus ? "true" : null);
  const word = summary.error ? "unreadable" : summary.state;
  setAttribute(state, "class", `state ${word.replace(/\W+/g, "-")}`);
  setText(state, word);
  setText(detail, summary.error ?? describeNumbers(summary));
  showSwatch(swatch, slot);
  const training = summary.state === "training";
  bar.hidden = !training;
  if (training) {
    setAttribute(bar, "max", summary.steps);
    setAttribute(bar, "value", summary.step);
  }
  return box;
}

function makeEntry(run) {
  const id = `run-${entries.size}`;
  const tick = make("input", { type: "checkbox", class: "tick", "data-run": run,
    "aria-describedby": `${id}-state ${id}-detail` });
  const title = make("button", { type: "button", class: "name", tabindex: -1 });
  const state = make("span", { id: `${id}-state` }), detail = make("span", { class: "detail", id: `${id}-detail` });
  const bar = make("progress", { "aria-label": "Progress of training" }), swatch = makeSwatch();
  return { tick, title, state, detail, bar, swatch,
    box: make("div", { class: "run", role: "listitem" }, tick, swatch.box, title, state, detail, bar) };
}

function makeSwatch() {
  const line = makeSvg("line", { x1: 0, y1: 5, x2: 20, y2: 5, "stroke-width": 3 });
  const box = makeSvg("svg", { class: "swatch", width: 20, height: 10, "aria-hidden": "true" }, line);
  return { line, box };
}

function showSwatch({ line, box }, slot) {
  setAttribute(box, "class", `swatch${slot === undefined ? " empty" : ""}`);
  if (slot === undefined) return;
  setAttribute(line, "stroke", colourOf(slot));
  setAttribute(line, "stroke-dasharray", dashOf(slot)?.map((length) => Math.min(length, 5)).join(" "));
}

export function describeNumbers({ latest, controlled, target, step: at, speed, seconds_left: left }) {
  if (!at) return "";
  const progress = speed == null ? "" : ` · ${pace(speed)}, ${duration(left)} left`;
  const aim = target == null ? "" : ` / ${number(target)}`;
  const measured = `${quantityName(controlled, latest)} ${number(latest[controlled])}`;
  return `${measured}${aim} · β ${number(latest.beta)}${progress}`;
}

// Version 0.1 logged the total correlation with the bias of its batch estimate.
export function quantityName(controlled, latest) {
  if (controlled !== "tc") return QUANTITIES[controlled] ?? controlled;
  return "critic_accuracy" in latest ? "TC" : "tc_bias" in latest ? "batch TC" : "biased TC";
}

// Arrow keys, Home and End move the focus; Enter shows the run.
export function listenToKeys(place, onFocus) {
  place.addEventListener("keydown", (event) => {
    const active = document.activeElement, ticks = [...place.querySelectorAll(".tick:not(:disabled)")];
    const at = ticks.indexOf(active);
    if (at < 0) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: ticks.length - 1 }[event.key];
    if (event.key === "Enter" && active.dataset.run) onFocus(active.dataset.run);
    else if (to === undefined || !ticks[to]) return;
    else {
      ticks[at].tabIndex = -1;
      ticks[to].tabIndex = 0;
      ticks[to].focus();
    }
    event.preventDefault();
  });
}

export const describeProgress = ({ step: at, steps }) => `step ${step(at)} of ${step(steps)}`;
