import { along, explains } from "page/card.js";
import { series } from "page/colours.js";
import { dropped } from "page/drop.js";
import { parallel, quantityAxis, valuesAxis } from "page/parallel.js";
import { dotted, html, svg } from "page/svg.js";
import { count, percent, seconds, significant, ticks } from "page/units.js";

const SCHEMAS = ["meshwright.tune/1", "meshwright.tune-comparison/1"];
const STATUS = { ok: "priced", infeasible: "does not fit", illegal: "not legal" };

export const view = {
  name: "tuning",
  title: "Tuning",
  lede: "What a tuner tried: drop the answer of `meshwright tune --json`, the file of `tune --storage`, or a table of trials in CSV or Parquet. It stays on this machine.",
  draw(root, data, page) {
    dropped(root, page, "study", "Drop a study here, or choose one ", async (file, name) => studied(await read(file, name, page), page), { raw: true });
    root.append(html("p", { class: "muted" }, "To make one: ", html("code", {}, data.command)));
  },
};

// The answer of `tune` is read here; what else keeps trials is read by the server.
async function read(file, name, page) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const first = new TextDecoder().decode(bytes.subarray(0, 64)).trimStart()[0];
  if (first === "{" || first === "[" || first === '"' || name.endsWith(".json")) return answer(new TextDecoder().decode(bytes), name);
  return page.post("study", { name, file: await base64(file) });
}

function answer(text, name) {
  let found = null;
  try {
    found = JSON.parse(text);
  } catch { /* said below */ }
  if (!SCHEMAS.includes(found?.schema)) {
    throw { problems: [{ what: `${name} is no study`, why: `its schema is ${found?.schema ?? "missing"}, not ${SCHEMAS.join(" or ")}`, fix: "`meshwright tune MODEL --gpus G --json > study.json`, or drop the file of `tune --storage`" }] };
  }
  return found;
}

const base64 = (file) => new Promise((done, fail) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => fail(new Error(`${file.name} cannot be read`));
  reader.readAsDataURL(file);
});

function studied(found, page) {
  const root = html("div");
  const studies = found.studies ?? [found];
  const [show, best] = [(value) => (found.objective.endsWith("_s") ? seconds(value) : significant(value)), found.optimum];
  root.append(html("p", {}, html("b", {}, found.space), found.size === null ? `: up to ${count(found.budget)} trials a study. ` : `: ${count(found.size)} legal plans, ${count(found.budget)} trials a study. `,
    best ? ["The optimum is ", html("b", {}, show(best.value)), ": ", html("code", {}, ...dotted(best.name)), best.stopped ? `, the best found until ${best.stopped}.` : "."] : "The optimum was not searched."));
  for (const note of found.notes ?? []) root.append(html("p", { class: "muted" }, note));
  const table = html("section", {}, html("h2", {}, studies.length > 1 ? "Studies" : "The study"));
  page.table(table, [
    { name: "Tuner", key: "label" }, { name: "Best", key: "value", number: true, show: (value) => (value === null ? "–" : show(value)) }, { name: "Above optimum", key: "regret", number: true, show: (value) => (value === null ? "–" : percent(value)) },
    { name: "Trials", key: "count", number: true }, ...statuses(studies).map((status) => ({ name: STATUS[status] ?? status, key: status, number: true })),
  ], studies.map((one) => ({ ...one, ...Object.fromEntries(statuses(studies).map((status) => [status, one.counts[status] ?? 0])), value: one.best?.value ?? null })), { title: "Studies", folded: false });
  root.append(html("div", { class: "grid" }, html("section", {}, html("h2", {}, "Best so far"), progress(studies, best, show)), table));
  for (const { tuner, why } of found.left_out ?? []) root.append(html("p", { class: "muted" }, `${tuner} was left out: ${why}`));
  const own = studies.filter((one) => one.trials?.length);
  if (own.length) root.append(trials(own, show, page));
  return [root];
}

const statuses = (studies) => [...new Set(studies.flatMap((one) => Object.keys(one.counts)))].filter((status) => studies.some((one) => one.counts[status] > 0));

