// The page: which runs there are, which are chosen, and what the server tells of them.

import * as charts from "./charts.js";
import { element } from "./element.js";
import * as model from "./model.js";

const find = (selector) => document.querySelector(selector);
let root = "", summaries = [], chosen = inAddress(), focused = null;
const logs = new Map(), validations = new Map(), speeds = new Map(), items = new Map();
let stream = null, drawing = false;

function inAddress() {
  try {
    const runs = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return Array.isArray(runs) ? runs : null;
  } catch { return null; }
}

function follow() {
  stream?.close();
  stream = new EventSource(`/events?${new URLSearchParams((chosen ?? []).map((run) => ["run", run]))}`);
  const told = new Set(); // by this stream; what is kept of other logs is from the one before, to be replaced
  stream.onopen = () => { find("#lost").hidden = true; told.clear(); };
  stream.onerror = () => { find("#lost").hidden = false; };
  stream.addEventListener("runs", ({ data }) => {
    ({ root, runs: summaries } = JSON.parse(data));
    summaries.forEach(clock);
    if (chosen === null && summaries.length) choose(first(), true);
    refresh();
  });
  for (const [kind, kept] of [["log", logs], ["validation", validations]]) {
    stream.addEventListener(kind, ({ data }) => {
      const { run, anew, columns } = JSON.parse(data), log = `${kind} ${run}`;
      take(kept, run, anew || !told.has(log), columns);
      told.add(log);
    });
  }
}

// What to show when nobody has chosen: what is being trained, else the newest; all seeds of it.
function first() {
  const start = summaries.find((each) => each.state === "training") ?? summaries.find((each) => !each.error) ?? summaries[0];
  const beside = summaries.filter((each) => !each.error && home(each.run) === home(start.run) && each.preset === start.preset);
  return (home(start.run) ? beside : [start]).map((each) => each.run).sort().slice(0, 6);
}

