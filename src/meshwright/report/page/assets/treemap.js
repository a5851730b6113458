// Sizes as areas of one box: the parts are halved by size, along the longer side, until each is alone.
import { explains } from "page/card.js";
import { svg } from "page/svg.js";

// parts: [{ name, size, colour, shown, paper? }], where `shown` is the size in words, and `paper` says that the colour is
// near to the paper's.
export function treemap(parts, label, { width = 480, height = 260 } = {}) {
  const whole = parts.reduce((sum, one) => sum + one.size, 0);
  const sorted = parts.filter((one) => one.size > 0).sort((a, b) => b.size - a.size);
  const boxes = laid(sorted, 0, 0, width, height).map(([one, x, y, wide, high]) => {
    const words = one.paper ? "within on-paper" : "within";
    const lines = wordsIn(one, wide, high);
    const box = svg("g", { tabindex: "0", role: "img", "aria-label": `${one.name}: ${one.shown}` },
      svg("rect", { x: x + 0.5, y: y + 0.5, width: Math.max(wide - 1, 0.5), height: Math.max(high - 1, 0.5), rx: 2, fill: one.colour }),
      ...lines.map((line, at) => svg("text", { x: x + 7, y: y + 17 + LINE * at, class: words }, line)));
    return explains(box, [one.name, [one.shown, `${((100 * one.size) / whole).toFixed(0)}%`]]);
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawing treemap", role: "group", "aria-label": label }, ...boxes);
}

// Name and size in lines that the box has room for: the name on one line, else a line a word, else nothing.
const [LETTER, LINE] = [6.6, 15];
function wordsIn({ name, shown }, wide, high) {
  const fits = (lines) => lines.every((line) => LETTER * line.length + 12 <= wide) && LINE * lines.length + 7 <= high;
  return [[name, shown], [...name.split(" "), shown]].find(fits) ?? [];
}

function laid(parts, x, y, width, height) {
  if (!parts.length) return [];
  if (parts.length === 1) return [[parts[0], x, y, width, height]];
  const whole = parts.reduce((sum, one) => sum + one.size, 0);
  let [cut, first] = [1, parts[0].size];
  while (cut < parts.length - 1 && Math.abs(first + parts[cut].size - whole / 2) < Math.abs(first - whole / 2)) first += parts[cut++].size;
  const share = first / whole;
  const [own, rest] = [parts.slice(0, cut), parts.slice(cut)];
  return width >= height
    ? [...laid(own, x, y, width * share, height), ...laid(rest, x + width * share, y, width * (1 - share), height)]
    : [...laid(own, x, y, width, height * share), ...laid(rest, x, y + height * share, width, height * (1 - share))];
}