// The best value after each trial, as stairs; the optimum is the dashed line.
function progress(studies, optimum, show) {
  const [width, height, left, bottom, top, right] = [480, 300, 62, 40, 14, 12];
  const stairs = studies.filter((one) => one.incumbents.length);
  if (!stairs.length) return html("p", { class: "absent" }, "No trial found a plan that fits.");
  const values = [...stairs.flatMap((one) => one.incumbents.map(({ value }) => value)), ...(optimum ? [optimum.value] : [])];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const span = high - low || 0.1 * low;
  const most = Math.max(...studies.map((one) => one.count), 2);
  const x = (trial) => left + (Math.log(Math.max(trial, 1)) / Math.log(most)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low + 0.06 * span) / (1.12 * span)) * (height - bottom - top);
  const step = ticks(span, 5)[1] ?? span;
  const levels = Array.from({ length: 8 }, (_, at) => (Math.ceil(low / step) + at) * step).filter((value) => value <= high + 0.02 * span);
  const trials = [1, 2, 5].flatMap((round) => [1, 10, 100, 1000, 10000].map((power) => round * power)).filter((trial) => trial <= most).sort((a, b) => a - b);
  const lines = stairs.map((one, at) => {
    const path = one.incumbents.map(({ trials: trial, value }, place) => `${place ? `H${x(trial).toFixed(1)}V` : `M${x(trial).toFixed(1)} `}${y(value).toFixed(1)}`).join("");
    const line = svg("path", { d: `${path}H${x(one.count)}`, fill: "none", stroke: series(at), "stroke-width": 2.4, role: "img", "aria-label": `${one.label}: ${show(one.best.value)} after ${one.count} trials` });
    return explains(line, [one.label, ["best", show(one.best.value)], ["after", `${one.incumbents.at(-1).trials} trials`], ...(one.regret === null ? [] : [["above the optimum", percent(one.regret)]])]);
  });
  along(lines);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawing", role: "group", "aria-label": "Best value after each trial" },
    svg("g", { class: "axis", "aria-hidden": "true" }, ...levels.map((value) => [svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value) }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, show(value))]),
      ...trials.map((trial) => svg("text", { x: x(trial), y: height - bottom + 18, "text-anchor": "middle" }, String(trial))), svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "trials")),
    optimum ? svg("g", { "aria-hidden": "true" }, svg("line", { x1: left, x2: width - right, y1: y(optimum.value), y2: y(optimum.value), stroke: "var(--good)", "stroke-dasharray": "5 4" }), svg("text", { x: width - right, y: y(optimum.value) - 5, "text-anchor": "end", class: "muted" }, `optimum ${show(optimum.value)}`)) : null, ...lines);
  const legend = stairs.length > 1 ? html("ul", { class: "legend" }, ...stairs.map((one, at) => html("li", {}, html("i", { style: { background: series(at) } }), one.label))) : "";
  return html("div", {}, drawing, legend);
}

// The trials of one study, which is chosen where there are several.
function trials(studies, show, page) {
  const shown = html("div", {}, tried(studies[0], show, page));
  if (studies.length < 2) return shown;
  return html("div", {}, html("label", {}, html("span", { class: "muted" }, "Trials of "), html("select", { id: "study-shown", class: "button", onchange: (event) => shown.replaceChildren(tried(studies[Number(event.target.value)], show, page)) },
    ...studies.map((one, at) => html("option", { value: String(at) }, one.label)))), shown);
}

// Every trial as a line over the settings that trials differ in, and as a row of the table that the marks leave.
function tried(found, show, page) {
  const rows = found.trials.map(({ point, ...one }) => ({ ...point, ...one, fits: STATUS[one.status] ?? one.status }));
  const priced = rows.filter((row) => Number.isFinite(row.value)).sort((a, b) => (a.status !== "ok") - (b.status !== "ok") || a.value - b.value);
  const root = html("section", { style: { "margin-top": "18px" } }, html("h2", {}, "Trials"));
  const names = Object.keys(found.trials[0]?.point ?? {}).filter((name) => new Set(priced.map((row) => row[name])).size > 1);
  const list = html("div");
  if (priced.length > 1 && names.length) {
    const axes = [quantityAxis("value", "step", priced, show), valuesAxis("fits", "outcome", priced), ...names.map((name) => valuesAxis(name, worded(name), priced))];
    parallel(root, axes, priced, { label: "Trials by their settings and their step", noun: "trials with a step", onKept: (kept, marked) => fill(marked ? kept : [...priced, ...rows.filter((row) => !priced.includes(row))]),
      card: (row) => [row.name ?? `trial ${row.trial}`, ["step", show(row.value)], ["", row.fits], ...names.map((name) => [worded(name), String(row[name])])] });
  } else fill(rows);
  root.append(list);
  return root;

  function fill(shown) {
    list.replaceChildren();
    page.table(list, [
      { name: "Plan", key: "name", show: (name, row) => (name ? dotted(name) : `trial ${row.trial}`) }, { name: "Step", key: "value", number: true, show: (value) => (Number.isFinite(value) ? show(value) : "–") },
      { name: "Trial", key: "trial", number: true }, { name: "Outcome", key: "fits" }, { name: "Why not", key: "reason" },
    ], shown, { title: "Trials", folded: false });
  }
}

const worded = (name) => name.replaceAll("_", " ");
