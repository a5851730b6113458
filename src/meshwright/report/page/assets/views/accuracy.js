import { along, explains } from "page/card.js";
import { series } from "page/colours.js";
import { dropped } from "page/drop.js";
import { html, svg } from "page/svg.js";
import { count, percent, significant, signedPercent } from "page/units.js";

const BAND = 0.2;
const NAMES = { time: "Step time", memory: "Peak memory" };

export const view = {
  name: "accuracy",
  title: "Accuracy",
  lede: (live) => !live ? "Every measured run of the file that was named as a point, predicted against measured. A click on a point shows its row." : "Every run you measured as a point, predicted against measured: drop the CSV that `meshwright validate` reads, one run a row. A click on a point shows its row. It stays on this machine.",
  draw(root, data, page) {
    if (!page.live) return root.append(...explored(data, page));
    dropped(root, page, "measured", "Drop a CSV of measured runs here, or choose one ", async (measured, name) => explored(await page.post("accuracy", { measured, name }), page));
    root.append(released(data, page));
  },
};

// What this release itself was held against.
function released({ date, runs, errors, inside, sources }, page) {
  const { after, left_out: unseen } = errors;
  const off = ({ median, p90, bias }) => [html("td", { class: "number" }, percent(median)), html("td", { class: "number" }, percent(p90)), html("td", { class: "number" }, signedPercent(bias))];
  const bar = (share) => html("span", { class: "share" }, html("i", { style: { width: `${100 * share}%` } }), percent(share));
  const root = html("section", { style: { "margin-top": "20px" } }, html("h2", {}, "What this release was held against"),
    html("p", {}, `${count(runs)} published steps of ${sources.length} sources, fitted on ${date}. Each source was also predicted by a fit that had left it out: expect that of a machine that nobody measured. ${percent(inside)} of those runs lie inside the range of their prediction.`),
    html("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Errors of the fit" }, html("table", {}, html("caption", { class: "unseen" }, "Errors of the fit"),
      html("thead", {}, html("tr", {}, ...["Step time of", "Median error", "90% within", "Bias"].map((name, at) => html("th", { scope: "col", class: at ? "number" : null }, name)))),
      html("tbody", {}, html("tr", {}, html("th", { scope: "row" }, "runs in the fit"), ...off(after)), html("tr", {}, html("th", { scope: "row" }, "sources left out of it"), ...off(unseen))))));
  page.table(root, [{ name: "Source, left out of the fit", key: "source" }, { name: "Runs", key: "runs", number: true }, { name: "Inside their range", key: "inside", number: true, show: bar }], sources, { title: "Sources", folded: false });
  return root;
}

function explored(found, page) {
  const root = html("div");
  const shown = html("section", { "aria-live": "polite", "aria-label": "The chosen run" });
  const show = (point, metric) => shown.replaceChildren(...chosen(found.rows[point.row], point, found.metrics[metric].unit));
  const figures = Object.entries(found.metrics).map(([metric, one]) => html("section", {},
    html("h2", {}, NAMES[metric]),
    html("p", {}, `${count(one.score.predicted)} of ${count(one.score.runs)} measured runs are predicted: median error ${percent(one.score.median_error)}, 90% within ${percent(one.score.p90_error)}, ${percent(one.score.in_interval)} inside their range.`),
    scatter(one, metric, found.rows, (point) => show(point, metric)), sourcesLegend(one)));
  root.append(...(figures.length ? [html("p", { class: "muted" }, `${Object.values(found.metrics).every(({ points }) => groupsOf(points).length <= MOST_COLOURS) ? "A colour is a source; the" : "The"} line is a perfect prediction, the band one that is off by at most ${percent(BAND)}.`), html("div", { class: "grid" }, ...figures)] : [html("p", {}, html("b", {}, "No row has a measurement that is predicted."))]), shown);
  for (const [metric, one] of Object.entries(found.metrics)) {
    page.table(root, [
      { name: "Run", key: "id" }, { name: "Source", key: "group" }, { name: `Measured, ${one.unit}`, key: "measured", number: true, show: (value) => significant(value) },
      { name: `Predicted, ${one.unit}`, key: "predicted", number: true, show: (value) => significant(value) }, { name: "Error", key: "error", number: true, show: signedPercent },
    ], one.points.map((point) => ({ ...point, id: found.rows[point.row].id, error: point.predicted / point.measured - 1 })), { title: `${NAMES[metric]} of all runs`, pick: (point) => show(point, metric) });
  }
  const left = found.rows.filter((row) => row.why_not);
  if (left.length) page.table(root, [{ name: "Run", key: "id" }, { name: "Why it is not predicted", key: "why_not" }], left, { title: `${count(left.length)} rows without a prediction` });
  return [root];
}

