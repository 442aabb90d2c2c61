// Drawn on the canvas of a chart: the reachable band of targets, and marks where curves are cut off.

import { styleOf } from "./colours.js";
import { number } from "./format.js";
import { ink } from "./theme.js";

// reach: {low, high, draft} or null; an end that is not known is null, draft is the target of the slider.
export function drawReach(plot, reach) {
  if (!reach) return;
  const { ctx, bbox: { left, top, width, height } } = plot;
  const inside = (y) => Math.max(top, Math.min(top + height, y));
  const position = (value) => plot.valToPos(value, "y", true);
  ctx.save();
  if (reach.low != null || reach.high != null) {
    const upper = reach.high == null ? top : inside(position(reach.high));
    const lower = reach.low == null ? top + height : inside(position(reach.low));
    ctx.fillStyle = ink("--reach");
    ctx.fillRect(left, upper, width, lower - upper);
  }
  if (reach.draft != null) {
    const y = position(reach.draft);
    if (y >= top && y <= top + height) {
      ctx.strokeStyle = ink("--accent");
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
    }
  }
  ctx.restore();
}

// A triangle at the edge where a curve leaves the range, and a note with the value that is cut off.
export function drawClipped(plot, chart) {
  const { ctx, bbox: { left, top, width, height } } = plot, { min, max } = plot.scales.y;
  const size = 5 * devicePixelRatio, cut = [];
  for (const [place, { label, stroke, show }] of seriesWithLines(plot, chart).entries()) {
    if (!show) continue;
    const [index, value] = farthest(plot, place + 1, min, max);
    if (index < 0) continue;
    const isAbove = value > max, edge = isAbove ? top : top + height;
    const at = plot.valToPos(plot.data[0][index], "x", true);
    const x = Math.max(left + size, Math.min(left + width - size, at));
    cut.push({ text: `${label} ${isAbove ? "up" : "down"} to ${number(value)}`, size: Math.abs(value) });
    ctx.save();
    ctx.fillStyle = stroke;
    ctx.beginPath();
    ctx.moveTo(x, edge);
    ctx.lineTo(x - size, edge + (isAbove ? size : -size));
    ctx.lineTo(x + size, edge + (isAbove ? size : -size));
    ctx.fill();
    ctx.restore();
  }
  chart.setNote(describeCut(cut));
}

function describeCut(cut) {
  if (!cut.length) return "";
  const { text } = cut.reduce((most, each) => (each.size > most.size ? each : most));
  return cut.length === 1 ? `Cut off: ${text}` : `Cut off: ${cut.length} curves, ${text}`;
}

// The series of a plot, with the label of the curve they belong to; "" for its band and raw values.
function seriesWithLines(plot, chart) {
  return chart.spec.lines.flatMap((line) => {
    const { colour } = styleOf(line), main = { label: line.label, stroke: colour };
    const other = { label: "", stroke: colour };
    return [...(line.ghost ? [other] : []), main, ...(line.low ? [other, other] : [])];
  }).map((each, at) => ({ ...each, show: plot.series[at + 1].show && each.label !== "" }));
}

// Index and value of the point of a series that is farthest outside the range; index −1 if none is.
function farthest(plot, series, min, max) {
  const [first, last] = [plot.scales.x.min, plot.scales.x.max], [x] = plot.data, values = plot.data[series];
  const slack = 1e-9 * (max - min);
  let index = -1, distance = slack;
  for (let at = 0; at < x.length; at++) {
    const value = values[at];
    if (value == null || x[at] < first || x[at] > last) continue;
    const outside = Math.max(value - max, min - value);
    if (outside > distance) [index, distance] = [at, outside];
  }
  return [index, index < 0 ? 0 : values[index]];
}
