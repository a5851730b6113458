import { explains } from "page/card.js";
import { parallel, quantityAxis, valuesAxis } from "page/parallel.js";
import { dotted, html, svg } from "page/svg.js";
import { count, gib, percent, seconds, significant, ticks } from "page/units.js";

const TONE = { yes: "var(--good)", fits: "var(--good)", tight: "var(--warn)", no: "var(--bad)" };
const WORD = { yes: "fits", fits: "fits", tight: "tight", no: "does not fit" };

const PICKERS = [
  { key: "headroom", name: "10% of the memory free", holds: (one, capacity) => one.memory <= 0.9 * capacity },
  { key: "chunks", name: "no chunks (vpp 1)", holds: (one) => !/vpp/.test(one.title) },
  { key: "overlap", name: "no tensor overlap", holds: (one) => !/tpov/.test(one.title) },
  { key: "simple", name: "at most two kinds of parallelism", holds: (one) => (one.title.match(/\b(tp|cp|pp|ep)\d+|\bdp(?!1\b)\d+/g) ?? []).length <= 2 },
];

export const view = {
  name: "frontier",
  title: "Frontier",
  slow: true,
  lede: "Step time against memory. Points are plans that were priced: those of the answer, the front where one was searched, and every plan one change away, also those that do not fit. The line is their Pareto front.",
  draw(root, data, page) {
    const points = pointsOf(data, page);
    const capacity = Math.max(...page.entry.estimate.stages.map((stage) => stage.capacity_bytes));
    const chosen = new Set((page.get("pick") ?? "").split(" ").filter(Boolean));
    const figure = html("div");
    const list = html("div");
    let marked = null;
    const redraw = () => {
      const kept = points.filter((one) => PICKERS.every((rule) => !chosen.has(rule.key) || rule.holds(one, capacity)) && (!marked || marked.has(one)));
      figure.replaceChildren(scatter(points, new Set(kept), capacity, page));
      list.replaceChildren();
      const ranked = kept.filter((one) => one.fits !== "no").sort((a, b) => a.time - b.time);
      const best = ranked[0];
      const said = !best ? "No plan here is within all of these limits." : `${best.title}, ${seconds(best.time)}` + (chosen.size && points[0] !== best ? `: ${percent(best.time / points[0].time - 1)} slower than the plan on show` : "");
      list.append(html("p", { "aria-live": "polite" }, html("b", {}, said)));
      page.table(list, [
        { name: "Plan", key: "title", show: (title) => dotted(title) }, { name: "Step", key: "time", number: true, show: seconds }, { name: "Memory", key: "memory", number: true, show: gib },
        { name: "Fits", key: "fits", show: (value) => WORD[value] ?? value }, { name: "From", key: "kind" },
      ], ranked.map((one) => ({ ...one, current: one.own })), { title: "Plans within the limits, quickest first", folded: false, pick: (row) => go(row, page) });
    };
    const boxes = PICKERS.map((rule) => html("label", { class: "picker" }, html("input", { type: "checkbox", checked: chosen.has(rule.key), onchange: (event) => {
      if (event.target.checked) chosen.add(rule.key);
      else chosen.delete(rule.key);
      page.set("pick", [...chosen].join(" "));
      redraw();
    } }), rule.name));
    const more = page.live && !data.front.length
      ? html("p", {}, html("button", { type: "button", class: "button", onclick: () => page.search({ pareto: true }) }, "Search the front"), " of time and memory, to plans 10% slower than the best") : null;
    const grid = html("div", { class: "grid" }, html("section", {}, figure, more), html("section", {}, html("div", { class: "pickers", role: "group", "aria-label": "Prefer" }, "Prefer ", ...boxes), list));
    root.append(grid);
    redraw();
    settings(root, points, page, (kept, any) => { marked = any ? new Set(kept.map((row) => row.one)) : null; redraw(); });
    root.append(searched(data, page));
  },
};

