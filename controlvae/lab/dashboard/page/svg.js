// A chart as SVG: axes, bands, curves and legend as vectors, with the range that is shown.

import { logTicks, ticks } from "./axes.js";
import { styleOf } from "./colours.js";
import { makeSvg } from "./dom.js";
import { number, shortStep } from "./format.js";
import { ink } from "./theme.js";

const WIDTH = 640, HEIGHT = 320, LEFT = 56, TOP = 34, RIGHT = 14, BOTTOM = 40, LINE = 16;
const COLUMNS = 4; // of the legend

export function toSvg(chart, lines) {
  const { x, y } = chart.plot.scales, { isLog } = chart;
  const across = (step) => LEFT + ((step - x.min) / (x.max - x.min)) * (WIDTH - LEFT - RIGHT);
  const share = (value) => (isLog ? Math.log(value / y.min) / Math.log(y.max / y.min)
    : (value - y.min) / (y.max - y.min));
  const up = (value) => HEIGHT - BOTTOM - share(value) * (HEIGHT - TOP - BOTTOM);
  const named = lines.filter((line) => !line.isUnnamed);
  const height = HEIGHT + LINE * Math.ceil(named.length / COLUMNS) + 8;
  const root = makeSvg("svg", { xmlns: "http://www.w3.org/2000/svg", width: WIDTH, height,
    viewBox: `0 0 ${WIDTH} ${height}`, "font-family": "system-ui, sans-serif", "font-size": 11,
    fill: ink("--ink") });
  root.append(makeSvg("rect", { width: "100%", height: "100%", fill: ink("--card") }),
    text(chart.title.textContent, LEFT, 20, { "font-weight": 600, "font-size": 13 }),
    makeSvg("clipPath", { id: "inside" }, makeSvg("rect", { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT,
      height: HEIGHT - TOP - BOTTOM })));
  drawAxes(root, { x, y, isLog, across, up });
  const curves = makeSvg("g", { "clip-path": "url(#inside)", fill: "none" });
  for (const line of lines) drawCurve(curves, chart, line, across, up);
  root.append(curves);
  named.forEach((line, at) => drawEntry(root, line, at));
  return new XMLSerializer().serializeToString(root);
}

const text = (content, x, y, more = {}) => makeSvg("text", { x, y, ...more }, content);

function drawAxes(root, { x, y, isLog, across, up }) {
  const grid = { stroke: ink("--grid"), "stroke-width": 1 }, quiet = { fill: ink("--quiet") };
  for (const value of isLog ? logTicks(y.min, y.max) : ticks(y.min, y.max)) {
    root.append(makeSvg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: up(value), y2: up(value), ...grid }),
      text(number(value), LEFT - 6, up(value) + 4, { "text-anchor": "end", ...quiet }));
  }
  for (const step of ticks(x.min, x.max, 6)) {
    root.append(makeSvg("line", { x1: across(step), x2: across(step), y1: TOP, y2: HEIGHT - BOTTOM, ...grid }),
      text(shortStep(step), across(step), HEIGHT - BOTTOM + 16, { "text-anchor": "middle", ...quiet }));
  }
  root.append(text("steps", WIDTH - RIGHT, HEIGHT - BOTTOM + 32, { "text-anchor": "end", ...quiet }));
}

function drawCurve(place, chart, line, across, up) {
  const [main, low, high] = chart.rowsOf([line]), [x] = chart.data;
  const { colour, dash } = styleOf(line);
  const points = (row) => x.flatMap((step, at) =>
    (row[at] == null ? [] : [`${across(step).toFixed(1)},${up(row[at]).toFixed(1)}`]));
  if (low) {
    place.append(makeSvg("polygon", { points: [...points(high), ...points(low).reverse()].join(" "),
      fill: colour, "fill-opacity": 0.18 }));
  }
  place.append(makeSvg("polyline", { points: points(main).join(" "), stroke: colour,
    "stroke-width": line.width ?? 1.6, "stroke-dasharray": dash?.join(" ") }));
}

function drawEntry(root, line, at) {
  const x = LEFT + (at % COLUMNS) * ((WIDTH - LEFT) / COLUMNS), y = HEIGHT + LINE * Math.floor(at / COLUMNS) + 6;
  const { colour, dash } = styleOf(line);
  root.append(makeSvg("line", { x1: x, x2: x + 18, y1: y - 4, y2: y - 4, stroke: colour, "stroke-width": 2,
    "stroke-dasharray": dash?.join(" ") }), text(line.label, x + 24, y));
}
