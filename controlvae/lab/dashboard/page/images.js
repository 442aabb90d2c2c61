// Output of the explorer for images: the original with its reconstruction, the decoded code, and a
// strip of images along each latent.

import { debounce, make, setAttribute } from "./dom.js";
import { onlyNewest } from "./latest.js";

const STRIP_PAUSE = 200; // ms after the last movement

// address(what, more): of what the present code decodes to; exampleAddress(): of the original.
export function imageOutput({ address, exampleAddress }) {
  const pair = make("img", { class: "pair", alt: "an example, and next to it its reconstruction" });
  const decoded = make("img", { class: "decoded", alt: "the image that the sliders decode to" });
  const figure = (image, ...names) =>
    make("figure", {}, image, make("figcaption", {}, ...names.map((name) => make("span", {}, name))));
  const box = make("div", { class: "images" },
    figure(pair, "original", "reconstruction"), figure(decoded, "sliders"));
  return {
    box,
    paint: painter(decoded, () => address("image")),
    showExample: () => setAttribute(pair, "src", exampleAddress()),
    makeStrip(latent) {
      const strip = make("img", { class: "strip", alt: "" });
      const load = painter(strip, () => address("strip", { latent }));
      return { box: strip, paint: debounce(load, STRIP_PAUSE) };
    },
  };
}

// Returns a function that loads the newest address into an image.
const painter = (image, addressNow) => onlyNewest(() => new Promise((done) => {
  if (!image.isConnected) {
    done(); // another run was selected meanwhile
    return;
  }
  image.onload = image.onerror = done;
  image.src = addressNow();
}));