function pointsOf(data, page) {
  const peak = (entry) => Math.max(...entry.estimate.stages.map((stage) => stage.peak_memory_bytes));
  const own = { title: page.entry.title, time: page.entry.estimate.step_time_s, memory: peak(page.entry), fits: page.entry.estimate.fits, kind: "on show", own: true };
  const found = page.document.plans.map((entry, at) => ({ title: entry.title, time: entry.estimate.step_time_s, memory: peak(entry), fits: entry.estimate.fits, kind: "answer", at }));
  const front = data.front.map((one) => ({ title: one.title, time: one.step_time_s, memory: one.peak_memory_bytes, fits: one.fits, kind: "front" }));
  const near = data.neighbours.map((one) => ({ title: one.name, time: one.step_time_s, memory: one.peak_memory_bytes, fits: one.outcome === "fits" ? "yes" : one.outcome, kind: one.change.replaceAll(" -> ", " → "), text: one.text }));
  const seen = new Set();
  return [own, ...found, ...front, ...near].filter((one) => !seen.has(one.title) && seen.add(one.title));
}

// Settings of a plan that its one line says: a degree it does not name is 1.
const WORDS = [[/^(z\d|fsdp|hsdp)/, "sharding"], [/^rc-/, "recompute"], [/^(tp|cp|pp|vpp|ep|etp|dp|mbs)\d/, null]];
function saidBy(title) {
  const found = {};
  for (const token of title.split(".")) {
    const [, name] = WORDS.find(([pattern]) => pattern.test(token)) ?? [];
    const [, axis, degree] = /^([a-z]+)(\d+)/.exec(token) ?? [];
    if (name) found[name] = token.replace(/^rc-/, "");
    else if (name === null) found[axis] = Number(degree);
  }
  return found;
}

// The same plans over their settings; what is marked there is what the list and the points keep.
function settings(root, points, page, onKept) {
  const said = points.filter((one) => /\bmbs\d/.test(one.title)).map((one) => ({ one, ...saidBy(one.title), time: one.time, memory: one.memory, fits: WORD[one.fits] ?? one.fits }));
  const names = ["tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs", "recompute", "sharding"].filter((name) => said.some((row) => name in row));
  const usual = { recompute: "none", sharding: "z0" };
  const rows = said.map((row) => ({ ...Object.fromEntries(names.map((name) => [name, usual[name] ?? 1])), ...row })).sort((a, b) => (a.fits === WORD.no) - (b.fits === WORD.no) || a.time - b.time);
  const differing = names.filter((name) => new Set(rows.map((row) => row[name])).size > 1);
  if (rows.length < 3 || !differing.length) return;
  const axes = [quantityAxis("time", "step", rows, seconds), quantityAxis("memory", "memory", rows, gib), valuesAxis("fits", "fits", rows), ...differing.map((name) => valuesAxis(name, name, rows))];
  const box = html("section", { style: { "margin-top": "18px" } }, html("h2", {}, "Settings of these plans"));
  root.append(box);
  parallel(box, axes, rows, { label: "Plans by their settings, step and memory", noun: "plans", onKept, pick: (row) => go(row.one, page),
    card: ({ one }) => [one.title, ["step", seconds(one.time)], ["memory", gib(one.memory)], ["", WORD[one.fits] ?? one.fits], ["from", one.kind]] });
}

function go(one, page) {
  if (one.at !== undefined) page.choose(one.at);
  else if (page.live && one.title.includes("mbs")) page.apply({ row: one.title });
}

