// Colours and dashes of curves. Ten colours and three dashes make thirty styles.
// Every colour has a contrast of at least 3 with the paper it is drawn on.

import { ink, isDark } from "./theme.js";

export const LIGHT = ["#0072b2", "#d55e00", "#008a63", "#b0468f", "#6f4bc0", "#8c6a00", "#0b8ba0",
  "#c0272d", "#5b6670", "#6f8200"];
export const DARK = ["#5aa9e6", "#ff9248", "#35c493", "#e58ac6", "#a893f0", "#d9b13b", "#43c6da",
  "#ff7a78", "#a9b6bf", "#bcd04a"];
export const DASHES = [undefined, [9, 4], [2, 3]];

const slots = new Map(); // run or group -> number of its style

export const colourOf = (slot) => (isDark() ? DARK : LIGHT)[slot % LIGHT.length];
export const dashOf = (slot) => DASHES[Math.floor(slot / LIGHT.length) % DASHES.length];

// Colour and dash of a curve in the present theme. A curve without a slot belongs to no single run.
export function styleOf({ slot, dash, isTarget }) {
  if (slot == null) return { colour: hex(ink(isTarget ? "--quiet" : "--faint-line")), dash };
  return { colour: colourOf(slot), dash: dash ?? dashOf(slot) };
}

// A computed colour, rgb(1, 2, 3), as #010203.
const hex = (colour) => (colour.startsWith("#") ? colour
  : `#${colour.match(/\d+/g).slice(0, 3).map((part) => Number(part).toString(16).padStart(2, "0")).join("")}`);

// Gives each name a style. A name that stays keeps its own when others come and go.
export function assignSlots(names) {
  const wanted = new Set(names);
  for (const name of slots.keys()) if (!wanted.has(name)) slots.delete(name);
  const taken = new Set(slots.values());
  for (const name of names) {
    if (slots.has(name)) continue;
    let slot = 0;
    while (taken.has(slot)) slot++;
    taken.add(slot);
    slots.set(name, slot);
  }
  return slots;
}
