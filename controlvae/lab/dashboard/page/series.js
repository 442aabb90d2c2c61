// Arithmetic on curves: smoothing, a common grid of steps, mean and spread over seeds.

// Exponential moving average without the bias of its start, as TensorBoard smooths.
// weight is 0 (no smoothing) to just below 1; gaps stay gaps.
export function smooth(values, weight) {
  if (!weight) return values;
  let average = 0, scale = 0;
  return values.map((value) => {
    if (value == null) return null;
    average = weight * average + (1 - weight) * value;
    scale = weight * scale + (1 - weight);
    return average / scale;
  });
}

// Returns one array of steps and a row of values for each curve. Curves on the same steps, which
// seeds of one experiment are, need no search.
export function join(curves) {
  if (!curves.length) return [[]];
  const [{ x }] = curves;
  const same = curves.every((curve) => curve.x === x || sameSteps(curve.x, x));
  if (same) return [x, ...curves.map((curve) => fill(curve.y, x.length))];
  return uPlot.join(curves.map((curve) => [curve.x, fill(curve.y, curve.x.length)]));
}

export const sameSteps = (one, other) =>
  one.length === other.length && one.every((step, at) => step === other[at]);

// A column that a log only has from some line on is shorter than its steps.
const fill = (values, length) =>
  values.length === length ? values : Array.from({ length }, (_, at) => values[at] ?? null);

// Mean and standard deviation of curves on the steps of the longest one. Others are interpolated
// between their steps and count only within their range.
export function spread(curves) {
  const grid = curves.reduce((best, { x }) => (x.length > best.length ? x : best), []);
  const rows = curves.map((curve) => resample(curve.x, curve.y, grid));
  const mean = [], low = [], high = [];
  grid.forEach((_, at) => {
    const values = rows.map((row) => row[at]).filter((value) => value != null);
    const average = values.reduce((sum, value) => sum + value, 0) / values.length;
    const squares = values.reduce((sum, value) => sum + (value - average) ** 2, 0);
    const sd = values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
    mean.push(values.length ? average : null);
    low.push(values.length ? average - sd : null);
    high.push(values.length ? average + sd : null);
  });
  return { x: grid, mean, low, high };
}

function resample(x, y, grid) {
  if (x === grid) return y;
  let at = 0;
  return grid.map((step) => {
    while (at < x.length - 1 && x[at + 1] <= step) at++;
    if (x.length === 0 || step < x[0] || step > x.at(-1) || y[at] == null) return null;
    if (x[at] === step || y[at + 1] == null) return y[at];
    return y[at] + ((y[at + 1] - y[at]) * (step - x[at])) / (x[at + 1] - x[at]);
  });
}

// Last value of a curve that is a number, at or before an index.
export function valueAt(values, index = values.length - 1) {
  for (let at = Math.min(index, values.length - 1); at >= 0; at--) {
    if (values[at] != null) return values[at];
  }
  return null;
}

// Smallest and largest number of several arrays, from an index on.
export function extent(rows, from = 0, to = Infinity) {
  let low = Infinity, high = -Infinity;
  for (const row of rows) {
    for (let at = from; at < Math.min(row.length, to); at++) {
      const value = row[at];
      if (value == null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return [low, high];
}