function scatter(points, kept, capacity, page) {
  const [width, height, left, bottom] = [480, 360, 44, 40];
  // Far away points, of plans that nobody would take, would press the others into a corner: they stand at the edge.
  const farthest = Math.min(Math.max(...points.map((one) => one.time)), 1.6 * points[0].time);
  const least = Math.min(...points.map((one) => one.time));
  const span = Math.max(farthest - least, 0.02 * least);
  const [x0, x1] = [least - 0.06 * span, farthest + 0.06 * span];
  const y1 = 1.06 * Math.min(Math.max(capacity, ...points.map((one) => one.memory)), 1.8 * capacity);
  const x = (time) => left + ((Math.min(time, x1) - x0) / (x1 - x0)) * (width - left - 14);
  const y = (memory) => height - bottom - (Math.min(memory, y1) / y1) * (height - bottom - 14);
  const gibs = ticks(y1 / 2 ** 30, 6).map((tick) => tick * 2 ** 30);
  const step = ticks(x1 - x0, 5)[1] ?? x1 - x0;
  const times = Array.from({ length: 8 }, (_, at) => (Math.ceil(x0 / step) + at) * step).filter((time) => time <= x1);
  const unit = x1 >= 1 ? [1, "s"] : [1e-3, "ms"];
  const axis = svg("g", { class: "axis", "aria-hidden": "true" },
    ...gibs.map((tick) => [svg("line", { x1: left, x2: width, y1: y(tick), y2: y(tick) }), svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, significant(tick / 2 ** 30))]),
    ...times.map((tick) => svg("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, significant(tick / unit[0]))),
    svg("text", { x: width, y: height - 4, "text-anchor": "end" }, `step, ${unit[1]}`), svg("text", { x: 0, y: 10 }, "GiB"));
  const limit = svg("g", { "aria-hidden": "true" }, svg("line", { x1: left, x2: width, y1: y(capacity), y2: y(capacity), stroke: "var(--bad)", "stroke-dasharray": "5 4" }),
    svg("text", { x: width, y: y(capacity) - 5, "text-anchor": "end", class: "muted" }, `device ${gib(capacity)}`));
  const quickest = points.filter((one) => one.fits !== "no").sort((a, b) => a.time - b.time);
  const ordered = quickest.filter((one, at) => one.time <= x1 && quickest.slice(0, at).every((other) => other.memory > one.memory));
  const front = ordered.length > 1 ? svg("polyline", { points: ordered.map((one) => `${x(one.time)},${y(one.memory)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 1.5, opacity: 0.7 }) : null;
  const marks = [...points].reverse().map((one) => {
    const can = one.at !== undefined || (page.live && one.title.includes("mbs"));
    const mark = svg("g", {
      tabindex: "0", role: can ? "button" : "img", "aria-label": `${one.title}: ${seconds(one.time)}, ${gib(one.memory)}, ${WORD[one.fits] ?? one.fits}`, opacity: kept.has(one) ? 1 : 0.18,
      style: { cursor: can ? "pointer" : "default" }, onclick: () => go(one, page), onkeydown: (event) => { if (event.key === "Enter") go(one, page); },
    }, one.own ? svg("circle", { cx: x(one.time), cy: y(one.memory), r: 10, fill: "none", stroke: "var(--accent)", "stroke-width": 2.5 }) : null,
    svg("circle", { cx: x(one.time), cy: y(one.memory), r: one.kind === "answer" || one.own ? 6 : 4.5, fill: TONE[one.fits], stroke: "var(--raised)", "stroke-width": 1 }));
    return explains(mark, [one.title, ["step", seconds(one.time)], ["memory", gib(one.memory)], ["", WORD[one.fits] ?? one.fits], ["from", one.kind]]);
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawing", role: "group", "aria-label": "Plans by step time and memory" }, axis, limit, front, ...marks);
}

// What the search looked at: counts of plans, and what excluded the others.
function searched(data, page) {
  const found = data.search;
  const root = html("section", { style: { "margin-top": "18px" } });
  if (!found) return root;
  root.append(html("h2", {}, "What was searched"));
  if (found.optimal !== undefined) root.append(html("p", {}, found.optimal ? "The best plan of the space: bounds exclude every other one." : "The best plan that was found."));
  const named = { space: "legal plans", priced: "priced", feasible: "fit", simulated: "simulated task by task" };
  const rows = [...Object.entries(named).filter(([key]) => found[key] !== undefined).map(([key, name]) => ({ name, value: found[key] })),
    ...Object.entries(found.pruned ?? {}).filter(([, value]) => value > 0).map(([name, value]) => ({ name: `excluded ${name.replace(/^row: /, "one by one: ").replace(/^shape: /, "by shape: ")}`, value }))];
  if (rows.length) page.table(root, [{ name: "Plans", key: "name" }, { name: "Count", key: "value", number: true, show: count }], rows, { title: "Counts of the search", folded: false });
  return root;
}
