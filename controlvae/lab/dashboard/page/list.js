// The list of runs: a line for each, below the folder it is in.

import { element, fixed } from "./element.js";

const items = new Map(); // name -> its elements

export const short = (run, parts = 1) => (run === "." ? "this run" : run.split("/").slice(-parts).join("/"));
export const home = (run) => run.split("/").slice(0, -1).join("/");

// chosen: the names that are ticked; colours: of those that are drawn; choose: told what is ticked from now on
export function draw(place, root, summaries, chosen, colours, choose) {
  const groups = Map.groupBy(summaries, (each) => home(each.run));
  for (const inside of groups.values()) inside.sort((a, b) => a.run.localeCompare(b.run, "en", { numeric: true }));
  const active = document.activeElement;
  const wanted = [...groups].flatMap(([where, inside]) => [
    ...(where || groups.size > 1 ? [heading(where || root)] : []), ...inside.map((each) => entry(each, chosen, colours, choose))]);
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

function entry(summary, chosen, colours, choose) {
  const { box, tick, state, detail, bar } = lasting(`run ${summary.run}`, () => blank(summary.run));
  tick.checked = chosen.includes(summary.run);
  tick.onchange = () => choose(tick.checked ? [...chosen, summary.run] : chosen.filter((run) => run !== summary.run));
  box.style.setProperty("--colour", colours.get(summary.run) ?? "");
  state.className = `state ${summary.error ? "broken" : summary.state.split(" ")[0]}`;
  state.textContent = summary.error ? "unreadable" : summary.state;
  detail.textContent = summary.error ?? numbers(summary);
  bar.hidden = summary.state !== "training";
  if (!bar.hidden) Object.assign(bar, { max: summary.steps, value: summary.step });
  return box;
}

function blank(run) {
  const box = element("label", "run"), tick = element("input");
  tick.type = "checkbox";
  const [state, detail, bar] = [element("span"), element("span", "detail"), element("progress")];
  box.append(tick, element("span", "name", short(run)), state, detail, bar);
  return { box, tick, state, detail, bar };
}

function numbers({ latest, held, target, step }) {
  if (!step) return "";
  const aim = target == null ? "" : ` / ${fixed(target)}`;
  const tc = "critic_accuracy" in latest ? "TC" : "biased TC"; // a minibatch's estimate is off by a constant
  return `${{ kl: "KL", tc, reconstruction: "rec" }[held]} ${fixed(latest[held])}${aim}   β ${fixed(latest.beta)}`;
}
