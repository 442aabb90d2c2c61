// What the focused run's model says: a code to move latent by latent, or sentences.

import { element } from "./element.js";

let shown = null; // {run, checkpoint}
let code = null;

export async function draw(place, run) {
  const now = run && run.summary.checkpoint !== null ? { run: run.summary.run, checkpoint: run.summary.checkpoint } : null;
  if (now?.run === shown?.run && now?.checkpoint === shown?.checkpoint) return;
  if (now?.run !== shown?.run) { place.innerHTML = ""; code = null; }
  else if (place.querySelector("input:active")) return; // a latent is being moved: the new checkpoint waits
  shown = now;
  if (now === null) return;
  const kind = run.summary.shows;
  if (kind === "dialogs") { place.innerHTML = `<p class="quiet">To talk to it: <code>controlvae chat</code></p>`; return; }
  if (!place.innerHTML) place.innerHTML = `<p class="quiet">opening the model and its data …</p>`;
  const found = await ask(kind === "pictures" ? "latents" : "sentences", {});
  if (shown !== now) return; // another run was chosen meanwhile
  if (found.again) shown = null;
  if (found.error) { place.innerHTML = ""; place.append(element("p", "warning", found.error)); return; }
  if (kind === "pictures") explore(place, found); else write(place, found);
}

async function ask(what, more) {
  const answer = await fetch(address(what, more)).catch(() => null);
  return answer ? answer.json() : { error: "the server does not answer", again: true };
}

const address = (what, more) => `/${what}?${new URLSearchParams({ run: shown.run, step: shown.checkpoint, ...more })}`;

function explore(place, found) {
  code ??= found.code;
  place.innerHTML = "";
  place.append(element("h3", "", `What each latent does at step ${found.step.toLocaleString("en")}` +
    (found.latents.length < found.among ? `: the ${found.latents.length} of largest KL out of ${found.among}` : "")));
  const grid = element("div", "code"), left = element("div"), right = element("div");
  const whole = element("img", "whole");
  whole.alt = "the picture of the code";
  const buttons = element("div", "buttons");
  const rows = found.latents.map(({ latent, name, kl }) => row(latent, name, kl, found.reach));
  const paint = painter(whole, "picture");
  const strips = later(() => rows.forEach((each) => each.paint()), 200);
  const moved = () => { paint(); strips(); };
  rows.forEach((each) => { each.slider.oninput = () => { code[each.latent] = Number(each.slider.value); moved(); }; });
  const take = (next) => { code = next; rows.forEach((each) => { each.slider.value = code[each.latent]; }); moved(); };
  const add = (words, next) => {
    const button = element("button", "", words);
    button.onclick = async () => { const found = await next(); if (!found.error) take(found); };
    buttons.append(button);
  };
  add("another example", () => ask("code", { example: Math.floor(Math.random() * 1e9) }));
  add("from the prior", () => code.map(normal));
  left.append(whole, buttons);
  right.append(...rows.map((each) => each.box));
  grid.append(left, right);
  place.append(grid);
  take(code);
}

function row(latent, name, kl, reach) {
  const box = element("div", "latent"), slider = element("input"), strip = element("img");
  Object.assign(slider, { type: "range", min: -reach, max: reach, step: 0.05 });
  slider.setAttribute("aria-label", name);
  strip.alt = `${name} from −${reach} to ${reach}`;
  box.append(element("span", "name", `${name}  ${kl.toFixed(2)} nats`), slider, strip);
  return { latent, box, slider, paint: painter(strip, "strip", { latent }) };
}

function write(place, found) {
  place.innerHTML = "";
  place.append(element("h3", "", `Written from the prior at step ${found.step.toLocaleString("en")}`));
  const list = element("ol");
  list.append(...found.written.map((line) => element("li", "", line)));
  const table = element("table");
  const cells = (words, kind) => { const tr = element("tr"); tr.append(...words.map((word) => element(kind, "", word))); return tr; };
  table.append(cells(["sentence", "read back from its code"], "th"));
  table.append(...found.read_back.map((pair) => cells([pair.sentence, pair.read_back], "td")));
  place.append(list, table);
}

// Fetches an image of the code. At most one request is on its way; the newest waits for it, those between are never sent.
function painter(image, what, more = {}) {
  let busy = false, waiting = false;
  const go = () => {
    if (!image.isConnected) return; // another run was chosen meanwhile
    if (busy) { waiting = true; return; }
    busy = true;
    image.onload = image.onerror = () => { busy = false; if (waiting) { waiting = false; go(); } };
    image.src = address(what, { ...more, code: code.map((value) => value.toFixed(3)).join(",") });
  };
  return go;
}

function later(what, wait) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(what, wait); };
}

const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
