import { parallel, quantityAxis, valuesAxis } from "page/parallel.js";
import { scatter } from "page/scatter.js";
import { dotted, html } from "page/svg.js";
import { settingOf } from "page/views/why.js";
import { energy, gib, percent, seconds, significant, signedPercent, usd } from "page/units.js";

const TONE = { yes: "var(--good)", fits: "var(--good)", tight: "var(--warn)", no: "var(--bad)" };
const WORD = { yes: "fits", fits: "fits", tight: "tight", no: "does not fit" };

const PICKERS = [
  { key: "headroom", name: "10% of the memory free", holds: (one, capacity) => one.memory <= 0.9 * capacity },
  { key: "chunks", name: "no chunks (vpp 1)", holds: (one) => !/vpp/.test(one.title) },
  { key: "overlap", name: "no tensor overlap", holds: (one) => !/tpov/.test(one.title) },
  { key: "simple", name: "at most two kinds of parallelism", holds: (one) => (one.title.match(/\b(tp|cp|pp|ep)\d+|\bdp(?!1\b)\d+/g) ?? []).length <= 2 },
];

// What the axes may show. `less`: less is better.
const QUANTITIES = [
  { key: "time", name: "Step time", show: seconds, less: true },
  { key: "memory", name: "Memory", show: gib, less: true, zero: true, unit: 2 ** 30 },
  { key: "rate", name: "Tokens/s per GPU", show: significant, less: false },
  { key: "devices", name: "GPUs", show: significant, less: true },
  { key: "cost", name: "Cost of a step", show: usd, less: true },
  { key: "energy", name: "Energy of a step", show: energy, less: true, unit: 3.6e6 },
];
const AXES = { x: "time", y: "memory" };

export const view = {
  name: "frontier",
  title: "Frontier",
  slow: true,
  lede: "Points are plans that were priced: those of the answer, the front where one was searched, and every plan one change away, also those that do not fit. The line is the Pareto front of those that fit.",
  draw(root, data, page) {
    const points = pointsOf(data, page);
    const capacity = Math.max(...page.entry.estimate.stages.map((stage) => stage.capacity_bytes));
    const chosen = new Set((page.get("pick") ?? "").split(" ").filter(Boolean));
    const figure = html("div");
    const list = html("div");
    let marked = null;
    const known = QUANTITIES.filter(({ key }) => new Set(points.map((one) => one[key]).filter(Number.isFinite)).size > 1).map((one) => (one.key === "memory" ? { ...one, limit: { value: capacity, name: `device ${gib(capacity)}` } } : one));
    const axis = (name) => known.find(({ key }) => key === (page.get(name) ?? AXES[name])) ?? known.find(({ key }) => key === AXES[name]) ?? known[0];
    const redraw = () => {
      const kept = points.filter((one) => PICKERS.every((rule) => !chosen.has(rule.key) || rule.holds(one, capacity)) && (!marked || marked.has(one)));
      const [across, up, shown] = [axis("x"), axis("y"), new Set(kept)];
      const without = points.filter((one) => ![across, up].every(({ key }) => Number.isFinite(one[key]))).length;
      figure.replaceChildren(scatter(points, across, up, (one) => markOf(one, shown, [across, up], page)),
        without ? html("p", { class: "muted" }, `${without} of ${points.length} plans are not drawn: their ${[across, up].filter(({ key }) => points.some((one) => !Number.isFinite(one[key]))).map(({ name }) => name.toLowerCase()).join(" and ")} is not known before they are searched or chosen.`) : "");
      list.replaceChildren();
      // Where none fits, those that lack the least memory come first.
      const fitting = points.some((one) => one.fits !== "no");
      const ranked = fitting ? kept.filter((one) => one.fits !== "no").sort((a, b) => a.time - b.time) : [...kept].sort((a, b) => a.memory - b.memory);
      const best = ranked[0];
      const said = !best ? "No plan here is within all of these limits." : !fitting ? `No plan here fits; the nearest needs ${gib(best.memory)} of ${gib(capacity)}` : `${best.title}, ${seconds(best.time)}` + (chosen.size && points[0] !== best ? `: ${percent(best.time / points[0].time - 1)} slower than the plan on show` : "");
      list.append(html("p", { "aria-live": "polite" }, html("b", {}, said)));
      page.table(list, [
        { name: "Plan", key: "title", show: (title) => dotted(title.replaceAll(" -> ", " → ")) }, { name: "Step", key: "time", number: true, show: seconds }, { name: "Memory", key: "memory", number: true, show: gib },
        ...[axis("x"), axis("y")].filter(({ key }) => !Object.values(AXES).includes(key)).map(({ name, key, show }) => ({ name, key, number: true, show: (value) => (Number.isFinite(value) ? show(value) : "–") })),
        { name: "Fits", key: "fits", show: (value) => WORD[value] ?? value }, { name: "From", key: "kind" },
      ], ranked.map((one) => ({ ...one, current: one.own })), { title: fitting ? "Plans within the limits, quickest first" : "Plans that do not fit, the nearest first", folded: false, pick: (row) => go(row, page), can: (row) => isReachable(row, page) });
    };
    const boxes = PICKERS.map((rule) => html("label", { class: "picker" }, html("input", { type: "checkbox", checked: chosen.has(rule.key), onchange: (event) => {
      if (event.target.checked) chosen.add(rule.key);
      else chosen.delete(rule.key);
      page.set("pick", [...chosen].join(" "));
      redraw();
    } }), rule.name));
    const more = page.live && !data.front.length && !page.unanswered
      ? html("p", {}, html("button", { type: "button", class: "button", onclick: () => page.search({ pareto: true }) }, "Search the front"), " of time and memory, to plans 10% slower than the best") : null;
    const chooser = (name, said) => html("label", {}, html("span", { class: "muted" }, said), html("select", { id: `frontier-${name}`, class: "button", onchange: (event) => {
      page.set(name, event.target.value === AXES[name] ? null : event.target.value);
      redraw();
    } }, ...known.map((one) => html("option", { value: one.key, selected: one.key === axis(name).key }, one.name))));
    const axes = html("div", { class: "toolbar", role: "group", "aria-label": "Axes" }, chooser("y", "Up "), chooser("x", "Across "));
    const grid = html("div", { class: "grid" }, html("section", {}, axes, figure, more), html("section", {}, html("div", { class: "pickers", role: "group", "aria-label": "Prefer" }, "Prefer ", ...boxes), list));
    root.append(grid);
    redraw();
    settings(root, points, page, (kept, any) => { marked = any ? new Set(kept.map((row) => row.one)) : null; redraw(); });
    root.append(searched(data, page));
  },
};

