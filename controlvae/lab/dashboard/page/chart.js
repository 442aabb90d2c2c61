// One chart: title, buttons, plot and legend. It is rebuilt when its curves change, and only given
// new numbers when they grow.

import { rangeOf, xAxis, yAxis } from "./axes.js";
import { styleOf } from "./colours.js";
import { make, setAttribute, setText } from "./dom.js";
import { downloadMenu } from "./download.js";
import { duration, number, step } from "./format.js";
import { Legend } from "./legend.js";
import { clockOf, Marks } from "./marks.js";
import { drawClipped, drawReach } from "./overlays.js";
import { extent, join, valueAt } from "./series.js";
import { ink } from "./theme.js";

const SYNC = "curves"; // charts that share a cursor
const MAX_DESCRIBED = 12; // curves in the words for a chart
const MAX_WIDE = 12; // curves; more are drawn as hairlines, which are told apart better and painted faster

export class Chart {
  // actions: {zoom(range or null), toggle(key), setLog(id), complete(id)}
  constructor(spec, actions) {
    this.spec = spec;
    this.actions = actions;
    const title = `chart-${spec.id}`;
    this.title = make("h3", { id: title });
    this.position = make("span", { class: "position", "aria-hidden": "true" });
    this.log = make("button", { type: "button", class: "small", "aria-pressed": "false",
      title: "Logarithmic axis", "aria-label": `Logarithmic axis of ${spec.title}`,
      onclick: () => actions.setLog(spec.id) }, "log");
    this.plotBox = make("div", { class: "plot" });
    this.note = make("p", { class: "note", hidden: true });
    this.legend = new Legend((key) => actions.toggle(key), (key) => this.highlight(key));
    this.marks = new Marks();
    this.box = make("section", { class: "chart card", "aria-labelledby": title },
      make("header", {}, this.title, this.position, this.log, downloadMenu(this)),
      this.plotBox, this.legend.box, this.note);
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(this.plotBox);
  }

  // marks: those of the focused run; options: {isLog, zoom, hidden, reach}
  update(spec, marks, options) {
    const { isLog, zoom, hidden } = options;
    Object.assign(this, { spec, isLog, hidden, zoomed: zoom, reach: options.reach });
    this.clock = clockOf(marks);
    this.drawTitle();
    const style = JSON.stringify([isLog, ink("--ink"), spec.lines.map(styleKey)]);
    const [x, ...rows] = join(expand(spec.lines));
    const data = [x, ...(isLog ? rows.map((row) => row.map((value) => (value > 0 ? value : null))) : rows)];
    this.data = data;
    if (style === this.style) this.plot.setData(data, false);
    else this.rebuild(style, data);
    this.hideCurves();
    this.applyZoom();
    this.legend.draw(spec.lines, hidden, (line) => this.shownValue(line));
    this.marks.draw(this.plot, marks, spec.isControlled);
    this.describe();
  }

  drawTitle() {
    const { title, detail, unit } = this.spec;
    const text = `${title}${detail ? ` of ${detail}` : ""}${unit ? `, ${unit}` : ""}`;
    if (this.title.dataset.text !== text) {
      this.title.dataset.text = text;
      const quiet = [detail && `of ${detail}`, unit].filter(Boolean).join(", ");
      this.title.replaceChildren(title, make("span", { class: "unit" }, quiet && ` ${quiet}`));
    }
    setAttribute(this.log, "aria-pressed", this.isLog);
  }

  rebuild(style, data) {
    this.plot?.destroy();
    this.style = style;
    this.plot = new uPlot(this.options(), data, this.plotBox);
    this.canvas = this.plot.ctx.canvas;
    this.canvas.setAttribute("role", "img");
    this.marks.attach(this.plot);
  }

