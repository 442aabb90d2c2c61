// The latent explorer: a slider for each latent of the newest checkpoint, and what it decodes to.
// Images are shown next to the original; sentences are written anew as a latent moves.

import { find, getJson, make, setAttribute, setChildren, setText } from "./dom.js";
import { number } from "./format.js";
import { imageOutput } from "./images.js";
import { drawNormal } from "./random.js";
import { textOutput } from "./sentences.js";

const MAX_EXAMPLE = 1e6; // the server wraps an index around the number of examples
let shown = null; // {run, checkpoint}
let state = null; // {view, code, rate, output, rows}

export function draw(run) {
  const place = find("#explorer"), checkpoint = run?.summary.checkpoint ?? null;
  place.hidden = run === null;
  const now = run === null ? null : { run: run.summary.run, checkpoint };
  if (now?.run === shown?.run && now?.checkpoint === shown?.checkpoint) return;
  const isNewRun = now?.run !== shown?.run;
  if (isNewRun) state = null;
  else if (find("#latents").matches(":has(:active)")) return; // a latent is moved; the checkpoint waits
  shown = now;
  if (now === null) return;
  if (checkpoint === null) say("No checkpoint yet: the latents appear with the first one.");
  else load(now, run.summary.shows, isNewRun);
}

function say(text, kind = "quiet") {
  find("#latents").replaceChildren();
  find("#outputs").replaceChildren();
  find("#explorer-buttons").replaceChildren();
  setText(find("#explorer-step"), "");
  find("#explorer-note").className = kind;
  setText(find("#explorer-note"), text);
}

async function load(now, kind, isNewRun) {
  if (isNewRun) say("loading the model and its data …");
  const kept = isNewRun ? null : state;
  const view = await ask("latents", { example: kept?.view.example, rate: kept?.rate });
  if (shown !== now) return; // another run was selected meanwhile
  if (view.error) {
    if (view.unreachable) shown = null;
    say(view.error, "warning");
    return;
  }
  // A reset asks for the posterior of the new weights; sliders that were moved stay where they are.
  const code = kept?.isMoved ? kept.code : [...view.code];
  const makeOutput = kind === "images" ? imageOutput : textOutput;
  state = { view, code, kind, isMoved: Boolean(kept?.isMoved), rate: kept?.rate ?? null,
    source: kept?.source ?? `example ${view.example}`, rows: kept?.rows ?? [],
    output: kept?.output ?? makeOutput({ address, exampleAddress, kind }) };
  show();
}

function show() {
  const { view } = state, { step, latents, among } = view;
  setText(find("#explorer-note"), "");
  const some = latents.length < among ? `, the ${latents.length} of largest KL of ${among}` : "";
  setText(find("#explorer-step"), `at step ${step.toLocaleString("en")}${some}`);
  const largest = Math.max(...latents.map(({ kl }) => kl), 0.01);
  // A row stays the same element under a new checkpoint, so that it keeps its focus and its images.
  const before = new Map(state.rows.map((row) => [row.latent, row]));
  state.rows = latents.map(({ latent }) => before.get(latent) ?? makeRow(latent));
  latents.forEach((latent, at) => describeRow(state.rows[at], latent, largest));
  setChildren(find("#latents"), state.rows.map(({ box }) => box));
  find("#latents").classList.toggle("with-strips", state.kind === "images");
  setChildren(find("#outputs"), [state.output.box]);
  if (!find("#code-source")) showButtons();
  state.output.showExample(view);
  refresh();
}

function makeRow(latent) {
  const slider = make("input", { type: "range", step: 0.05 });
  const name = make("span", { class: "name" }), nats = make("span", { class: "nats" });
  const value = make("output", { class: "value" }), bar = make("i");
  const strip = state.output.makeStrip?.(latent);
  const box = make("div", { class: "latent" }, name, make("span", { class: "bar" }, bar), nats,
    slider, value, ...(strip ? [strip.box] : []));
  const row = { latent, box, name, nats, bar, slider, value, strip };
  slider.addEventListener("input", () => {
    state.code[latent] = Number(slider.value);
    state.isMoved = true;
    showValue(row);
    paint();
  });
  slider.addEventListener("dblclick", () => setCode(state.code.with(latent, state.view.code[latent]), true));
  return row;
}

function describeRow({ name: label, nats, bar, slider, strip }, { name, kl }, largest) {
  setText(label, name);
  setText(nats, `${kl.toFixed(2)} nats`);
  bar.style.width = `${Math.max(1, (100 * kl) / largest)}%`;
  setAttribute(slider, "aria-label", name);
  if (strip) setAttribute(strip.box, "alt", `${name} from −${state.view.reach} to ${state.view.reach}`);
}

