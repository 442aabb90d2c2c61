// The stream of changes from the server. It names only the runs whose log is not complete here, so
// that selecting one more run does not send the logs of the others again.

import { isComplete, receiveChanges, receiveColumns, receiveList, receiveMarks, store }
  from "./store.js";

let source = null, followed = "", onChange = () => {}, onState = () => {}, timer = 0;

// onChange(kind, run): called after something arrived. onState(connected): of the connection.
export function setUp(handlers) {
  ({ onChange, onState } = handlers);
  // A browser opens six connections to a server, however many tabs there are, so a hidden tab
  // closes its own.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open(JSON.parse(followed || "[]"));
  });
}

// Follows these runs. Quick changes of the selection open one stream.
export function follow(runs) {
  const wanted = JSON.stringify(runs.filter((run) => !isComplete(run)));
  if (source && wanted === followed) return;
  followed = wanted;
  clearTimeout(timer);
  timer = setTimeout(() => open(JSON.parse(wanted)), source ? 30 : 0);
}

function close() {
  source?.close();
  source = null;
}

function open(runs) {
  close();
  if (document.hidden) return;
  const version = store.version === null ? [] : [["version", store.version]];
  source = new EventSource(`/events?${new URLSearchParams([...runs.map((run) => ["run", run]), ...version])}`);
  const received = new Set(); // logs of this stream; they replace those of an earlier one
  source.onopen = () => {
    received.clear();
    onState(true);
  };
  source.onerror = () => onState(false);
  const listen = (kind, receive) => source.addEventListener(kind, ({ data }) => {
    const content = JSON.parse(data), log = `${kind} ${content.run}`;
    const isFirst = !received.has(log);
    received.add(log);
    receive(content, isFirst || content.reset);
    onChange(kind, content.run);
  });
  listen("runs", receiveList);
  listen("changes", receiveChanges);
  listen("log", ({ run, columns }, reset) => receiveColumns("log", run, reset, columns));
  listen("validation", ({ run, columns }, reset) => receiveColumns("validation", run, reset, columns));
  listen("marks", ({ run, marks }, reset) => receiveMarks(run, reset, marks));
}
