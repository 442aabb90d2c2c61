// Numbers, steps and times as text.

const decimal = new Intl.NumberFormat("en", { maximumFractionDigits: 8 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// Four significant digits, as far as they are needed: 18.02, 0.0912, 1,240.
export function number(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(2)
    : decimal.format(Number(value.toPrecision(4)));
  return text.replaceAll("-", "−");
}

// The same without separators, as a number field takes it.
export const plain = (value) => String(Number(value.toPrecision(4)));

export const step = (value) => whole.format(value);

// A step at an axis: 1.5M, 20k, 500.
export function shortStep(value) {
  if (Math.abs(value) >= 1e6) return `${Number((value / 1e6).toPrecision(6))}M`;
  if (Math.abs(value) >= 1e4) return `${Number((value / 1e3).toPrecision(6))}k`;
  return String(value);
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export const pace = (speed) => `${speed >= 10 ? Math.round(speed) : speed.toPrecision(2)} steps/s`;

export const subscript = (index) =>
  [...String(index)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]).join("");

// Sorts seed-2 before seed-10.
export const natural = new Intl.Collator("en", { numeric: true }).compare;

// Last parts of a run's path; the folder of the page itself is "this run".
export const shortName = (run, parts = 1) =>
  run === "." ? "this run" : run.split("/").slice(-parts).join("/");

export const folderOf = (run) => run.split("/").slice(0, -1).join("/");

// Short names that tell all of these runs apart.
export function shortNames(runs) {
  for (let parts = 1; parts < 6; parts++) {
    const names = runs.map((run) => shortName(run, parts));
    if (new Set(names).size === runs.length) return new Map(runs.map((run, at) => [run, names[at]]));
  }
  return new Map(runs.map((run) => [run, run]));
}

// A word as the shell reads it.
export const quoted = (text) =>
  /^[\w./=+:,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
