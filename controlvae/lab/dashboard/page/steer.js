// The target of a run: a slider and a field that show today's target, and what became of a request.

import { find, getJson, make, setAttribute, setChildren, setText } from "./dom.js";
import { number, plain, step } from "./format.js";

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
  (shown && shown.run === run && shown.isDraft ? Number(find("#steer-slider").value) : null);

function draft() {
  shown.isDraft = true;
  shown.error = "";
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
  const isEdited = shown.isDraft || document.activeElement === find("#steer-field");
  if (moved && !isEdited) showTarget();
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
  shown.note = "sending …";
  drawOutcome(shown.summary, false);
  const answer = await getJson("/target", { run }, { method: "POST",
    headers: { "content-type": "application/json" }, body: JSON.stringify({ target }) });
  if (shown?.run !== run) return;
  shown.error = answer.error ?? "";
  shown.note = answer.note ?? "";
  if (!answer.error) {
    shown.isDraft = false;
    shown.target = target;
    shown.sent = target;
    onDraft();
  }
  drawOutcome(shown.summary, false);
}

// Three stages: asked, applied, reached.
function drawOutcome(summary, isReadOnly) {
  const { steering } = summary, stages = stagesOf(summary);
  const place = find("#steer-stages");
  setChildren(place, stages.map(({ text, state }, at) => {
    const item = place.children[at] ?? make("li");
    setText(item, text);
    setAttribute(item, "class", state);
    return item;
  }));
  setText(find("#steer-status"), isReadOnly ? "Targets cannot be moved: this page is read-only." : words(summary, steering));
  setAttribute(find("#steer-status"), "class", shown.error ? "refused" : "quiet");
  find("#steer-undo").hidden = !shown.isDraft && !shown.error;
}

function stagesOf({ steering, state }) {
  if (!steering || (steering.asked == null && !steering.applied)) return [];
  const { asked, applied, outcome } = steering;
  const isPending = outcome === "asked";
  const when = state === "training" ? "waiting for training" : "applied when resumed";
  return [
    { text: `asked ${number(isPending ? asked : applied.target)}`, state: "done" },
    isPending ? { text: when, state: "now" } : { text: `applied at step ${step(applied.step)}`, state: "done" },
    { text: outcome === "out of reach" ? "out of reach" : "reached",
      state: isPending ? "later" : outcome === "approaching" ? "now" : outcome === "reached" ? "done" : "failed" },
  ];
}

// What happened, in one sentence; a screen reader hears it when it changes.
function words({ reach, state }, steering) {
  if (shown.error) return shown.error;
  if (shown.note === "sending …") return shown.note;
  const note = shown.note ? `${shown.note}. ` : "";
  const [low, high] = reach ?? [];
  const range = low != null && high != null ? ` In reach: ${number(low)} to ${number(high)}.`
    : high != null ? ` In reach: up to ${number(high)}.` : low != null ? ` In reach: ${number(low)} and more.` : "";
  switch (steering?.outcome) {
    case "asked": return `${note}Asked for ${number(steering.asked)} nats; ${state === "training"
      ? "training applies it within a second" : "applied when the run is resumed"}.`;
    case "approaching": return `${note}Applied at step ${step(steering.applied.step)}; approaching ${number(steering.applied.target)} nats.`;
    case "reached": return `${note}Reached ${number(steering.applied.target)} nats.${range}`;
    case "out of reach": return `${note}${number(steering.applied?.target ?? shown.target)} nats is out of reach.${range}`;
    default: return `${note}Training follows a new target within a second.${range}`;
  }
}
