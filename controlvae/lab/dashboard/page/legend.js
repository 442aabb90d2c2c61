// The legend of a chart: a button for each curve, with its value at the cursor or else its last one.
// A press hides the curve in all charts.

import { make, makeSvg, setAttribute, setChildren, setText } from "./dom.js";
import { number } from "./format.js";
import { styleOf } from "./colours.js";

const MAX_ENTRIES = 24; // further curves are only named in the list of runs
const MAX_NAMES = 8; // curves of runs that are named; more are told by colour and tooltip

export class Legend {
  // onToggle(key); onHover(key or null)
  constructor(onToggle, onHover) {
    Object.assign(this, { onToggle, onHover, entries: new Map(), lines: [] });
    this.box = make("div", { class: "legend" });
    this.rest = make("span", { class: "quiet" });
  }

  draw(lines, hidden, valueOf) {
    this.lines = lines.filter((line) => !line.isUnnamed).slice(0, MAX_ENTRIES);
    const entries = this.lines.map((line) => this.entry(line, lines.length > MAX_NAMES));
    const left = lines.length - this.lines.length;
    setText(this.rest, left ? `and ${left} more` : "");
    setChildren(this.box, left ? [...entries, this.rest] : entries);
    for (const line of this.lines) {
      const { button } = this.entries.get(line.key), isHidden = hidden.includes(line.key);
      setAttribute(button, "aria-pressed", !isHidden);
    }
    this.setValues(valueOf);
  }

  setValues(valueOf) {
    for (const line of this.lines) {
      setText(this.entries.get(line.key).value, number(valueOf(line)));
    }
  }

  entry(line, isTerse) {
    if (!this.entries.has(line.key)) this.entries.set(line.key, this.makeEntry(line.key));
    const { button, name, swatch } = this.entries.get(line.key);
    const { colour, dash } = styleOf(line);
    setText(name, line.label);
    name.hidden = isTerse && Boolean(line.run);
    setAttribute(button, "title", `${line.label}: hide or show`);
    setAttribute(button, "aria-label", name.hidden ? line.label : null);
    setAttribute(swatch, "stroke", colour);
    setAttribute(swatch, "stroke-dasharray", dash?.map((length) => Math.min(length, 5)).join(" "));
    setAttribute(swatch, "stroke-width", line.low ? 4 : 2.5);
    return button;
  }

  makeEntry(key) {
    const swatch = makeSvg("line", { x1: 0, y1: 4, x2: 18, y2: 4 });
    const name = make("span", { class: "name" }), value = make("span", { class: "value" });
    const button = make("button", {
      type: "button",
      onclick: () => this.onToggle(key),
      onmouseenter: () => this.onHover(key), onmouseleave: () => this.onHover(null),
      onfocus: () => this.onHover(key), onblur: () => this.onHover(null),
    }, makeSvg("svg", { width: 18, height: 8, "aria-hidden": "true" }, swatch), name, value);
    return { button, name, value, swatch };
  }
}