  options() {
    const chart = this;
    return {
      ...this.size(),
      padding: [8, 20, 0, 0],
      legend: { show: false },
      focus: { alpha: 0.25 },
      scales: {
        x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: { distr: this.isLog ? 3 : 1, range: () => chart.range() },
      },
      axes: [xAxis(), yAxis(this.isLog)],
      series: [{}, ...seriesOf(this.spec.lines)],
      bands: bandsOf(this.spec.lines),
      cursor: {
        sync: { key: SYNC, setSeries: false, scales: ["x", null],
          filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } },
        y: false,
        drag: { x: true, y: false, dist: 5 },
        points: { size: 6 },
        bind: { dblclick: () => () => { chart.actions.zoom(null); } },
      },
      hooks: {
        setSelect: [(plot) => chart.selected(plot)],
        setCursor: [(plot) => chart.moved(plot)],
        drawClear: [(plot) => drawReach(plot, chart.reach)],
        draw: [(plot) => drawClipped(plot, chart)],
        setSize: [() => chart.marks.place()],
        setScale: [(_, name) => { if (name === "x") chart.marks.place(); }],
      },
    };
  }

  size() {
    const { clientWidth, clientHeight } = this.plotBox;
    return { width: Math.max(200, clientWidth), height: clientHeight || 176 };
  }

  fit() {
    if (!this.plot) return;
    const { width, height } = this.size();
    if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
  }

  // Rows of the visible curves, and the levels that must be inside.
  range() {
    const visible = this.spec.lines.filter(({ key }) => !this.hidden.includes(key));
    const rows = this.rowsOf(visible.length ? visible : this.spec.lines);
    const { min, max } = this.plot?.scales.x ?? {};
    return rangeOf(rows, this.data[0], this.zoomed ? [min, max] : null, this.spec, this.isLog);
  }

  rowsOf(lines) {
    return lines.flatMap((line) => {
      const at = rowOf(this.spec.lines, line);
      return this.data.slice(at, at + 1 + 2 * Boolean(line.low));
    });
  }

  hideCurves() {
    let at = 1;
    for (const line of this.spec.lines) {
      for (let part = 0; part < countRows(line); part++, at++) {
        const show = !this.hidden.includes(line.key);
        if (this.plot.series[at].show !== show) this.plot.setSeries(at, { show }, false);
      }
    }
  }

  applyZoom() {
    const [x] = this.data;
    const [min, max] = this.zoomed ?? [x[0] ?? 0, x.at(-1) ?? 1];
    this.plot.setScale("x", { min, max });
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width < 5) return;
    const ends = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.actions.zoom(ends);
  }

  moved(plot) {
    const at = plot.cursor.idx;
    this.cursor = plot.cursor.left < 0 ? null : at;
    setText(this.position, this.cursor == null ? "" : this.describeStep(this.data[0][at]));
    this.legend.setValues((line) => this.shownValue(line));
  }

  // A step, and how long the focused run had trained then, if its events tell.
  describeStep(at) {
    const seconds = this.clock(at);
    return `step ${step(at)}${seconds == null ? "" : ` · ${duration(seconds)}`}`;
  }

  setNote(text) {
    setText(this.note, text);
    this.note.title = text;
    this.note.hidden = !text;
  }

  // Value at the cursor, or the last one.
  shownValue(line) {
    const row = this.data[rowOf(this.spec.lines, line)] ?? [];
    return valueAt(row, this.cursor ?? row.length - 1);
  }

  highlight(key) {
    const line = this.spec.lines.find((each) => each.key === key);
    this.plot?.setSeries(line ? rowOf(this.spec.lines, line) : null, { focus: Boolean(line) });
  }

  // Describes the chart in words, for those who do not see it.
  describe() {
    const { spec } = this, [x] = this.data;
    const isShown = ({ key, isUnnamed }) => !this.hidden.includes(key) && !isUnnamed;
    const shown = spec.lines.filter(isShown).slice(0, MAX_DESCRIBED);
    const values = shown.map((line) => {
      const [low, high] = extent(this.rowsOf([line]).slice(0, 1));
      return `${line.label}: last ${number(valueAt(line.y))}, between ${number(low)} and ${number(high)}`;
    });
    const span = x.length ? ` over steps ${step(x[0])} to ${step(x.at(-1))}` : "";
    const unit = spec.unit ? `, ${spec.unit}` : "";
    setAttribute(this.canvas, "aria-label", `${spec.title}${unit}${span}. ${values.join("; ")}.`);
  }

  destroy() {
    this.resized.disconnect();
    this.plot?.destroy();
    this.box.remove();
  }
}

// What of a curve needs a new plot when it changes.
const styleKey = ({ key, slot, dash, width, dots, ghost, low }) =>
  [key, slot, dash, width, dots, Boolean(ghost), Boolean(low)];

// A smoothed curve has its raw values behind it; a mean has two rows more, for its band.
const countRows = (line) => (line.low ? 3 : 1) + Boolean(line.ghost);

function rowOf(lines, wanted) {
  let at = 1;
  for (const line of lines) {
    if (line.key === wanted.key) return at + Boolean(line.ghost);
    at += countRows(line);
  }
  return 0;
}

const expand = (lines) => lines.flatMap(({ x, y, ghost, low, high }) =>
  [ghost, y, low, high].filter(Boolean).map((row) => ({ x, y: row })));

function seriesOf(lines) {
  const usual = lines.length > MAX_WIDE ? 1 : 1.6;
  return lines.flatMap((line) => {
    const colour = styleOf(line).colour;
    const main = { stroke: colour, dash: styleOf(line).dash, width: line.width ?? usual, spanGaps: true,
      points: { show: Boolean(line.dots), size: 5, fill: colour } };
    const faint = { ...main, stroke: `${colour}55`, dash: undefined, width: 1 };
    const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
    return [...(line.ghost ? [faint] : []), main, ...(line.low ? [edge, edge] : [])];
  });
}

function bandsOf(lines) {
  return lines.filter(({ low }) => low).map((line) => {
    const at = rowOf(lines, line);
    return { series: [at + 2, at + 1], fill: `${styleOf(line).colour}2e` };
  });
}
