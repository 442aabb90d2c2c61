// Light, dark, or as the system says. The choice stays in the browser.

import { find } from "./dom.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto", onChange = () => {};
const resolved = new Map(); // custom property -> colour in this theme

try {
  theme = localStorage.getItem("theme") ?? "auto";
} catch { /* storage may be blocked */ }
document.documentElement.dataset.theme = theme in NEXT ? theme : "auto";

export const isDark = () => theme === "dark" || (theme !== "light" && system.matches);

// Returns a colour of the style sheet, such as "--ink", as a canvas takes it.
export function ink(name) {
  if (!resolved.has(name)) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    resolved.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(name);
}

export function setUp(callback) {
  onChange = callback;
  const button = find("#theme");
  label(button);
  button.addEventListener("click", cycle);
  system.addEventListener("change", changed);
}

export function cycle() {
  theme = NEXT[theme] ?? "auto";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch { /* storage may be blocked */ }
  label(find("#theme"));
  changed();
}

function label(button) {
  button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme] ?? "◐";
  button.setAttribute("aria-label", `Colours: ${theme}. Switch to ${NEXT[theme]}`);
  button.title = `Colours: ${theme} (t)`;
}

function changed() {
  resolved.clear();
  onChange();
}