// Which colour is which source, where no two share one.
const MOST_COLOURS = 4;
const groupsOf = (points) => [...new Set(points.map((one) => one.group))];
function sourcesLegend({ points }) {
  const groups = groupsOf(points);
  if (groups.length > MOST_COLOURS) return null;
  return html("ul", { class: "legend" }, ...groups.map((group, at) => html("li", {}, html("i", { class: "circle", style: { background: series(at) } }), group || "source not said")));
}

function chosen(row, point, unit) {
  const off = point.predicted / point.measured - 1;
  const inside = point.low !== null && point.measured >= point.low && point.measured <= point.high;
  const range = point.low === null ? "" : `, range ${significant(point.low)} to ${significant(point.high)} ${unit}: the measurement is ${inside ? "inside" : "outside"}`;
  return [
    html("h2", {}, row.id), html("p", {}, html("b", {}, `${significant(point.predicted)} ${unit} predicted, ${significant(point.measured)} ${unit} measured, ${signedPercent(off)}`), range, row.plan ? `. Plan ${row.plan}` : ""),
    html("dl", { class: "cells" }, ...Object.entries(row.cells).map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)))),
    row.assumptions.length ? html("p", { class: "muted" }, `Assumed: ${row.assumptions.join("; ")}`) : "",
  ];
}

function scatter({ points, unit }, metric, rows, show) {
  const [width, height, left, bottom, top] = [480, 400, 48, 40, 26];
  const all = points.flatMap((one) => [one.measured, one.predicted]);
  const [low, high] = [Math.log10(Math.min(...all)) - 0.1, Math.log10(Math.max(...all)) + 0.1];
  const share = (value) => (Math.min(Math.max(Math.log10(value), low), high) - low) / (high - low);
  const x = (value) => left + share(value) * (width - left - 10);
  const y = (value) => height - bottom - share(value) * (height - bottom - top);
  // Powers of ten, and 2 and 5 times them where few fit.
  const rounds = high - low > 2.5 ? [1] : high - low > 1.2 ? [1, 3] : [1, 2, 5];
  const marks = [];
  for (let power = Math.floor(low); power <= high; power += 1) marks.push(...rounds.map((round) => round * 10 ** power).filter((mark) => Math.log10(mark) >= low && Math.log10(mark) <= high));
  const ends = [10 ** low, 10 ** high];
  const axis = svg("g", { class: "axis", "aria-hidden": "true" },
    svg("polygon", { points: [...ends.map((end) => `${x(end)},${y(end * (1 + BAND))}`), ...ends.reverse().map((end) => `${x(end)},${y(end * (1 - BAND))}`)].join(" "), fill: "var(--muted)", opacity: 0.14 }),
    ...marks.map((mark) => [svg("line", { x1: x(mark), x2: x(mark), y1: top, y2: height - bottom }), svg("line", { x1: left, x2: width - 10, y1: y(mark), y2: y(mark) }), svg("text", { x: x(mark), y: height - bottom + 18, "text-anchor": "middle" }, significant(mark, 2)), svg("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, significant(mark, 2))]),
    svg("path", { d: `M${x(ends[1])} ${y(ends[1])}L${x(ends[0])} ${y(ends[0])}`, style: { stroke: "var(--muted)" } }),
    svg("text", { x: width, y: height - 4, "text-anchor": "end" }, `measured, ${unit}`), svg("text", { x: 0, y: 10 }, `predicted, ${unit}`));
  const groups = groupsOf(points);
  // By size, so that arrow keys go from the quickest run to the slowest.
  const dots = [...points].sort((a, b) => a.measured - b.measured).map((one) => {
    const { id } = rows[one.row];
    const error = signedPercent(one.predicted / one.measured - 1);
    const dot = svg("circle", {
      cx: x(one.measured), cy: y(one.predicted), r: 5, fill: series(groups.indexOf(one.group)), "fill-opacity": 0.65, stroke: "var(--raised)", role: "button", style: { cursor: "pointer" },
      "aria-label": `${id}: ${significant(one.predicted)} ${unit} predicted, ${significant(one.measured)} measured, ${error}`, onclick: () => show(one), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(one); } },
    });
    return explains(dot, [id, ["predicted", `${significant(one.predicted)} ${unit}`], ["measured", `${significant(one.measured)} ${unit}`], ["error", error], ["source", one.group || "–"]]);
  });
  along(dots);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawing", role: "group", "aria-label": `${NAMES[metric]}: predicted against measured, ${points.length} runs; the line is a perfect prediction, the band one that is off by 20% at most` }, axis, ...dots);
}
