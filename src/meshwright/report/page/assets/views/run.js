import { PARTS } from "page/colours.js";
import { dropped } from "page/drop.js";
import { html } from "page/svg.js";
import { seconds, signedSeconds } from "page/units.js";

export const view = {
  name: "run",
  title: "Your run",
  lede: (live) => !live ? "The run whose log was named, beside the prediction of its plan." : "Predicted and measured side by side: drop the log of a run of this plan (Megatron, NeMo, torchtitan, DeepSpeed, Transformers), a CSV of steps, or a trace of the PyTorch profiler. It stays on this machine.",
  draw(root, data, page) {
    if (!page.live) return root.append(...compared(data, page));
    dropped(root, page, "log", "Drop a log here, or choose one ", async (log, name) => compared(await page.post("run", { log, name }), page));
  },
};

function compared(found, page) {
  const root = html("div");
  root.append(html("p", {}, html("b", {}, found.text)));
  const side = (rows, title) => page.table(root, [
    { name: "What", key: "name", show: (value) => PARTS[value] ?? value }, { name: "Predicted", key: "predicted", number: true, show: shownAs }, { name: "Measured", key: "measured", number: true, show: shownAs },
    { name: "Change", key: "change", number: true, show: (value, row) => (String(row.unit ?? "s") === "s" && value !== null ? signedSeconds(value) : shownAs(value, row)) },
  ], rows, { title, folded: false });
  const rows = (list) => list.map((one) => ({ ...one, predicted: one.predicted ?? one.predicted_s ?? null, measured: one.measured ?? one.measured_s ?? null, change: one.change_s ?? one.change ?? null }));
  if (found.totals.length) side(rows(found.totals), "Predicted and measured");
  if (found.terms.length) side(rows(found.terms), "Parts of the step");
  for (const [title, lines] of [["What explains it", found.causes.map((one) => one.text)], ["What to try", found.advice], ["Notes", found.notes]]) {
    if (lines.length) root.append(html("h3", { style: { "margin-top": "14px" } }, title), html("ul", {}, ...lines.map((line) => html("li", {}, line))));
  }
  if (found.left) root.append(html("p", { class: "muted" }, found.left));
  return [root];
}

const shownAs = (value, row) => (value === null || value === undefined ? "–" : (row.unit ?? "s") === "s" ? seconds(value) : value.toLocaleString("en-US", { maximumSignificantDigits: 3 }));
