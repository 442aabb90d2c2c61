// The focused run: its name, state and warnings.

import { find, make, setAttribute, setChildren, setText } from "./dom.js";
import { duration, number, pace, quoted } from "./format.js";
import { describeProgress, quantityName } from "./list.js";

const MOVED = /^its target was moved by hand/; // a note on what the user did
const RESUMABLE = ["stopped", "interrupted"];

// runs: the selected runs; focus: the focused one or null; onFocus: called with the next name
export function draw(root, runs, focus, onFocus) {
  find("#focus").hidden = focus === null;
  if (focus === null) return;
  const { summary } = focus;
  drawSelect(find("#focus-run"), runs, summary.run, onFocus);
  setText(find("#focus-name"), focus.name);
  setAttribute(find("#focus-name"), "title", summary.run);
  setText(find("#focus-state"), summary.state);
  setAttribute(find("#focus-state"), "class", `state ${summary.state.replace(/\W+/g, "-")}`);
  setText(find("#focus-line"), describeState(summary));
  drawNumbers(find("#focus-numbers"), summary);
  const hint = find("#focus-hint"), canResume = RESUMABLE.includes(summary.state);
  hint.hidden = !canResume;
  if (canResume) {
    const path = summary.run === "." ? root : `${root}/${summary.run}`;
    setText(find("code", hint), `controlvae resume ${quoted(path)}`);
  }
  const bar = find("#focus-bar");
  bar.hidden = summary.state !== "training";
  setAttribute(bar, "max", summary.steps);
  setAttribute(bar, "value", summary.step);
  drawWarnings(find("#warnings"), summary.warnings.filter((line) => !MOVED.test(line)));
}

function drawSelect(select, runs, current, onFocus) {
  const names = runs.map((run) => run.summary.run);
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...runs.map((run) => new Option(run.name, run.summary.run)));
  }
  select.closest("label").hidden = runs.length < 2;
  select.value = current;
  select.onchange = () => onFocus(select.value);
}

function describeState(summary) {
  const { speed, seconds_left: left } = summary;
  const progress = speed == null ? [] : [pace(speed), `${duration(left)} left`];
  // The stages below tell it of a run that can still be steered.
  const moved = summary.steerable ? [] : summary.warnings.filter((line) => MOVED.test(line));
  return [describeProgress(summary), ...progress, summary.preset, summary.law, ...moved].join(" · ");
}

// The controlled quantity, its target and β, in large figures.
function drawNumbers(place, { latest, controlled, target }) {
  const figures = [
    [quantityName(controlled, latest), latest[controlled], target == null ? "" : `of ${number(target)}`],
    ["β", latest.beta, ""], ["ELBO", latest.elbo, ""],
  ].filter(([, value]) => value != null);
  const items = figures.map(([name, value, aim], at) => {
    const item = place.children[at] ?? makeFigure();
    setText(find("dt", item), name);
    setText(find("b", item), number(value));
    setText(find(".quiet", item), aim);
    return item;
  });
  setChildren(place, items);
}

const makeFigure = () => make("div", {}, make("dt"),
  make("dd", {}, make("b"), " ", make("span", { class: "quiet" })));

function drawWarnings(place, lines) {
  const text = JSON.stringify(lines);
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  const [first, ...others] = lines;
  if (!first) {
    place.replaceChildren();
    return;
  }
  const more = others.length ? [make("span", { class: "more" }, `${lines.length} notes. `)] : [];
  place.replaceChildren(make("details", { class: "warning" }, make("summary", {}, ...more, first),
    ...others.map((line) => make("p", {}, line))));
}
