// Pieces of the page. Words go in as text: what a run or a sentence is called is never markup.

export function element(tag, kind = "", words = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.textContent = words;
  return made;
}

// Says something where it is not said already: what a person has selected stays selected.
export function say(place, words) {
  if (place.textContent !== words) place.textContent = words;
}

export const fixed = (value) => (value == null ? "–" : Number(value.toPrecision(4)).toString());
