// Keyboard shortcuts, and the dialog that lists them.

import { find, make } from "./dom.js";

const HELP = [
  ["/", "filter the runs"], ["↑ ↓", "go through the list"], ["Space", "select a run"],
  ["Enter", "show its state and latents"], ["a  n", "select all or none of the listed runs"],
  ["[  ]", "show the previous or next selected run"], ["z", "show all steps"],
  ["s", "move the target"], ["t", "light, dark or automatic colours"], ["?", "this help"],
];
const FILTERS = [
  ["shapes seed-1", "names, presets and states that contain these words"],
  ["state=training", "a state, preset or law"],
  ["kl>17 beta<=0.5", "last logged numbers"],
  ["model.latents=10 seed=3", "settings, by name or last part"],
];

// actions: key -> function
export function setUp(actions) {
  const dialog = find("#help");
  dialog.append(make("h2", {}, "Keyboard"), list(HELP), make("h2", {}, "Filter"), list(FILTERS),
    make("p", { class: "quiet" }, "Drag on a chart to zoom all of them; double-click to show all steps again."),
    make("form", { method: "dialog" }, make("button", {}, "Close")));
  find("#show-help").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || isTyping(event.target)) return;
    const action = event.key === "?" ? () => dialog.showModal() : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

const isTyping = (target) =>
  target.matches("select, textarea, input:not([type=checkbox]):not([type=range])");

const list = (rows) => make("dl", {}, ...rows.flatMap(([key, text]) =>
  [make("dt", {}, make("kbd", {}, key)), make("dd", {}, text)]));
