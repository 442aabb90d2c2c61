// The stream of changes from the server. It names only the runs of which something is not here yet, so
// that selecting one more run does not send the logs of the others again, and only the columns that
// they lack. Many logs come in portions.

import { hasArrived, isComplete, missingColumns, receiveChanges, receiveList, receiveLog, receiveMarks,
  receiveValidation, store, summaryOf } from "./store.js";

const MAX_RUNS = 300; // whose finished logs are requested at a time
const MAX_LETTERS = 16_000; // of their names, because the address has a limit
const MAX_LIVE = 60; // runs that are followed while they train
const RETRY = 1_000; // ms after a connection broke
const PAUSE = 150; // ms without a new log after which the next portion is requested
const NONE = { runs: [], columns: [], whole: null };
let source = null, wanted = NONE, followed = NONE, timer = 0, pause = 0;
let onChange = () => {}, onState = () => {};

// onChange(kind, run): called after something arrived. onState(connected): of the connection.
export function setUp(handlers) {
  ({ onChange, onState } = handlers);
  // A browser opens six connections to a server, however many tabs there are, so a hidden tab
  // closes its own.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open();
  });
}

// Follows these runs: their columns, and all columns of the run `whole`. Quick changes of the
// selection open one stream.
export function follow(runs, columns, whole) {
  wanted = { runs, columns, whole };
  if (source && isFollowed(portion())) return;
  clearTimeout(timer);
  timer = setTimeout(open, source ? 30 : 0);
}

// True if the open stream brings all of this, and nothing of a run that is no longer selected.
function isFollowed({ runs, columns, whole }) {
  return runs.every((run) => followed.runs.includes(run)) && (!whole || followed.whole === whole) &&
    columns.every((name) => followed.columns.includes(name)) &&
    followed.runs.every((run) => wanted.runs.includes(run));
}

const columnsOf = (run) => (run === wanted.whole ? null : wanted.columns);

// Runs that may log more at any time, and some of those of which something has not arrived yet.
function portion() {
  const missing = wanted.runs.filter((run) => !isComplete(run, columnsOf(run)));
  const isLive = (run) => !summaryOf(run)?.step || summaryOf(run).state === "training";
  const live = missing.filter(isLive).slice(0, MAX_LIVE), runs = [...live];
  let letters = 0;
  for (const run of missing.filter((each) => !isLive(each)).slice(0, MAX_RUNS)) {
    letters += encodeURIComponent(run).length;
    if (letters > MAX_LETTERS) break;
    runs.push(run);
  }
  const whole = runs.includes(wanted.whole) ? wanted.whole : null;
  const lacked = runs.filter((run) => run !== whole).map((run) => missingColumns(run, wanted.columns));
  const columns = live.length ? wanted.columns : [...new Set(lacked.flat())];
  return { runs, columns, whole };
}

// True if the logs of all selected runs are here as far as they are wanted.
export const isSettled = () => wanted.runs.every((run) => !isDue(run) || hasArrived(run, columnsOf(run)));

function close() {
  source?.close();
  source = null;
}

function open() {
  close();
  clearTimeout(timer);
  if (document.hidden) return;
  const received = new Set(); // logs of this stream replace those of an earlier one
  followed = portion();
  const { runs, columns, whole } = followed;
  const parameters = new URLSearchParams(runs.map((run) => ["run", run]));
  parameters.set("columns", columns.join());
  if (whole !== null) parameters.set("whole", whole);
  if (store.version !== null) parameters.set("version", store.version);
  const opened = source = new EventSource(`/events?${parameters}`);
  opened.onopen = () => onState(true);
  opened.onerror = () => {
    if (opened !== source) return;
    onState(false);
    close(); // the browser would ask for everything again
    timer = setTimeout(open, RETRY);
  };
  const listen = (kind, receive) => opened.addEventListener(kind, ({ data }) => {
    const content = JSON.parse(data), log = `${kind} ${content.run}`;
    const isFirst = !received.has(log);
    received.add(log);
    receive(content, isFirst);
    onChange(kind, content.run);
    if (kind !== "log" || !isFirst) return;
    clearTimeout(pause);
    pause = setTimeout(() => opened === source && continueWith(runs), PAUSE);
  });
  listen("runs", receiveList);
  listen("changes", receiveChanges);
  listen("log", (content, isFirst) => receiveLog(content, isFirst, content.run === whole ? null : columns));
  listen("validation", (content, isFirst) => receiveValidation(content, isFirst || content.reset));
  listen("marks", ({ run, marks }) => receiveMarks(run, marks));
}

// Opens a stream for the next portion when this one has arrived.
function continueWith(runs) {
  const next = portion().runs;
  if (next.some((run) => !runs.includes(run)) && !next.some((run) => runs.includes(run) && isDue(run))) {
    follow(wanted.runs, wanted.columns, wanted.whole);
  }
}

const isDue = (run) => summaryOf(run)?.step > 0 && summaryOf(run).state !== "training";
