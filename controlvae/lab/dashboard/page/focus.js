// The focused run: its state, its target and its model.

import { element, fixed, setText } from "./element.js";
import { short } from "./list.js";
import * as model from "./model.js";

const speeds = new Map(); // run -> [[time, step], ...]

// The log has no clock, so steps per second are measured here, over the last half minute.
export function recordSpeed(summary) {
  if (summary.error) return;
  const seen = (speeds.get(summary.run) ?? []).filter(([time, step]) => time > Date.now() - 30_000 && step <= summary.step);
  seen.push([Date.now(), summary.step]);
  speeds.set(summary.run, seen);
}

function speed({ run }) {
  const seen = speeds.get(run) ?? [];
  const [[from, begun], [to, step]] = [seen[0] ?? [0, 0], seen.at(-1) ?? [0, 0]];
  return to - from > 2_000 ? (1000 * (step - begun)) / (to - from) : 0;
}

// runs: the selected runs; focus: the focused one or null; onFocus: called with the next one
export function draw(section, root, runs, focus, onFocus) {
  section.hidden = focus === null;
  model.draw(section.querySelector(".model"), focus);
  if (focus === null) return;
  const { summary } = focus, select = section.querySelector("select");
  setText(section.querySelector("h2"), summary.preset);
  const names = runs.map((run) => run.summary.run);
  if ([...select.options].map((option) => option.value).join() !== names.join()) {
    select.replaceChildren(...names.map((name) => new Option(name === "." ? short(name) : name, name)));
  }
  select.value = summary.run;
  select.onchange = () => onFocus(select.value);
  setText(section.querySelector(".state-line"), describeState(summary, root));
  showWarnings(section.querySelector(".warnings"), summary.warnings);
  showTarget(section.querySelector(".steer"), summary);
}

function showWarnings(place, lines) {
  if (place.textContent !== lines.join("")) place.replaceChildren(...lines.map((line) => element("p", "warning", line)));
}

function describeState(summary, root) {
  const rate = summary.state === "training" ? speed(summary) : 0;
  const left = rate > 0 ? (summary.steps - summary.step) / rate : 0;
  const time = left > 5400 ? `${(left / 3600).toFixed(1)} h` : left > 90 ? `${Math.round(left / 60)} min` : `${Math.round(left)} s`;
  const pace = rate > 0 ? ` · ${rate >= 10 ? Math.round(rate) : rate.toPrecision(2)} steps/s · ${time} left` : "";
  const hint = ["stopped", "interrupted"].includes(summary.state) ? ` · resume with: controlvae resume ${quoted(path(root, summary))}` : "";
  return `${summary.state} · step ${summary.step.toLocaleString("en")} of ${summary.steps.toLocaleString("en")}${pace} · ${summary.law}${hint}`;
}

const path = (root, { run }) => (run === "." ? root : `${root}/${run}`);
const quoted = (path) => (/^[\w./=+:,-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`); // for the shell

function showTarget(form, summary) {
  form.hidden = !summary.steerable;
  const [slider, number] = form.querySelectorAll("input"), message = form.querySelector("output");
  const { target } = summary;
  if (form.dataset.run !== summary.run && target != null) {
    form.dataset.run = summary.run;
    form.dataset.message = "";
    const top = Number((2 * Math.max(Math.abs(target), Math.abs(summary.latest[summary.controlled] ?? 0))).toPrecision(3));
    Object.assign(slider, { min: target < 0 ? -top : 0, max: top, value: target });
    number.value = fixed(target);
  }
  slider.oninput = () => { number.value = fixed(Number(slider.value)); };
  number.oninput = () => { slider.value = number.value; };
  const waiting = summary.state === "training" ? "requested; applied within a second" : "requested; applied when the run is resumed";
  setText(message, summary.request ? waiting : form.dataset.message ?? "");
  form.onsubmit = async (event) => {
    event.preventDefault();
    const answer = await fetch(`/target?${new URLSearchParams({ run: summary.run })}`, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ target: Number(number.value) }),
    }).catch(() => null);
    form.dataset.message = answer === null ? "the server does not respond" : (await answer.json()).error ?? "";
    if (form.dataset.message) setText(message, form.dataset.message);
  };
}
