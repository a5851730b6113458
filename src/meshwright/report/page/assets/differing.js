// Two texts line by line: what the second one took away, and what it added.
import { html } from "page/svg.js";

const MOST_CELLS = 4e6;
const AROUND = 2;

// [" " | "-" | "+", line] of every line, by the longest common subsequence.
export function lineChanges(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let first = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) first++;
  let last = 0;
  while (last < a.length - first && last < b.length - first && a[a.length - 1 - last] === b[b.length - 1 - last]) last++;
  const [x, y] = [a.slice(first, a.length - last), b.slice(first, b.length - last)];
  const kept = (lines) => lines.map((line) => [" ", line]);
  const middle = x.length * y.length > MOST_CELLS ? [...x.map((line) => ["-", line]), ...y.map((line) => ["+", line])] : common(x, y);
  return [...kept(a.slice(0, first)), ...middle, ...kept(a.slice(a.length - last))];
}

function common(x, y) {
  const wide = y.length + 1;
  const longest = new Uint32Array((x.length + 1) * wide);
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) {
      longest[i * wide + j] = x[i] === y[j] ? longest[(i + 1) * wide + j + 1] + 1 : Math.max(longest[(i + 1) * wide + j], longest[i * wide + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { found.push([" ", x[i]]); i++; j++; }
    else if (j >= y.length || (i < x.length && longest[(i + 1) * wide + j] >= longest[i * wide + j + 1])) found.push(["-", x[i++]]);
    else found.push(["+", y[j++]]);
  }
  return found;
}

// The changed lines with two around each; null where nothing differs.
export function changesShown(before, after, label) {
  const lines = lineChanges(before, after);
  if (lines.every(([sign]) => sign === " ")) return null;
  const near = lines.map((_, at) => lines.slice(Math.max(at - AROUND, 0), at + AROUND + 1).some(([sign]) => sign !== " "));
  const shown = lines.flatMap(([sign, line], at) => (near[at] ? [html("span", { class: sign === "-" ? "gone" : sign === "+" ? "come" : null }, `${sign} ${line}\n`)] : near[at - 1] ? [html("span", { class: "muted" }, "…\n")] : []));
  return html("pre", { class: "file", tabindex: "0", role: "region", "aria-label": label }, ...shown);
}
