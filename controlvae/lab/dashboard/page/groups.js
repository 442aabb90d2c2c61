// Groups of runs: by folder, by all settings but the seed, or by the value of one setting.

import { folderOf, natural } from "./format.js";

const NAMING = new Set(["name", "about", "paper"]); // of an experiment: no settings
export const SEED = "training.seed";

// Names of settings that differ among runs.
export function differing(runs, settings) {
  const seen = new Map();
  for (const run of runs) {
    for (const [name, value] of Object.entries(settings.get(run) ?? {})) {
      if (!seen.has(name)) seen.set(name, new Set());
      seen.get(name).add(JSON.stringify(value));
    }
  }
  const counts = (name) => runs.filter((run) => name in (settings.get(run) ?? {})).length;
  return [...seen].filter(([name, values]) => !NAMING.has(name) &&
    (values.size > 1 || counts(name) < runs.length)).map(([name]) => name).sort(natural);
}

// Returns [{key, label, runs: summaries}], in natural order.
export function groupRuns(summaries, by, settings) {
  const groups = new Map();
  for (const summary of summaries) {
    const key = keyOf(summary, by, settings.get(summary.run) ?? {});
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(summary);
  }
  const labelled = [...groups].map(([key, runs]) => ({ key, runs, label: labelOf(key, runs, by) }));
  if (by === "seeds") makeUnique(labelled);
  return labelled.sort((one, other) => natural(one.label, other.label));
}

function keyOf(summary, by, settings) {
  if (by === "") return folderOf(summary.run);
  if (by !== "seeds") return JSON.stringify(settings[by] ?? null);
  const { [SEED]: seed, ...others } = settings;
  return JSON.stringify(Object.entries(others).filter(([name]) => !NAMING.has(name)).sort());
}

function labelOf(key, runs, by) {
  if (by === "") return key || "this folder";
  if (by === "seeds") return runs[0].preset ?? "unreadable";
  const value = JSON.parse(key);
  return `${by} = ${value === null ? "not set" : typeof value === "object" ? JSON.stringify(value) : value}`;
}

// Experiments of the same preset are told apart by their folder, or else by a number.
function makeUnique(groups) {
  const seen = new Map();
  for (const group of groups) seen.set(group.label, [...(seen.get(group.label) ?? []), group]);
  for (const same of seen.values()) {
    if (same.length === 1) continue;
    const folders = same.map(({ runs }) => folderOf(runs[0].run));
    const distinct = new Set(folders).size === same.length;
    same.forEach((group, at) => { group.label += ` · ${distinct ? folders[at] || "." : at + 1}`; });
  }
}