function pointsOf(data, page) {
  const own = { ...priced(page.entry, page), kind: "on show", own: true };
  const found = page.document.plans.map((entry, at) => ({ ...priced(entry, page), kind: "answer", at }));
  const front = data.front.map((one) => ({ ...measures(one, page), title: one.title, kind: "front" }));
  // A neighbour is on the same devices: it costs what its time does, unless links between groups are paid for.
  const { price_per_step: cost, traffic } = page.entry.estimate;
  const costs = (time) => (Number.isFinite(cost) && !traffic?.length ? (cost * time) / own.time : null);
  const near = data.neighbours.map((one) => ({
    ...measures({ ...one, devices: own.devices, price_per_step: costs(one.step_time_s), fits: one.outcome === "fits" ? "yes" : one.outcome }, page),
    title: one.name, kind: one.change === one.name ? "one change" : one.change.replaceAll(" -> ", " → "), changes: /mbs\d/.test(one.name) ? null : settingOf(one.change),
  }));
  const seen = new Set();
  return [own, ...found, ...front, ...near].filter((one) => !seen.has(one.title) && seen.add(one.title));
}

// Quantities of an entry of the answer.
function priced(entry, page) {
  const { stages } = entry.estimate;
  const peak = Math.max(...stages.map((stage) => stage.peak_memory_bytes));
  const devices = stages.reduce((sum, stage) => sum + stage.devices, 0);
  return { ...measures({ ...entry.estimate, peak_memory_bytes: peak, devices }, page), energy: entry.estimate.energy_j ?? null, title: entry.title };
}

function measures({ step_time_s: time, peak_memory_bytes: memory, devices, price_per_step: cost, fits }, page) {
  const tokens = page.entry.estimate.tokens_per_s_per_device * page.entry.estimate.step_time_s * page.entry.estimate.stages.reduce((sum, stage) => sum + stage.devices, 0);
  return { time, memory, devices, cost: cost ?? null, rate: tokens / (time * devices), fits };
}

