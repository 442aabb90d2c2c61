// The model of the focused run: latents to move, or sentences.

import { element } from "./element.js";

let shown = null; // {run, checkpoint}
let code = null;

export async function draw(place, run) {
  const now = run && run.summary.checkpoint !== null ? { run: run.summary.run, checkpoint: run.summary.checkpoint } : null;
  if (now?.run === shown?.run && now?.checkpoint === shown?.checkpoint) return;
  if (now?.run !== shown?.run) { place.innerHTML = ""; code = null; }
  else if (place.querySelector("input:active")) return; // the user moves a latent, so the new checkpoint waits
  shown = now;
  if (now === null) return;
  const kind = run.summary.shows;
  if (kind === "dialogs") { place.innerHTML = `<p class="quiet">Chat with the model: <code>controlvae chat</code></p>`; return; }
  if (!place.innerHTML) place.innerHTML = `<p class="quiet">loading the model and its data …</p>`;
  const response = await request(kind === "images" ? "latents" : "sentences", {});
  if (shown !== now) return; // another run was selected meanwhile
  if (response.retry) shown = null;
  if (response.error) { place.innerHTML = ""; place.append(element("p", "warning", response.error)); return; }
  if (kind === "images") showLatents(place, response); else showSentences(place, response);
}

async function request(what, more) {
  const answer = await fetch(address(what, more)).catch(() => null);
  return answer ? answer.json() : { error: "the server does not respond", retry: true };
}

const address = (what, more) => `/${what}?${new URLSearchParams({ run: shown.run, step: shown.checkpoint, ...more })}`;

function showLatents(place, view) {
  code ??= view.code;
  place.innerHTML = "";
  place.append(element("h3", "", `Effect of each latent at step ${view.step.toLocaleString("en")}` +
    (view.latents.length < view.among ? `: the ${view.latents.length} of largest KL out of ${view.among}` : "")));
  const grid = element("div", "code"), left = element("div"), right = element("div");
  const whole = element("img", "whole");
  whole.alt = "the decoded image";
  const buttons = element("div", "buttons");
  const rows = view.latents.map(({ latent, name, kl }) => row(latent, name, kl, view.reach));
  const paint = painter(whole, "image");
  const strips = debounce(() => rows.forEach((each) => each.paint()), 200);
  const moved = () => { paint(); strips(); };
  rows.forEach((each) => { each.slider.oninput = () => { code[each.latent] = Number(each.slider.value); moved(); }; });
  const setCode = (next) => { code = next; rows.forEach((each) => { each.slider.value = code[each.latent]; }); moved(); };
  const add = (label, next) => {
    const button = element("button", "", label);
    button.onclick = async () => { const code = await next(); if (!code.error) setCode(code); };
    buttons.append(button);
  };
  add("another example", () => request("code", { example: Math.floor(Math.random() * 1e9) }));
  add("from the prior", () => code.map(normal));
  left.append(whole, buttons);
  right.append(...rows.map((each) => each.box));
  grid.append(left, right);
  place.append(grid);
  setCode(code);
}

function row(latent, name, kl, reach) {
  const box = element("div", "latent"), slider = element("input"), strip = element("img");
  Object.assign(slider, { type: "range", min: -reach, max: reach, step: 0.05 });
  slider.setAttribute("aria-label", name);
  strip.alt = `${name} from −${reach} to ${reach}`;
  box.append(element("span", "name", `${name}  ${kl.toFixed(2)} nats`), slider, strip);
  return { latent, box, slider, paint: painter(strip, "strip", { latent }) };
}

function showSentences(place, view) {
  place.innerHTML = "";
  place.append(element("h3", "", `Sampled from the prior at step ${view.step.toLocaleString("en")}`));
  const list = element("ol");
  list.append(...view.samples.map((line) => element("li", "", line)));
  const table = element("table");
  const cells = (texts, kind) => { const tr = element("tr"); tr.append(...texts.map((text) => element(kind, "", text))); return tr; };
  table.append(cells(["sentence", "reconstruction"], "th"));
  table.append(...view.reconstructions.map((pair) => cells([pair.sentence, pair.read_back], "td")));
  place.append(list, table);
}

// Fetches an image of the code. At most one request is pending; the newest waits for it, and those
// in between are never sent.
function painter(image, what, more = {}) {
  let busy = false, waiting = false;
  const go = () => {
    if (!image.isConnected) return; // another run was selected meanwhile
    if (busy) { waiting = true; return; }
    busy = true;
    image.onload = image.onerror = () => { busy = false; if (waiting) { waiting = false; go(); } };
    image.src = address(what, { ...more, code: code.map((value) => value.toFixed(3)).join(",") });
  };
  return go;
}

function debounce(call, wait) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(call, wait); };
}

const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
