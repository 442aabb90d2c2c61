// Marks of events on a chart: lines at their steps and, on the chart of the controlled quantity,
// buttons whose text is shown on hover and focus.

import { make, setChildren } from "./dom.js";

const NEAR = 9; // pixels below which marks share a button
const SIGNS = { warning: "▲", target: "◆", state: "•", checkpoint: "•" }; // the weightiest first

export class Marks {
  constructor() {
    this.layer = make("div", { class: "marks", onkeydown: (event) => this.walk(event) });
    this.tip = make("div", { class: "tip", role: "tooltip", hidden: true });
  }

  attach(plot) {
    this.plot = plot;
    plot.over.append(this.layer, this.tip);
    this.drawn = null;
  }

  // marks: [{event, kind, step, text}]; withButtons: as buttons, and not only as lines
  draw(plot, marks, withButtons) {
    const text = JSON.stringify([marks, withButtons]);
    if (text === this.drawn) return;
    this.drawn = text;
    this.marks = marks.filter((mark) => withButtons || isWeighty(mark));
    this.withButtons = withButtons;
    this.place();
  }

  // Puts the marks where their steps are now. Those that would overlap share a button.
  place() {
    if (!this.plot || !this.marks) return;
    const { width } = this.plot.over.getBoundingClientRect(), clusters = [];
    for (const mark of [...this.marks].sort((one, other) => one.step - other.step)) {
      const left = this.plot.valToPos(mark.step, "x");
      if (!(left >= -1 && left <= width + 1)) continue;
      const before = clusters.at(-1);
      if (this.withButtons && before && left - before.left < NEAR) before.marks.push(mark);
      else clusters.push({ left, marks: [mark] });
    }
    setChildren(this.layer, clusters.map((cluster, at) => this.show(cluster, at)));
  }

  show({ left, marks }, at) {
    const kind = Object.keys(SIGNS).find((each) => marks.some((mark) => mark.kind === each)) ?? "state";
    const text = describe(marks);
    const mark = this.withButtons
      ? make("button", { type: "button", class: `mark ${kind}`, tabindex: at === 0 ? 0 : -1,
        "aria-label": text, onmouseenter: () => this.open(mark, text), onmouseleave: () => this.close(),
        onfocus: () => this.open(mark, text), onblur: () => this.close() }, SIGNS[kind])
      : make("span", { class: `mark ${kind}` });
    mark.style.left = `${left}px`;
    return mark;
  }

  open(mark, text) {
    this.tip.textContent = text;
    this.tip.hidden = false;
    const { width } = this.plot.over.getBoundingClientRect(), left = parseFloat(mark.style.left);
    const own = this.tip.offsetWidth, inside = Math.min(left - own / 2, width - own);
    this.tip.style.left = `${Math.max(0, inside)}px`;
  }

  close() {
    this.tip.hidden = true;
  }

  // Arrow keys go from mark to mark, so that Tab passes them in one step.
  walk(event) {
    const to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!to) return;
    const buttons = [...this.layer.children];
    const next = buttons[buttons.indexOf(document.activeElement) + to];
    if (!next) return;
    event.preventDefault();
    buttons.forEach((button) => { button.tabIndex = button === next ? 0 : -1; });
    next.focus();
  }
}

const isWeighty = ({ kind }) => kind === "warning" || kind === "target";

// Texts of the marks at one place: of many, the weighty ones and a count of the rest.
function describe(marks) {
  const lineOf = ({ step, text }) => `step ${step.toLocaleString("en")}: ${text}`;
  if (marks.length <= 4) return marks.map(lineOf).join("\n");
  const weighty = marks.filter(isWeighty).slice(-4), rest = marks.length - weighty.length;
  return [...weighty.map(lineOf), `${rest} more, ${weighty.length ? "such as" : "the last"}: ${
    lineOf(marks.findLast((mark) => !isWeighty(mark)) ?? marks.at(-1))}`].join("\n");
}

// Returns a function that gives the seconds of training until a step, from the times of the marks.
// Pauses between two processes do not count. Where the marks do not tell, it gives null.
export function clockOf(marks) {
  const points = [];
  let elapsed = 0, before = null;
  for (const { step, kind, event, time } of marks) {
    const now = Date.parse(time ?? "");
    if (!Number.isFinite(now)) continue;
    const isStart = kind === "state" && /started|resumed/.test(event);
    if (before !== null && !isStart) elapsed += (now - before) / 1000;
    before = now;
    if (step > (points.at(-1)?.step ?? -1)) points.push({ step, elapsed });
  }
  return (step) => {
    const after = points.findIndex((point) => point.step >= step);
    if (after < 0 || elapsed === 0) return null;
    if (after === 0) return points[0].step === step ? points[0].elapsed : null;
    const [from, to] = [points[after - 1], points[after]];
    return from.elapsed + ((to.elapsed - from.elapsed) * (step - from.step)) / (to.step - from.step);
  };
}
