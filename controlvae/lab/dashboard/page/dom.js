// Helpers that build elements. Texts become text nodes, so that names are never markup.

export const find = (selector, place = document) => place.querySelector(selector);
export const findAll = (selector, place = document) => [...place.querySelectorAll(selector)];

// Creates an element: make("p", { class: "quiet" }, "a text", another).
// A key that starts with "on" is an event handler; false and null leave an attribute out.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else setAttribute(node, key, value);
  }
  node.append(...children);
  return node;
}

// Creates an SVG element.
export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) setAttribute(node, key, value);
  node.append(...children);
  return node;
}

// Sets a text only if it differs, so that a selection by the user is kept.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  const isState = name.startsWith("aria-"); // "true" and "false" are words there
  const text = value == null ? null : isState || typeof value !== "boolean" ? String(value) : value ? "" : null;
  if (node.getAttribute(name) === text) return;
  if (text === null) node.removeAttribute(name);
  else node.setAttribute(name, text);
}

// Replaces the children of an element only if they differ. The focus stays where it is.
export function setChildren(place, children) {
  const same = place.children.length === children.length &&
    children.every((child, at) => place.children[at] === child);
  if (same) return;
  const active = document.activeElement, hadFocus = place.contains(active);
  place.replaceChildren(...children);
  if (hadFocus && active.isConnected) active.focus({ preventScroll: true });
}

// Returns a function that calls another after a pause in the calls.
export function debounce(call, wait) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), wait);
  };
}

// Gets JSON from the server. A failure is returned as { error }, in words.
export async function getJson(path, parameters = [], options = {}) {
  const query = new URLSearchParams(parameters);
  try {
    const answer = await fetch(`${path}?${query}`, options);
    const content = await answer.json();
    return answer.ok ? content : { error: content.error ?? `the server answers ${answer.status}` };
  } catch {
    return { error: "the server does not respond", unreachable: true };
  }
}
