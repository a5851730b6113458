import { MEMORY, PARTS, memory, part, series } from "page/colours.js";
import { explains } from "page/card.js";
import { changesShown } from "page/differing.js";
import { dotted, html, roomOf, svg } from "page/svg.js";
import { tableOf } from "page/table.js";
import { kindsLegend, pipelineFigure } from "page/views/timeline.js";
import { gib, percent, seconds, signedPercent, signedSeconds } from "page/units.js";

export const view = {
  name: "compare",
  title: "Compare",
  lede: "The plan on show against others: those that were kept, or the best of the same answer. Only settings that differ are listed.",
  async draw(root, data, page) {
    const waiting = html("p", { class: "muted", role: "status" }, "Pricing the plans to compare ...");
    root.append(waiting);
    let found;
    try {
      found = await page.compared();
    } catch (failed) {
      waiting.replaceWith(...page.problems(failed));
      return;
    }
    waiting.remove();
    if (found.length < 2) {
      root.append(html("p", { class: "absent" }, "There is no other plan to compare with."));
      return;
    }
    const apart = html("p", { class: "muted", style: { margin: "14px 0 0" } }, "Bars of whole steps do not start at zero, so that what changes between two plans can be seen.");
    root.append(summary(found, page), apart, html("div", { class: "grid" }, ...found.slice(1).map((other, at) => waterfall(found[0], other, at + 1, page))), memories(found, page), byStage(found, page));
    if (!page.held && page.live) root.append(configurations(found, page));
    if (!page.held) await timelines(root.appendChild(html("section", { style: { "margin-top": "20px" } })), found);
  },
};

// One step of A and of another plan, one below the other: a moment is at the same place in both, and they move together.
async function timelines(root, found) {
  const shown = html("div", { class: "beside-steps" });
  const others = found.slice(1).map((one, at) => html("option", { value: String(at + 1) }, `${letter(at + 1)}: ${one.title}`));
  const choice = others.length < 2 ? null : html("label", {}, html("span", { class: "muted" }, "A above "), html("select", { class: "button", onchange: (event) => draw(Number(event.target.value)) }, ...others));
  root.append(html("h2", {}, "One step of each, on one axis"), choice ?? "", shown);
  let turn = 0;
  await draw(1);

  async function draw(other) {
    const own = ++turn;
    const pair = [0, other];
    const data = await Promise.all(pair.map((at) => found[at].timeline())).catch(() => []);
    if (own !== turn) return;
    const missing = pair.filter((_, place) => !data[place] || data[place].absent);
    if (missing.length) {
      shown.replaceChildren(html("p", { class: "absent" }, `No timeline of ${missing.map(letter).join(" and ")}: ${data[pair.indexOf(missing[0])]?.absent ?? "this page holds none of it."}`));
      return;
    }
    const span = Math.max(...data.map((one) => one.end_s));
    const figures = [];
    const together = ({ from, to }) => figures.forEach(({ canvas }) => { if (canvas.shown.from !== from || canvas.shown.to !== to) canvas.show(from, to); });
    shown.replaceChildren();
    for (const [place, at] of pair.entries()) {
      const box = html("section", {}, html("h3", {}, html("span", { class: "badge", style: { color: series(at) } }, letter(at)), " ", html("code", {}, ...dotted(found[at].title)), " ", html("span", { class: "muted" }, seconds(data[place].end_s))));
      shown.append(box);
      figures.push(await pipelineFigure(box, data[place], { heights: { span }, moved: together }));
      if (own !== turn) return;
      box.pipeline = figures.at(-1).canvas;
    }
    const button = (text, deed) => html("button", { type: "button", class: "button", onclick: deed }, text);
    shown.prepend(html("div", { class: "toolbar" }, button("Whole step", () => figures[0].canvas.show(0, span)), button("Zoom in", () => figures[0].canvas.zoom(0.6)), button("Zoom out", () => figures[0].canvas.zoom(1 / 0.6)), figures[0].about));
    shown.append(kindsLegend(figures[0]));
  }
}