// Ends of a slider: the reach of the prior, and the posterior where that is outside, as under the
// learnt prior of a dialog.
function limits({ reach, code, sd }, latent) {
  const room = 2 * (sd?.[latent] ?? 0);
  return [Math.floor(Math.min(-reach, code[latent] - room)), Math.ceil(Math.max(reach, code[latent] + room))];
}

function showValue({ latent, slider, value }) {
  const now = state.code[latent], { code, sd } = state.view;
  const text = signed(now);
  setText(value, text);
  const posterior = `posterior ${signed(code[latent])} ± ${(sd?.[latent] ?? 0).toFixed(2)}`;
  setAttribute(slider, "aria-valuetext", `${text}, ${posterior}`);
  setAttribute(slider, "title", `posterior mean ${number(code[latent])}, sd ${number(sd?.[latent])}`);
}

const signed = (value) => `${value <= -0.005 ? "−" : ""}${Math.abs(value).toFixed(2)}`;

// Shows the code at the sliders, and decodes it.
function refresh() {
  for (const row of state.rows) {
    const [min, max] = limits(state.view, row.latent);
    Object.assign(row.slider, { min, max });
    row.slider.value = state.code[row.latent];
    showValue(row);
  }
  paint();
}

function paint() {
  state.output.paint();
  for (const { strip } of state.rows) strip?.paint();
  const reset = find("#reset-code");
  if (reset) reset.disabled = !state.isMoved;
}

function setCode(code, isMoved) {
  Object.assign(state, { code, isMoved });
  refresh();
}

function showButtons() {
  const button = (text, onclick, more = {}) => make("button", { type: "button", onclick, ...more }, text);
  const source = make("span", { class: "quiet", id: "code-source", role: "status" });
  const buttons = [
    button("Reset", () => {
      setSource(`example ${state.view.example}`);
      setCode([...state.view.code], false);
    }, { id: "reset-code", title: "Back to the posterior mean of the example" }),
    button("Another example", () => changeExample(Math.floor(Math.random() * MAX_EXAMPLE))),
    // The prior of a dialog depends on its context; that of the others is normal.
    ...(state.kind === "dialogs" ? [] : [button("Draw from the prior", drawFromPrior)]),
    source,
  ];
  if (state.view.rates) buttons.push(rateSlider(state.view.rates));
  find("#explorer-buttons").replaceChildren(...buttons);
  setSource(state.source);
}

function drawFromPrior() {
  const seed = Math.floor(Math.random() * 1e4), draw = drawNormal(seed);
  setSource(`prior, seed ${seed}`);
  setCode(state.code.map(() => Number(draw().toFixed(3))), true);
}

function setSource(text) {
  state.source = text;
  setText(find("#code-source"), text);
}

async function changeExample(example) {
  const now = shown, found = await ask("example", { example, rate: state.rate });
  if (shown !== now || found.error) return;
  Object.assign(state.view, found);
  setSource(`example ${found.example}`);
  state.output.showExample(state.view);
  setCode([...found.code], false);
}

// A rate-conditioned network decodes at any rate between these.
function rateSlider([low, high]) {
  const slider = make("input", { type: "range", min: low, max: high, step: 0.1,
    "aria-label": "Rate in nats" });
  const value = make("output", {});
  slider.value = state.rate ?? (low + high) / 2;
  const say = () => {
    setText(value, `${number(Number(slider.value))} nats`);
    setAttribute(slider, "aria-valuetext", value.textContent);
  };
  say();
  slider.addEventListener("input", () => {
    state.rate = Number(slider.value);
    say();
    paint();
  });
  slider.addEventListener("change", () => changeExample(state.view.example));
  return make("label", { class: "rate" }, "Rate ", slider, value);
}

const ask = (what, more = {}) => getJson(`/${what}`, parameters(more));

// Parameters of a request about the shown checkpoint.
function parameters(more) {
  const entries = Object.entries({ run: shown.run, step: shown.checkpoint, ...more });
  return entries.filter(([, value]) => value != null);
}

// Address of what the present code decodes to.
function address(what, more = {}) {
  const code = state.code.map((value) => Number(value.toFixed(3))).join(",");
  const own = { code, rate: state.rate, example: state.view.example };
  return `/${what}?${new URLSearchParams(parameters({ ...own, ...more }))}`;
}

// Address of the example and its reconstruction.
const exampleAddress = () =>
  `/original?${new URLSearchParams(parameters({ example: state.view.example, rate: state.rate }))}`;
