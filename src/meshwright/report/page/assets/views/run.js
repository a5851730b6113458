import { PARTS } from "page/colours.js";
import { dropped } from "page/drop.js";
import { coded, html } from "page/svg.js";
import { gib, seconds, signedPercent, signedSeconds, significant } from "page/units.js";

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
  const both = [{ name: "What", key: "name" }, { name: "Predicted", key: "predicted" }, { name: "Measured", key: "measured" }];
  const side = (rows, title, [what, ...numbers], more) => page.table(root, [what, ...numbers.map((one) => ({ ...one, number: true, show: (value, row) => row.show(value) })), ...more], rows, { title, folded: false });
  if (found.totals.length) {
    side(found.totals.map((one) => ({ ...one, ...written(one.name), change: one.measured / one.predicted - 1 })), "Predicted and measured", both, [
      { name: "Range of the prediction", key: "low", number: true, show: (low, row) => (low === null ? "–" : `${row.show(low)} to ${row.show(row.high)}`) },
      { name: "Difference", key: "change", number: true, show: signedPercent },
    ]);
  }
  if (found.terms.length) {
    side(found.terms.map((one) => ({ name: one.parts.map((part) => PARTS[part] ?? part).join(", ") || "time that is not predicted", show: seconds, predicted: one.predicted_s, measured: one.measured_s, change: one.change_s, reported: one.name || "the rest of the step" })),
      "Parts of the step", both, [{ name: "Difference", key: "change", number: true, show: signedSeconds }, { name: "As the run reports it", key: "reported" }]);
  }
  for (const [title, lines] of [["What explains it", found.causes.map((one) => one.text)], ["What to try", found.advice], ["Notes", found.notes]]) {
    if (lines.length) root.append(html("h3", { style: { "margin-top": "14px" } }, title), html("ul", {}, ...lines.map((line) => html("li", {}, coded(line)))));
  }
  if (found.left) root.append(html("p", { class: "muted" }, found.left));
  return [root];
}

// What a quantity is called, and how it is written.
const WRITTEN = {
  "FLOP/s per device": ["TFLOP/s per device", (value) => significant(value / 1e12)], "memory allocated": ["memory allocated", gib],
  step: ["step", seconds], power: ["power per device (at most)", (value) => `${significant(value)} W`],
};
function written(quantity) {
  const [name, show] = WRITTEN[quantity] ?? [quantity, (value) => significant(value)];
  return { name, show };
}
