// The target of a run: a slider and a field that show today's target, and what became of a request.

import { find, getJson, make, setAttribute, setChildren, setText } from "./dom.js";
import { number, plain, step } from "./format.js";

const OUTCOMES = { approaching: "now", reached: "done", "out of reach": "failed" };
let shown = null; // {run, target, isDraft, note, error}
let onDraft = () => {};

export function setUp(callback) {
  onDraft = callback;
  const form = find("#steer"), [slider, field] = form.querySelectorAll("input");
  slider.addEventListener("input", () => {
    field.value = plain(Number(slider.value));
    draft();
  });
  field.addEventListener("input", () => {
    slider.value = field.value;
    draft();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(Number(field.value));
  });
  find("#steer-undo").addEventListener("click", () => {
    shown.isDraft = false;
    shown.error = "";
    showTarget();
    onDraft();
  });
}

// Target that the user has set but not sent, or null.
export const draftTarget = (run) =>
  (shown && shown.run === run && shown.isDraft ? Number(find("#steer-field").value) : null);

function draft() {
  Object.assign(shown, { isDraft: true, error: "", note: "" });
  setSliderText();
  onDraft();
}

// focus: the focused run or null
export function draw(focus, isReadOnly) {
  const form = find("#steer"), summary = focus?.summary;
  form.hidden = !summary?.steerable;
  if (form.hidden) {
    shown = null;
    return;
  }
  const target = summary.steering?.asked ?? summary.target ?? 0;
  if (shown?.run !== summary.run) shown = { run: summary.run, isDraft: false, error: "", note: "" };
  const moved = shown.target !== target;
  Object.assign(shown, { target, summary });
  if (moved && !shown.isDraft) showTarget();
  setAttribute(find("fieldset", form), "disabled", isReadOnly);
  drawOutcome(summary, isReadOnly);
}

// Sets the slider and the field to the target in force or requested.
function showTarget() {
  const { summary, target } = shown, slider = find("#steer-slider");
  const [low, high] = sliderRange(summary, target);
  Object.assign(slider, { min: low, max: high });
  slider.value = target;
  find("#steer-field").value = plain(target);
  setSliderText();
  drawBand(summary, low, high);
}

function sliderRange({ reach, latest, controlled }, target) {
  const [least, most] = reach ?? [], measured = latest[controlled] ?? 0;
  const top = Math.max(2 * Math.abs(target), 1.3 * Math.abs(measured), 1.2 * Math.abs(most ?? 0));
  const bottom = Math.min(0, least ?? 0, 2 * target);
  return [bottom, Number((top || 1).toPrecision(2))];
}

// The part of the slider that is known to be in reach.
function drawBand({ reach }, low, high) {
  const [least, most] = reach ?? [], band = find("#steer-band");
  const share = (value) => 100 * Math.max(0, Math.min(1, (value - low) / (high - low)));
  band.hidden = least == null && most == null;
  band.style.left = `${least == null ? 0 : share(least)}%`;
  band.style.right = `${most == null ? 0 : 100 - share(most)}%`;
}

function setSliderText() {
  const slider = find("#steer-slider");
  setAttribute(slider, "aria-valuetext", `${number(Number(slider.value))} nats`);
}

async function send(target) {
  const { run } = shown;
  shown.error = "";
  const answer = await getJson("/target", { run }, { method: "POST",
    headers: { "content-type": "application/json" }, body: JSON.stringify({ target }) });
  if (shown?.run !== run) return;
  shown.error = answer.error ?? "";
  shown.note = answer.note ?? "";
  if (!answer.error) {
    shown.isDraft = false;
    shown.target = target;
    onDraft();
  }
  drawOutcome(shown.summary, false);
}

// Three stages: asked, applied, reached.
function drawOutcome(summary, isReadOnly) {
  const stages = stagesOf(summary), place = find("#steer-stages");
  setChildren(place, stages.map(({ text, state }, at) => {
    const item = place.children[at] ?? make("li");
    setText(item, text);
    setAttribute(item, "class", state);
    return item;
  }));
  const reach = describeReach(summary.reach ?? []);
  const text = isReadOnly ? "Targets cannot be moved: this page is read-only."
    : shown.error || [shown.note, describeOutcome(summary), reach].filter(Boolean).join(". ");
  setText(find("#steer-status"), text);
  // What the stages show already need not be read twice.
  const isShort = stages.length && !isReadOnly && !shown.error;
  const visible = isShort ? [shown.note, reach].filter(Boolean).join(". ") : text;
  setText(find("#steer-note"), visible);
  setAttribute(find("#steer-note"), "class", shown.error ? "refused" : "quiet");
  find("#steer-undo").hidden = !shown.isDraft && !shown.error;
}

function stagesOf({ steering, state }) {
  if (!steering || (steering.asked == null && !steering.applied)) return [];
  const { asked, applied, outcome } = steering;
  const isPending = outcome === "asked";
  const when = state === "training" ? "waiting for training" : "applied when resumed";
  return [
    { text: `asked ${number(isPending ? asked : applied.target)}`, state: "done" },
    isPending ? { text: when, state: "now" }
      : { text: `applied at step ${step(applied.step)}`, state: "done" },
    isPending ? { text: "reached", state: "later" } : { text: outcome, state: OUTCOMES[outcome] },
  ];
}

// What happened, in words that a screen reader says when they change.
function describeOutcome({ steering, state }) {
  const wanted = steering?.applied && `${number(steering.applied.target)} nats`;
  switch (steering?.outcome) {
    case "asked": return `Asked for ${number(steering.asked)} nats; ${state === "training"
      ? "training applies it within a second" : "applied when the run is resumed"}`;
    case "approaching": return `Applied at step ${step(steering.applied.step)}; approaching ${wanted}`;
    case "reached": return `Reached ${wanted}`;
    case "out of reach": return `${wanted ?? "The target"} is out of reach`;
    default: return state === "training" ? "Training follows a new target within a second"
      : "The run takes a new target when it is resumed";
  }
}

function describeReach([low, high]) {
  if (low != null && high != null) return `In reach: ${number(low)} to ${number(high)}`;
  if (high != null) return `In reach: up to ${number(high)}`;
  return low != null ? `In reach: ${number(low)} and more` : "";
}
