// Helpers to build the page. Texts are set as text content, so that names are never markup.

export function element(tag, kind = "", text = "") {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  node.textContent = text;
  return node;
}

// Sets a text only if it differs, so that a selection by the user is kept.
export function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

export const fixed = (value) => (value == null ? "–" : Number(value.toPrecision(4)).toString());