function choose(runs, silent) {
  chosen = runs;
  if (!silent) history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(runs))}`);
  follow();
  refresh();
}

function take(kept, run, anew, columns) {
  const before = anew ? null : kept.get(run);
  if (!before) { if (columns) kept.set(run, columns); else kept.delete(run); }
  else for (const [name, values] of Object.entries(columns)) {
    if (name === "latents") values.forEach((more, latent) => before.latents?.[latent]?.push(...more));
    else (before[name] ??= []).push(...values);
  }
  refresh();
}

// The log has no clock: steps per second are those seen from here, over the last half a minute.
function clock(summary) {
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

function refresh() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; redraw(); });
}

function redraw() {
  const shown = (chosen ?? []).map((name) => summaries.find((each) => each.run === name)).filter((each) => each && !each.error);
  const apart = new Set(shown.map((each) => each.run.split("/").at(-1))).size === shown.length;
  const runs = shown.map((summary, place) => ({
    summary, name: short(summary.run, apart ? 1 : 2), colour: charts.COLOURS[place % charts.COLOURS.length],
    columns: logs.get(summary.run), validation: validations.get(summary.run),
  }));
  const focus = runs.find((run) => run.summary.run === focused) ?? runs[0] ?? null;
  find("#root").textContent = root;
  list(runs);
  const empty = find("#empty");
  empty.hidden = runs.some((run) => run.columns);
  empty.textContent = !summaries.length ? "No runs here yet. Train one: controlvae train shapes2d-quick"
    : runs.length ? "Nothing is logged yet." : "Choose runs on the left.";
  charts.draw(find("#charts"), runs, focus);
  look(runs, focus);
}

const short = (run, parts = 1) => (run === "." ? "this run" : run.split("/").slice(-parts).join("/"));
const home = (run) => run.split("/").slice(0, -1).join("/");

function list(runs) {
  const groups = Map.groupBy(summaries, (each) => home(each.run));
  for (const inside of groups.values()) inside.sort((a, b) => a.run.localeCompare(b.run, "en", { numeric: true }));
  const place = find("#runs"), active = document.activeElement;
  const wanted = [...groups].flatMap(([where, inside]) => [
    ...(where || groups.size > 1 ? [heading(where || root)] : []), ...inside.map((each) => entry(each, runs))]);
  if (wanted.length === place.children.length && wanted.every((each, at) => each === place.children[at])) return;
  const mine = place.contains(active);
  place.replaceChildren(...wanted);
  if (mine) active.focus();
}

// A line of the list stays the same element while its numbers change: a click that began on it ends on it.
function lasting(name, make) {
  if (!items.has(name)) items.set(name, make());
  return items.get(name);
}

const heading = (where) => lasting(`of ${where}`, () => element("h3", "", where));

function entry(summary, runs) {
  const { box, tick, state, detail, bar } = lasting(`run ${summary.run}`, () => blank(summary.run));
  tick.checked = (chosen ?? []).includes(summary.run);
  box.style.setProperty("--colour", runs.find((run) => run.summary.run === summary.run)?.colour ?? "");
  state.className = `state ${summary.error ? "broken" : summary.state.split(" ")[0]}`;
  state.textContent = summary.error ? "unreadable" : summary.state;
  detail.textContent = summary.error ?? numbers(summary);
  bar.hidden = summary.state !== "training";
  if (!bar.hidden) Object.assign(bar, { max: summary.steps, value: summary.step });
  return box;
}

function blank(run) {
  const box = element("label", "run"), tick = element("input");
  Object.assign(tick, { type: "checkbox", onchange: () => {
    choose(tick.checked ? [...(chosen ?? []), run] : chosen.filter((each) => each !== run));
  } });
  const [state, detail, bar] = [element("span"), element("span", "detail"), element("progress")];
  box.append(tick, element("span", "name", short(run)), state, detail, bar);
  return { box, tick, state, detail, bar };
}

function numbers({ latest, held, target, step }) {
  if (!step) return "";
  const aim = target == null ? "" : ` / ${fixed(target)}`;
  return `${{ kl: "KL", tc: "TC", reconstruction: "rec" }[held]} ${fixed(latest[held])}${aim}   β ${fixed(latest.beta)}`;
}

const fixed = (value) => (value == null ? "–" : Number(value.toPrecision(4)).toString());

function look(runs, focus) {
  const section = find("#focus");
  section.hidden = focus === null;
  model.draw(section.querySelector(".model"), focus);
  if (focus === null) return;
  const { summary } = focus, select = section.querySelector("select");
  section.querySelector("h2").textContent = summary.preset;
  const names = runs.map((run) => run.summary.run);
  if ([...select.options].map((option) => option.value).join() !== names.join()) {
    select.replaceChildren(...names.map((name) => new Option(name === "." ? short(name) : name, name)));
  }
  select.value = summary.run;
  select.onchange = () => { focused = select.value; refresh(); };
  section.querySelector(".where").textContent = where(summary);
  section.querySelector(".warnings").replaceChildren(...summary.warnings.map((line) => element("p", "warning", line)));
  steer(section.querySelector(".steer"), summary);
}

function where(summary) {
  const rate = summary.state === "training" ? speed(summary) : 0;
  const left = rate > 0 ? (summary.steps - summary.step) / rate : 0;
  const time = left > 5400 ? `${(left / 3600).toFixed(1)} h` : left > 90 ? `${Math.round(left / 60)} min` : `${Math.round(left)} s`;
  const pace = rate > 0 ? ` · ${rate >= 10 ? Math.round(rate) : rate.toPrecision(2)} steps/s · ${time} left` : "";
  const again = ["stopped", "broken off"].includes(summary.state) ? ` · go on with: controlvae resume ${quoted(path(summary))}` : "";
  return `${summary.state} · step ${summary.step.toLocaleString("en")} of ${summary.steps.toLocaleString("en")}${pace} · ${summary.law}${again}`;
}

const path = ({ run }) => (run === "." ? root : `${root}/${run}`);
const quoted = (path) => (/^[\w./=+:,-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`); // for a shell

function steer(form, summary) {
  form.hidden = !summary.steerable;
  const [slider, number] = form.querySelectorAll("input"), words = form.querySelector("output");
  const { target } = summary;
  if (form.dataset.run !== summary.run && target != null) {
    form.dataset.run = summary.run;
    form.dataset.said = "";
    const top = Number((2 * Math.max(Math.abs(target), Math.abs(summary.latest[summary.held] ?? 0))).toPrecision(3));
    Object.assign(slider, { min: target < 0 ? -top : 0, max: top, value: target });
    number.value = fixed(target);
  }
  slider.oninput = () => { number.value = fixed(Number(slider.value)); };
  number.oninput = () => { slider.value = number.value; };
  const waiting = summary.state === "training" ? "asked; taken up within a second" : "asked; taken up when it is resumed";
  words.textContent = summary.asked ? waiting : form.dataset.said ?? "";
  form.onsubmit = async (event) => {
    event.preventDefault();
    const answer = await fetch(`/target?${new URLSearchParams({ run: summary.run })}`, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ target: Number(number.value) }),
    }).catch(() => null);
    form.dataset.said = answer === null ? "the server does not answer" : (await answer.json()).error ?? "";
    refresh();
  };
}

// A browser opens six connections to a server, whatever the number of tabs: those nobody looks at give theirs back.
document.addEventListener("visibilitychange", () => { if (document.hidden) stream.close(); else follow(); });
addEventListener("hashchange", () => location.reload());
follow();
