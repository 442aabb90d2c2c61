"""Contrast of the texts and lines of the dashboard, measured in the page.

The script gives {isDark, poor}: texts below 4.5 to their background, and curves below 3 to a card.
"""

CONTRASTS = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ratio = (one, other) => { const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05); };
  const ground = (node) => { for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour; } return [255, 255, 255]; };
  const poor = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility() || node.matches(':disabled, :disabled *, option')) continue;
    const value = ratio(parse(getComputedStyle(node).color), ground(node));
    if (value < 4.5) poor.push(`${node.className} ${node.textContent.slice(0, 30)} ${value.toFixed(2)}`);
  }
  return import('/page/colours.js').then(({ LIGHT, DARK }) => {
    const card = ground(document.querySelector('.chart')), isDark = light(card) < 0.5;
    for (const colour of isDark ? DARK : LIGHT) {
      const rgb = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      if (ratio(rgb, card) < 3) poor.push(`line ${colour} ${ratio(rgb, card).toFixed(2)}`);
    }
    return { isDark, poor };
  });
})()"""