// The files of a framework for A and for another plan, by the lines that differ; written when somebody opens it.
function configurations(found, page) {
  const shown = html("div", { "aria-live": "polite" });
  const [target, other] = [html("select", { class: "button", "aria-label": "Framework", onchange: () => write() }, ...found[0].targets.map((name) => html("option", { value: name }, name))),
    html("select", { class: "button", "aria-label": "Other plan", onchange: () => write() }, ...found.slice(1).map((_, at) => html("option", { value: String(at + 1) }, letter(at + 1))))];
  return html("details", { class: "behind", ontoggle: (event) => { if (event.target.open && !shown.childElementCount) write(); } }, html("summary", {}, "Lines of their configuration that differ"),
    html("div", { class: "toolbar", style: { "margin-top": "8px" } }, "As files of ", target, " from A to ", other), shown);

  async function write() {
    const [before, after] = await Promise.all([found[0], found[Number(other.value)]].map((one) => one.files(target.value).catch((failed) => ({ failed }))));
    const failed = before.failed ?? after.failed;
    if (failed) return shown.replaceChildren(...page.problems(failed));
    const names = [...new Set([...before.files, ...after.files].map(({ name }) => name))].sort((a, b) => (a === "plan.json") - (b === "plan.json"));
    const text = (files, name) => files.find((one) => one.name === name)?.content ?? "";
    const parts = names.map((name) => [name, changesShown(text(before.files, name), text(after.files, name), `${name}: lines that differ`)]);
    const differing = parts.filter(([, lines]) => lines);
    return shown.replaceChildren(...(differing.length ? differing.map(([name, lines]) => html("section", {}, html("h3", {}, html("code", {}, name)), lines)) : [html("p", { class: "muted" }, "Their files are the same.")]));
  }
}

const letter = (at) => "ABCD"[at];
const peakOf = (entry) => entry.estimate.stages.reduce((a, b) => (b.peak_memory_bytes / b.capacity_bytes > a.peak_memory_bytes / a.capacity_bytes ? b : a));

// One column a plan: step and memory first, then what differs.
function summary(found, page) {
  const first = found[0].entry.estimate;
  const rows = [
    { name: "step", show: (one) => withChange(seconds(one.entry.estimate.step_time_s), one.entry.estimate.step_time_s / first.step_time_s - 1) },
    { name: "tokens/s per GPU", show: (one) => (one.entry.estimate.tokens_per_s_per_device ?? 0).toLocaleString("en-US", { maximumSignificantDigits: 3 }) },
    { name: "memory", show: (one) => withChange(gib(peakOf(one.entry).peak_memory_bytes), peakOf(one.entry).peak_memory_bytes / peakOf(found[0].entry).peak_memory_bytes - 1) },
    { name: "fits", show: (one) => one.entry.estimate.fits },
  ];
  const names = [...new Set(found.flatMap((one) => Object.keys(one.settings)))];
  const differing = names.filter((name) => new Set(found.map((one) => one.settings[name] ?? "–")).size > 1);
  const heads = [html("th", { scope: "col", role: "columnheader" }, html("span", { class: "unseen" }, "Setting")), ...found.map((one, at) => html("th", { scope: "col", role: "columnheader" }, html("span", { class: "badge", style: { color: series(at) } }, letter(at)), " ", html("code", {}, ...dotted(one.title))))];
  const training = new Set(found.flatMap((one) => one.training));
  const lines = [...rows.map((row) => [row.name, found.map(row.show)]), ...differing.map((name) => [[name, " ", effect(training.has(name))], found.map((one) => one.settings[name] ?? "–")])];
  const rowOf = ([name, cells]) => html("tr", { role: "row" }, html("th", { scope: "row", role: "rowheader" }, name), ...cells.map((cell, at) => html("td", { role: "cell", "data-of": letter(at) }, cell)));
  const body = html("tbody", {}, ...lines.map(rowOf));
  return html("div", { class: "scrolled beside", tabindex: "0", role: "region", "aria-label": "Plans beside each other" }, tableOf("Plans beside each other", heads, body, found.length + 1));
}

