// The stream of changes from the server. It names only the runs whose log is not complete here, so
// that selecting one more run does not send the logs of the others again. Many logs come in portions:
// a connection that breaks then loses only one.

import { isComplete, receiveChanges, receiveColumns, receiveList, receiveMarks, store, summaryOf }
  from "./store.js";

const PORTION = 40; // logs of finished runs that are requested at a time
const MAX_LIVE = 60; // runs that are followed while they train
const RETRY = 1_000; // ms after a connection broke
const PAUSE = 150; // ms without a new log after which the next portion is requested
let source = null, selected = [], followed = "", timer = 0, pause = 0;
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

// Follows these runs. Quick changes of the selection open one stream.
export function follow(runs) {
  selected = runs;
  if (source && JSON.stringify(portion()) === followed) return;
  clearTimeout(timer);
  timer = setTimeout(open, source ? 30 : 0);
}

// Runs that may log more at any time, and some of those whose log has not arrived yet.
function portion() {
  const missing = selected.filter((run) => !isComplete(run));
  const isLive = (run) => !summaryOf(run)?.step || summaryOf(run).state === "training";
  return [...missing.filter(isLive).slice(0, MAX_LIVE),
    ...missing.filter((run) => !isLive(run)).slice(0, PORTION)];
}

function close() {
  source?.close();
  source = null;
}

function open() {
  close();
  clearTimeout(timer);
  if (document.hidden) return;
  const runs = portion(), received = new Set(); // logs of this stream replace those of an earlier one
  followed = JSON.stringify(runs);
  const version = store.version === null ? [] : [["version", store.version]];
  const parameters = new URLSearchParams([...runs.map((run) => ["run", run]), ...version]);
  const own = source = new EventSource(`/events?${parameters}`);
  own.onopen = () => onState(true);
  own.onerror = () => {
    if (own !== source) return;
    onState(false);
    close(); // the browser would ask for everything again
    timer = setTimeout(open, RETRY);
  };
  const listen = (kind, receive) => own.addEventListener(kind, ({ data }) => {
    const content = JSON.parse(data), log = `${kind} ${content.run}`;
    const isFirst = !received.has(log);
    received.add(log);
    receive(content, isFirst || content.reset);
    onChange(kind, content.run);
    if (kind !== "log" || !isFirst) return;
    clearTimeout(pause);
    pause = setTimeout(() => own === source && continueWith(runs), PAUSE);
  });
  listen("runs", receiveList);
  listen("changes", receiveChanges);
  listen("log", ({ run, columns }, reset) => receiveColumns("log", run, reset, columns));
  listen("validation", ({ run, columns }, reset) => receiveColumns("validation", run, reset, columns));
  listen("marks", ({ run, marks }, reset) => receiveMarks(run, reset, marks));
}

// Opens a stream for the next portion when this one has arrived.
function continueWith(runs) {
  const next = portion();
  if (next.some((run) => !runs.includes(run)) && !next.some((run) => runs.includes(run) && isDue(run))) {
    follow(selected);
  }
}

const isDue = (run) => summaryOf(run)?.step > 0 && summaryOf(run).state !== "training";
