// A piece of the page. Words go in as text: what a run or a sentence is called is never markup.

export function element(tag, kind = "", words = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.textContent = words;
  return made;
}