// Whether a setting that differs decides what is trained, or only how it is executed.
const effect = (trains) => html("span", { class: `badge effect ${trains ? "warn" : "muted"}`, title: trains ? "decides what is trained: losses differ" : "decides how the same training is executed" }, trains ? "training" : "execution");

const withChange = (text, share) => (Math.abs(share) < 5e-4 ? text : [text, " ", html("span", { class: `badge ${share < 0 ? "down" : "up"}` }, signedPercent(share))]);

// From one step to the other, part by part, the largest first.
function waterfall(from, to, at, page) {
  const [a, b] = [from.entry.estimate, to.entry.estimate];
  const moved = Object.keys(a.breakdown_s).map((name) => ({ name, change: (b.breakdown_s[name] ?? 0) - a.breakdown_s[name], before: a.breakdown_s[name], after: b.breakdown_s[name] ?? 0 }))
    .filter((one) => Math.abs(one.change) > 5e-4 * a.step_time_s).sort((x, y) => Math.abs(y.change) - Math.abs(x.change));
  const root = html("section", { style: { "margin-top": "16px" } }, html("h2", {}, `From A to ${letter(at)}: ${signedSeconds(b.step_time_s - a.step_time_s)}`));
  let level = a.step_time_s;
  const levels = [a.step_time_s, ...moved.map((one) => (level += one.change)), b.step_time_s];
  const [low, high] = [Math.min(...levels), Math.max(...levels)];
  const spread = Math.max(high - low, 1e-12);
  const [left, width, row] = [126, 440, 26];
  const x = (value) => left + ((value - low + 0.12 * spread) / (1.24 * spread)) * (width - left - 76);
  let reached = a.step_time_s;
  const line = (text, y, from, to, colour, said, card) => explains(svg("g", { tabindex: "0", role: "img", "aria-label": `${text} ${said}` },
    svg("text", { x: left - 8, y: y + 16, "text-anchor": "end" }, text),
    svg("rect", { x: Math.min(x(from), x(to)), y: y + 4, width: Math.max(Math.abs(x(to) - x(from)), 1.5), height: 17, rx: 2, fill: colour }),
    svg("text", { x: Math.max(x(from), x(to)) + 6, y: y + 16, class: "muted" }, said)), card);
  const bars = [line("A", 0, low - 0.12 * spread, a.step_time_s, series(0), seconds(a.step_time_s), [from.title, ["step", seconds(a.step_time_s)]])];
  moved.forEach((one, place) => {
    bars.push(line(PARTS[one.name] ?? one.name, (place + 1) * row, reached, reached + one.change, part(one.name), signedSeconds(one.change),
      [PARTS[one.name] ?? one.name, ["A", seconds(one.before)], [letter(at), seconds(one.after)]]));
    reached += one.change;
  });
  bars.push(line(letter(at), (moved.length + 1) * row, low - 0.12 * spread, b.step_time_s, series(at), seconds(b.step_time_s), [to.title, ["step", seconds(b.step_time_s)]]));
  root.append(svg("svg", { viewBox: `0 0 ${width} ${(moved.length + 2) * row}`, class: "drawing narrow", role: "group", "aria-label": `Waterfall from ${from.title} to ${to.title}` }, ...bars));
  page.table(root, [{ name: "Part", key: "part" }, { name: "A", key: "before", number: true, show: seconds }, { name: letter(at), key: "after", number: true, show: seconds }, { name: "Change", key: "change", number: true, show: signedSeconds }],
    Object.keys(a.breakdown_s).map((name) => ({ part: PARTS[name] ?? name, before: a.breakdown_s[name], after: b.breakdown_s[name] ?? 0, change: (b.breakdown_s[name] ?? 0) - a.breakdown_s[name] })), { title: "Waterfall as a table" });
  return root;
}

