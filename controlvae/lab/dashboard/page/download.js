// Downloads of a chart: its numbers as CSV, and the chart as it is shown as PNG and SVG.

import { make } from "./dom.js";
import { styleOf } from "./colours.js";
import { toSvg } from "./svg.js";
import { ink } from "./theme.js";

export function downloadMenu(chart) {
  const item = (kind, write) => make("button", { type: "button", onclick: async () => {
    menu.open = false;
    await chart.actions.complete(chart.spec.id);
    save(`${fileName(chart)}.${kind}`, await write(chart));
  } }, kind.toUpperCase());
  const menu = make("details", { class: "menu" },
    make("summary", { class: "small", title: "Download" }, "⤓"),
    make("div", {}, item("csv", toCsv), item("png", toPng), item("svg", svgBlob)));
  menu.firstChild.setAttribute("aria-label", `Download ${chart.spec.title}`);
  menu.addEventListener("focusout", ({ relatedTarget }) => {
    if (!menu.contains(relatedTarget)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.firstChild.focus();
  });
  return menu;
}

const fileName = ({ spec }) => `controlvae-${spec.id.replace(/\W+/g, "-")}`;

const visibleLines = ({ spec, hidden }) => spec.lines.filter(({ key }) => !hidden.includes(key));

// One row for each step, one column for each visible curve.
function toCsv(chart) {
  const rows = visibleLines(chart).flatMap((line) => {
    const [main, low, high] = chart.rowsOf([line]);
    const spread = low ? [[`${line.label} − sd`, low], [`${line.label} + sd`, high]] : [];
    return [[line.label, main], ...spread];
  });
  const lines = [["step", ...rows.map(([label]) => quote(label))]];
  chart.data[0].forEach((step, at) => lines.push([step, ...rows.map(([, row]) => row[at] ?? "")]));
  return new Blob([lines.map((line) => line.join(",")).join("\n"), "\n"], { type: "text/csv" });
}

// A label as a CSV field. A leading sign would make it a formula in a spreadsheet.
function quote(text) {
  const safe = /^[=+\-@]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function svgBlob(chart) {
  return new Blob([toSvg(chart, visibleLines(chart))], { type: "image/svg+xml" });
}

// The canvas as it is, below its title and above its legend.
function toPng(chart) {
  const ratio = devicePixelRatio, { canvas } = chart;
  const lines = visibleLines(chart).filter((line) => !line.isUnnamed);
  const image = document.createElement("canvas"), line = 18 * ratio, margin = 8 * ratio;
  const columns = Math.max(1, Math.floor(canvas.width / (150 * ratio)));
  image.width = canvas.width + 2 * margin;
  image.height = canvas.height + 2 * line + Math.ceil(lines.length / columns) * line + margin;
  const ctx = image.getContext("2d");
  ctx.fillStyle = ink("--card");
  ctx.fillRect(0, 0, image.width, image.height);
  ctx.fillStyle = ink("--ink");
  ctx.font = `600 ${13 * ratio}px system-ui, sans-serif`;
  ctx.fillText(chart.title.textContent, margin, line);
  ctx.drawImage(canvas, margin, 1.4 * line);
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  lines.forEach((each, at) => {
    const x = margin + (at % columns) * 150 * ratio;
    const y = canvas.height + 2 * line + Math.floor(at / columns) * line + 0.5 * line;
    const { colour, dash } = styleOf(each);
    ctx.strokeStyle = colour;
    ctx.lineWidth = 2 * ratio;
    ctx.setLineDash((dash ?? []).map((length) => length * ratio));
    ctx.beginPath();
    ctx.moveTo(x, y - 4 * ratio);
    ctx.lineTo(x + 18 * ratio, y - 4 * ratio);
    ctx.stroke();
    ctx.fillText(each.label, x + 24 * ratio, y, 122 * ratio);
  });
  return new Promise((done) => image.toBlob(done, "image/png"));
}

function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
