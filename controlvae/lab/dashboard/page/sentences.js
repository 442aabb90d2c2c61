// Output of the explorer for sentences and dialogs: the example, what the sliders decode to, and for
// sentences also samples and reconstructions.

import { getJson, make, setText } from "./dom.js";
import { onlyNewest } from "./latest.js";

// address(what, more): of what the present code decodes to; kind: sentences or dialogs.
export function textOutput({ address, kind }) {
  const context = make("ul", { class: "context" }), original = make("p", { class: "sentence" });
  const decoded = make("p", { class: "sentence decoded", role: "status" });
  const isDialog = kind === "dialogs";
  const box = make("div", { class: "texts" },
    ...(isDialog ? [make("h4", {}, "Context"), context] : []),
    make("h4", {}, isDialog ? "Response in the data" : "Original"), original,
    make("h4", {}, isDialog ? "Response of the sliders" : "Sentence of the sliders"), decoded);
  if (!isDialog) box.append(samples(address));
  return {
    box,
    paint: onlyNewest(async () => {
      const answer = await request(address("sentence"));
      setText(decoded, answer.error ?? (answer.sentence || "(empty)"));
    }),
    showExample: ({ text, context: lines }) => {
      setText(original, text ?? "");
      context.replaceChildren(...(lines ?? []).map((line) => make("li", {}, line)));
    },
  };
}

function request(address) {
  const [path, query] = address.split("?");
  return getJson(path, query);
}

// Samples and reconstructions, loaded when they are opened.
function samples(address) {
  const place = make("div", {});
  const details = make("details", {}, make("summary", {}, "Samples and reconstructions"), place);
  details.addEventListener("toggle", async () => {
    if (!details.open || place.children.length) return;
    const found = await request(address("sentences"));
    if (found.error) place.replaceChildren(make("p", { class: "warning" }, found.error));
    else place.replaceChildren(...tables(found));
  });
  return details;
}

function tables({ samples: drawn, reconstructions }) {
  const row = (tag, texts) => make("tr", {}, ...texts.map((text) => make(tag, {}, text)));
  return [
    make("h4", {}, "Sampled from the prior"),
    make("ol", {}, ...drawn.map((line) => make("li", {}, line))),
    make("table", {}, row("th", ["sentence", "reconstruction"]),
      ...reconstructions.map((pair) => row("td", [pair.sentence, pair.read_back]))),
  ];
}