// Memory of every stage of each, and how far it is from that of A.
function byStage(found, page) {
  const root = html("section", { style: { "margin-top": "20px" } }, html("h2", {}, "Memory stage by stage"));
  const placed = found.map((one) => new Map(one.entry.estimate.stages.map((stage) => [placeOf(stage, one.entry), stage])));
  const names = [...new Set(placed.flatMap((stages) => [...stages.keys()]))];
  const peak = (at, name) => placed[at].get(name)?.peak_memory_bytes ?? null;
  const rows = names.map((name) => ({ name, ...Object.fromEntries(found.flatMap((_, at) => [[letter(at), peak(at, name)], ...(at ? [[`${letter(at)} change`, peak(0, name) === null || peak(at, name) === null ? null : peak(at, name) - peak(0, name)]] : [])])) }));
  const size = (value) => (value === null ? "–" : gib(value));
  const change = (value) => (value === null ? "–" : Math.abs(value) < 5e-4 * 2 ** 30 ? "same" : html("span", { class: `badge ${value < 0 ? "down" : "up"}` }, `${value < 0 ? "−" : "+"}${gib(Math.abs(value))}`));
  page.table(root, [{ name: "Stage", key: "name" }, { name: "A", key: "A", number: true, show: size },
    ...found.slice(1).flatMap((_, at) => [{ name: letter(at + 1), key: letter(at + 1), number: true, show: size }, { name: `A to ${letter(at + 1)}`, key: `${letter(at + 1)} change`, number: true, show: change }])],
  rows, { title: "Memory stage by stage", folded: false });
  return root;
}

const placeOf = ({ pipeline, stage }, { estimate }) => (estimate.stages.some((one) => one.pipeline !== estimate.stages[0].pipeline) ? `pipeline ${pipeline}, stage ${stage}` : `stage ${stage}`);

// Memory of the fullest stage of each, on one scale.
function memories(found, page) {
  const root = html("section", { style: { "margin-top": "20px" } }, html("h2", {}, "Memory of the fullest stage"));
  const most = Math.max(...found.map((one) => Math.max(peakOf(one.entry).capacity_bytes, peakOf(one.entry).peak_memory_bytes)));
  const width = roomOf(1100);
  found.forEach((one, at) => {
    const stage = peakOf(one.entry);
    let reached = 28;
    const scale = (value) => (value / most) * (width - 130);
    const boxes = Object.entries(stage.memory_bytes).filter(([, value]) => value > 0).map(([name, value]) => {
      const box = svg("rect", { x: reached, y: 4, width: Math.max(scale(value) - 1, 0.5), height: 20, fill: memory(name), tabindex: "0", role: "img", "aria-label": `${letter(at)}: ${MEMORY[name] ?? name} ${gib(value)}` });
      reached += scale(value);
      return explains(box, [MEMORY[name] ?? name, [gib(value), percent(value / stage.capacity_bytes)]]);
    });
    const limit = 28 + scale(stage.capacity_bytes);
    root.append(svg("svg", { viewBox: `0 0 ${width} 30`, class: "drawing as-wide", role: "group", "aria-label": `Memory of ${one.title}` },
      svg("text", { x: 0, y: 19 }, letter(at)), ...boxes, svg("line", { x1: limit, x2: limit, y1: 0, y2: 28, stroke: "var(--bad)", "stroke-width": 2 }),
      svg("text", { x: Math.max(reached, limit) + 6, y: 19, class: "muted" }, gib(stage.peak_memory_bytes))));
  });
  const kinds = Object.keys(peakOf(found[0].entry).memory_bytes);
  const filled = kinds.filter((kind) => found.some((one) => peakOf(one.entry).memory_bytes[kind] > 0));
  root.append(html("ul", { class: "legend" }, ...filled.map((kind) => html("li", {}, html("i", { style: { background: memory(kind) } }), MEMORY[kind] ?? kind)),
    html("li", { class: "muted" }, "vertical line: the memory of the device")));
  page.table(root, [{ name: "Kind", key: "kind" }, ...found.map((_, at) => ({ name: letter(at), key: letter(at), number: true, show: gib }))],
    kinds.map((kind) => ({ kind: MEMORY[kind] ?? kind, ...Object.fromEntries(found.map((one, at) => [letter(at), peakOf(one.entry).memory_bytes[kind] ?? 0])) })), { title: "Memory as a table" });
  return root;
}
