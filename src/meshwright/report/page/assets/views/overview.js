import { MEMORY, PARTS, memory, part } from "page/colours.js";
import { explains, along } from "page/card.js";
import { dotted, html, svg, drawing } from "page/svg.js";
import { gib, ofCapacity, percent, seconds } from "page/units.js";

export const view = {
  name: "overview",
  title: "Overview",
  still: true,
  draw(root, data, page) {
    const grid = html("div", { class: "grid" });
    root.append(grid);
    grid.append(step(page), memoryOf(page), plans(page), ...(data.trainers.length ? [trainers(data, page)] : []), said(data, page));
  },
};

// Less than this of the whole is what rounding leaves of parts that are none.
const LEAST = 1e-9;

// One bar whose parts share a whole; the ghost is a thin bar of the same scale below.
function bar(label, parts, whole, colour, names, show, ghost = null) {
  const [width, height] = [560, ghost ? 46 : 34];
  let at = 0;
  const boxes = Object.entries(parts).filter(([, value]) => value > LEAST * whole).map(([name, value]) => {
    const box = svg("rect", { x: at, y: 2, width: Math.max((value / whole) * width - 1, 0.5), height: 30, rx: 2, fill: colour(name), "aria-label": `${names[name] ?? name} ${show(value)}`, role: "img" });
    at += (value / whole) * width;
    return explains(box, [names[name] ?? name, [show(value), percent(value / whole)]]);
  });
  along(boxes);
  let under = 0;
  const thin = ghost ? Object.entries(ghost).filter(([, value]) => value > 0).map(([name, value]) => {
    const box = svg("rect", { x: under, y: 36, width: Math.max((value / whole) * width - 1, 0.5), height: 7, fill: colour(name), opacity: 0.55 });
    under += (value / whole) * width;
    return box;
  }) : [];
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawing", role: "group", "aria-label": label }, ...boxes, ...thin);
}

function legend(parts, colour, names, show) {
  const whole = Object.values(parts).reduce((sum, value) => sum + value, 0);
  return html("ul", { class: "legend" }, ...Object.entries(parts).filter(([, value]) => value > LEAST * whole).map(([name, value]) =>
    html("li", {}, html("i", { style: { background: colour(name) } }), `${names[name] ?? name} ${show(value)}`)));
}

function step(page) {
  const estimate = page.entry.estimate;
  const ghost = page.ghost?.estimate;
  const whole = Math.max(estimate.step_time_s, ghost?.step_time_s ?? 0);
  const root = html("section", {}, html("h2", {}, "Where the step goes"),
    bar("Parts of the step", estimate.breakdown_s, whole, part, PARTS, seconds, ghost?.breakdown_s),
    legend(estimate.breakdown_s, part, PARTS, seconds));
  const rows = Object.entries(estimate.breakdown_s).filter(([name, value]) => value > LEAST * whole || ghost?.breakdown_s[name] > LEAST * whole).map(([name, value]) =>
    ({ name: PARTS[name] ?? name, value, share: value / estimate.step_time_s, before: ghost ? ghost.breakdown_s[name] ?? 0 : null }));
  page.table(root, [
    { name: "Part", key: "name" }, { name: "Time", key: "value", show: seconds, number: true },
    { name: "Of the step", key: "share", show: percent, number: true },
    ...(ghost ? [{ name: "Before", key: "before", show: seconds, number: true }] : []),
  ], rows, { title: "Parts of the step as a table" });
  return root;
}

function memoryOf(page) {
  const { stages } = page.entry.estimate;
  const full = stages.reduce((a, b) => (b.peak_memory_bytes / b.capacity_bytes > a.peak_memory_bytes / a.capacity_bytes ? b : a));
  const ghost = page.ghost?.estimate.stages.reduce((a, b) => (b.peak_memory_bytes > a.peak_memory_bytes ? b : a));
  const whole = Math.max(full.capacity_bytes, full.peak_memory_bytes, ghost?.peak_memory_bytes ?? 0);
  const name = stages.length > 1 ? `stage ${full.stage}, the fullest of ${stages.length}` : "every GPU";
  const root = html("section", {}, html("h2", {}, `Memory of ${name}`),
    bar("Memory of the fullest stage", full.memory_bytes, whole, memory, MEMORY, gib, ghost?.memory_bytes),
    legend(full.memory_bytes, memory, MEMORY, gib),
    html("p", { class: "muted" }, `${ofCapacity(full.peak_memory_bytes, full.capacity_bytes)} at its peak: ${full.peak_moment}.`));
  const rows = Object.entries(full.memory_bytes).map(([key, value]) => ({ name: MEMORY[key] ?? key, value, share: value / full.capacity_bytes }));
  page.table(root, [{ name: "Kind", key: "name" }, { name: "Bytes", key: "value", show: gib, number: true }, { name: "Of the device", key: "share", show: percent, number: true }],
    rows, { title: "Memory as a table" });
  return root;
}

function plans(page) {
  const named = page.unanswered ? "Nearest plans" : "Plans found";
  const root = html("section", { class: "across" }, html("h2", {}, named));
  const rows = page.document.plans.map((plan, at) => {
    const full = Math.max(...plan.estimate.stages.map((stage) => stage.peak_memory_bytes / stage.capacity_bytes));
    const [name, worst] = Object.entries(plan.estimate.breakdown_s).filter(([key]) => key !== "compute").reduce((a, b) => (b[1] > a[1] ? b : a));
    return { at, title: plan.title, step: plan.estimate.step_time_s, mfu: plan.estimate.mfu ?? null, memory: full, limit: `${PARTS[name] ?? name} ${percent(worst / plan.estimate.step_time_s)}`, current: at === page.index };
  });
  page.table(root, [
    { name: "Plan", key: "title", show: (title) => dotted(title) }, { name: "Step", key: "step", show: seconds, number: true },
    { name: "MFU", key: "mfu", show: (value) => (value === null ? "–" : percent(value)), number: true },
    { name: "Memory", key: "memory", show: percent, number: true }, { name: "Largest loss", key: "limit" },
  ], rows, { title: named, folded: false, pick: (row) => page.choose(row.at) });
  return root;
}

function trainers(data, page) {
  const root = html("section", { class: "across" }, html("h2", {}, "Trainers"));
  const rows = data.trainers.map(([names, plan, step, memory]) => ({ names, plan, step, memory }));
  page.table(root, [
    { name: "Trainer", key: "names" }, { name: "Plan", key: "plan", show: (plan) => dotted(plan) },
    { name: "Step", key: "step", number: true }, { name: "Memory", key: "memory" },
  ], rows, { title: "Trainers", folded: false });
  return root;
}

function said(data, page) {
  const root = html("section", { class: "across" }, html("h2", {}, "Basis of the numbers"));
  root.append(html("ul", { class: "identities" }, ...page.entry.identities.map((line) => html("li", {}, html("code", {}, line)))));
  page.table(root, [{ name: "What", key: "name" }, { name: "Value", key: "value" }, { name: "Basis", key: "basis" }], data.assumptions, { title: `${data.assumptions.length} assumptions`, folded: data.assumptions.length > 12 });
  return root;
}
