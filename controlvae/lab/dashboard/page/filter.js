// The filter of the run list: words match names, `name=value` and `name>value` match numbers,
// settings and states. All terms must match.

const TERM = /^([\p{L}_][\p{L}\p{N}_.]*)(!=|>=|<=|=|>|<)(.+)$/u;

// Returns the terms of a filter text: [{word}] or [{field, sign, value}].
export function parseFilter(text) {
  return text.trim().split(/\s+/).filter(Boolean).map((term) => {
    const found = TERM.exec(term);
    return found ? { field: found[1].toLowerCase(), sign: found[2], value: found[3] }
      : { word: term.toLowerCase() };
  });
}

// True if a term needs the settings of runs, which are only loaded then.
export const needsSettings = (terms, summaries) =>
  terms.some(({ field }) => field && !summaries.some((each) => ownField(each, field) !== undefined));

// settings: {name: value} of this run, or undefined before they are loaded.
export function matches(terms, summary, settings) {
  return terms.every(({ word, field, sign, value }) => {
    if (word) {
      return [summary.run, summary.preset, summary.state]
        .some((text) => text?.toLowerCase().includes(word));
    }
    const found = ownField(summary, field) ?? setting(settings, field);
    return found !== undefined && compare(found, sign, value);
  });
}

function ownField(summary, field) {
  if (["run", "preset", "state", "law", "step", "steps", "target"].includes(field)) {
    return summary[field] ?? undefined;
  }
  return summary.latest?.[field];
}

// A setting by its full name, or by its last part: training.seed or seed.
function setting(settings, field) {
  if (!settings) return undefined;
  const name = Object.keys(settings).find((each) => each.toLowerCase() === field) ??
    Object.keys(settings).find((each) => each.toLowerCase().split(".").at(-1) === field);
  return name === undefined ? undefined : settings[name];
}

function compare(found, sign, value) {
  const numbers = typeof found !== "boolean" && found !== "" && Number.isFinite(Number(found)) &&
    Number.isFinite(Number(value));
  const [left, right] = numbers ? [Number(found), Number(value)]
    : [String(found).toLowerCase(), value.toLowerCase()];
  switch (sign) {
    case "=": return left === right;
    case "!=": return left !== right;
    case ">": return numbers && left > right;
    case "<": return numbers && left < right;
    case ">=": return numbers && left >= right;
    default: return numbers && left <= right;
  }
}