function markOf(one, kept, axes, page) {
  const can = isReachable(one, page);
  const facts = [...new Set([QUANTITIES[0], QUANTITIES[1], ...axes])].filter(({ key }, at, all) => all.findIndex((other) => other.key === key) === at);
  const told = facts.map(({ name, key, show }) => [name.toLowerCase(), show(one[key])]);
  const word = WORD[one.fits] ?? one.fits;
  return {
    kept: kept.has(one), own: one.own, colour: TONE[one.fits], size: one.kind === "answer" || one.own ? 6 : 4.5, act: can ? () => go(one, page) : null,
    label: `${one.title}: ${told.map(([, value]) => value).join(", ")}, ${word}`, card: [one.title, ...told, ["", word], ["from", one.kind]],
  };
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
  const said = points.filter((one) => /\bmbs\d/.test(one.title)).map((one) => ({ one, ...saidBy(one.title), time: one.time, memory: one.memory, fits: one.fits === "fits" ? "yes" : one.fits }));
  const names = ["tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs", "recompute", "sharding"].filter((name) => said.some((row) => name in row));
  const usual = { recompute: "none", sharding: "z0" };
  const rows = said.map((row) => ({ ...Object.fromEntries(names.map((name) => [name, usual[name] ?? 1])), ...row })).sort((a, b) => (a.fits === "no") - (b.fits === "no") || a.time - b.time);
  const differing = names.filter((name) => new Set(rows.map((row) => row[name])).size > 1);
  if (rows.length < 3 || !differing.length) return;
  const axes = [quantityAxis("time", "step", rows, seconds), quantityAxis("memory", "memory", rows, gib), valuesAxis("fits", "fits", rows), ...differing.map((name) => valuesAxis(name, name, rows))];
  const box = html("section", { style: { "margin-top": "18px" } }, html("h2", {}, "Settings of these plans"));
  root.append(box);
  parallel(box, axes, rows, { label: "Plans by their settings, step and memory", noun: "plans", onKept, pick: (row) => go(row.one, page),
    card: ({ one }) => [one.title, ["step", seconds(one.time)], ["memory", gib(one.memory)], ["", WORD[one.fits] ?? one.fits], ["from", one.kind]] });
}

const isReachable = (one, page) => one.at !== undefined || Boolean(page.live && (one.changes || one.title.includes("mbs")));

function go(one, page) {
  if (one.at !== undefined) page.choose(one.at);
  else if (isReachable(one, page)) page.apply(one.changes ?? { row: one.title });
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
    ...Object.entries(found.pruned ?? {}).filter(([, value]) => value > 0).map(([name, value]) => ({ name: `excluded ${name.replace(/^row: /, "one by one: ").replace(/^shape: /, "by shape: ")}`, value, why: name.includes("memory") ? "memory" : name.includes("time bound") ? "time" : null }))];
  const shown = html("div", { "aria-live": "polite" });
  const can = (row) => Boolean(page.live && data.tells_excluded && row.why);
  if (rows.length) page.table(root, [{ name: "Plans", key: "name" }, { name: "Count", key: "value", number: true, show: (value) => value.toLocaleString("en-US") }], rows, { title: "Counts of the search", folded: false, can, pick: (row) => examples(row, shown, page) });
  if (rows.some(can)) root.append(html("p", { class: "muted", style: { "margin-top": "8px" } }, "A click on a reason prices some of the plans that it excluded."));
  root.append(shown);
  return root;
}

// Some of the plans that a reason excluded, priced in full when they are asked for.
async function examples({ why }, shown, page) {
  shown.replaceChildren(html("p", { class: "muted" }, "Pricing some of them ..."));
  let found;
  try {
    ({ excluded: found } = await page.ask({ excluded: why }));
  } catch (failed) {
    return shown.replaceChildren(...page.problems(failed));
  }
  const own = page.entry.estimate.step_time_s;
  const title = why === "memory" ? "Excluded for their memory, the quickest first" : "Excluded for their time, the quickest first";
  shown.replaceChildren(html("h3", { style: { "margin-top": "12px" } }, title));
  if (!found.length) return shown.append(html("p", { class: "muted" }, "None of those that were priced shows it: the search excluded them by bounds of settings that lie between."));
  return page.table(shown, [
    { name: "Plan", key: "name", show: dotted }, { name: "Step", key: "step_time_s", number: true, show: seconds }, { name: "Against this plan", key: "step_time_s", number: true, show: (time) => signedPercent(time / own - 1) },
    { name: "Memory", key: "peak_memory_bytes", number: true, show: gib }, { name: "Too much", key: "over", number: true, show: (over) => (over > 0 ? gib(over) : "–") },
  ], found.map((one) => ({ ...one, over: one.peak_memory_bytes - one.capacity_bytes })), { title, folded: false, pick: (row) => page.apply({ row: row.name }) });
}
