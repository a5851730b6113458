import { explains } from "page/card.js";
import { dotted, html, svg } from "page/svg.js";
import { wordsOf } from "page/tokens.js";
import { gib, percent, seconds, signedPercent } from "page/units.js";

const TONE = { fits: "good", tight: "warn", no: "bad", "not legal": "muted" };
const WORD = { fits: "fits", tight: "tight", no: "too large", "not legal": "not legal" };

export const view = {
  name: "why",
  title: "Why",
  slow: true,
  lede: "Every line is a plan that was priced. The ladder goes to the plan one change at a time, from the plainest; below are the plans one change away, and how far each number of the cluster moves the step.",
  draw(root, data, page) {
    const grid = html("div", { class: "grid" });
    root.append(steps("The ladder", data.ladder, page), grid, ...data.notes.map((line) => html("p", { class: "muted" }, line)));
    grid.append(steps("One change away", data.neighbours, page), html("div", {}, tornado(data, page), words([...data.ladder, ...data.neighbours])));
  },
};

// A change breaks before what follows from it, in brackets, not inside a setting.
const arrows = (text) => text.split(/ (?=\()/).map((part, at) => [at ? " " : "", html("span", { class: "whole" }, part.replaceAll(" -> ", " → "))]);

// What the words of the changes say, once for both lists.
function words(found) {
  const said = wordsOf(found.map((one) => one.change));
  return said.length ? html("section", {}, html("h2", {}, "Words of these lines"), html("dl", { class: "words" }, ...said.map(([word, text]) => [html("dt", {}, html("code", {}, word)), html("dd", {}, text)]))) : "";
}

// A change of the stages on one group, or of all stages, as a what-if takes it: `H100: tp 1 -> 2`.
export function settingOf(change) {
  const [, name, value] = /^((?:\S+: )?\w+) \S+ -> (\S+)$/.exec(change) ?? [];
  return name && (name.includes(": ") || name === "mbs") ? { [name]: Number(value) || value } : null;
}

// Rungs as rows: what was changed, a bar of the step, a bar of the memory, the outcome.
function steps(title, found, page) {
  const root = html("section", {}, html("h2", {}, title));
  const slowest = Math.max(...found.map((one) => one.step_time_s ?? 0)) || 1;
  const head = html("li", { class: "rungs-head", "aria-hidden": "true" }, ...["Change", "Step", "", "Memory", "", ""].map((name) => html("span", { class: name ? null : "rung-bar" }, name)));
  const list = html("ol", { class: "rungs" }, head, ...found.map((one) => {
    const full = one.capacity_bytes ? one.peak_memory_bytes / one.capacity_bytes : null;
    const changes = one.step_time_s === null ? null : /mbs\d/.test(one.name) ? { row: one.name } : settingOf(one.change);
    const name = page.live && changes
      ? html("button", { type: "button", class: "pick", onclick: () => page.apply(changes) }, arrows(one.change))
      : html("span", {}, arrows(one.change));
    const bar = (share, colour, said) => html("span", { class: "rung-bar", title: said }, html("i", { style: { width: `${Math.min(share, 1) * 100}%`, background: colour } }));
    return html("li", {}, name,
      one.step_time_s === null ? html("span", { class: "rung-text muted" }, one.text.replace("not legal: ", "")) : [
        html("span", { class: "rung-number" }, seconds(one.step_time_s)), bar(one.step_time_s / slowest, "var(--part-compute)", "step"),
        html("span", { class: `rung-number ${TONE[one.outcome]}` }, gib(one.peak_memory_bytes)), bar(full, full > 1 ? "var(--bad)" : "var(--memory-weights)", `${percent(full)} of the device`),
      ],
      html("span", { class: `badge ${TONE[one.outcome]}` }, WORD[one.outcome]));
  }));
  root.append(list);
  if (!found.length) return root.append(html("p", { class: "muted" }, "No plan is one change away from this one.")), root;
  page.table(root, [
    { name: "Change", key: "change" }, { name: "Step", key: "step_time_s", number: true, show: seconds },
    { name: "Memory", key: "peak_memory_bytes", number: true, show: (value) => (value === null ? "–" : gib(value)) }, { name: "Outcome", key: "text" }, { name: "Plan", key: "name", show: (name) => (name ? dotted(name) : "–") },
  ], found, { title: `${title} as a table` });
  return root;
}

// How far the step moves when a number is a little worse, and a little better.
function tornado(data, page) {
  const root = html("section", {}, html("h2", {}, "What the step is sensitive to"));
  const found = data.sensitivity;
  const base = data.estimate.step_time_s;
  if (!found.length) return root.append(html("p", { class: "muted" }, "No number of the cluster moves the step by 0.1%.")), root;
  const most = Math.max(...found.flatMap((one) => [one.step_time_worse_s / base - 1, 1 - one.step_time_better_s / base]).map(Math.abs));
  const [width, row, middle] = [480, 38, 240];
  const reach = 170;
  const bars = found.map((one, at) => {
    const [worse, better] = [one.step_time_worse_s / base - 1, one.step_time_better_s / base - 1];
    const y = at * row;
    const group = svg("g", { tabindex: "0", role: "img", "aria-label": one.text },
      svg("text", { x: middle, y: y + 12, "text-anchor": "middle" }, `${one.name} ±${percent(one.change)}`),
      svg("rect", { x: middle, y: y + 17, width: Math.max((worse / most) * reach, 0.5), height: 14, rx: 2, fill: "var(--bad)", opacity: 0.75 }),
      svg("rect", { x: middle + (better / most) * reach, y: y + 17, width: Math.max((-better / most) * reach, 0.5), height: 14, rx: 2, fill: "var(--good)", opacity: 0.75 }),
      svg("text", { x: middle + (worse / most) * reach + 6, y: y + 28, class: "muted" }, signedPercent(worse)),
      svg("text", { x: middle + (better / most) * reach - 6, y: y + 28, "text-anchor": "end", class: "muted" }, signedPercent(better)),
      one.other_plan ? svg("path", { d: `M${width - 12} ${y + 18}l6 6l-6 6l-6 -6z`, fill: "var(--warn)" }) : null);
    return explains(group, [one.name, ["basis", one.basis], [`${percent(one.change)} worse`, seconds(one.step_time_worse_s)],
      [`${percent(one.change)} better`, seconds(one.step_time_better_s)], ...(one.other_plan ? [["then quicker", one.other_plan]] : [])]);
  });
  root.append(svg("svg", { viewBox: `0 0 ${width} ${found.length * row + 4}`, class: "drawing", role: "group", "aria-label": "Change of the step by number of the cluster" },
    svg("line", { x1: middle, x2: middle, y1: 15, y2: found.length * row, stroke: "var(--line)" }), ...bars));
  if (found.some((one) => one.other_plan)) root.append(html("p", { class: "muted" }, "◆ another plan would be quicker there: its name is on the card."));
  page.table(root, [
    { name: "Number", key: "name" }, { name: "Basis", key: "basis" }, { name: "Moved by", key: "change", number: true, show: percent },
    { name: "Worse", key: "step_time_worse_s", number: true, show: seconds }, { name: "Better", key: "step_time_better_s", number: true, show: seconds }, { name: "Then quicker", key: "other_plan" },
  ], found, { title: "Sensitivity as a table" });
  return root;
}
