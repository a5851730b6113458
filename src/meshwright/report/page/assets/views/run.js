import { PARTS } from "page/colours.js";
import { html } from "page/svg.js";
import { seconds, signedSeconds } from "page/units.js";

export const view = {
  name: "run",
  title: "Your run",
  lede: "Predicted and measured side by side: drop the log of a run of this plan (Megatron, NeMo, torchtitan, DeepSpeed, Transformers), a CSV of steps, or a trace of the PyTorch profiler. It stays on this machine.",
  draw(root, data, page) {
    const shown = html("div", { "aria-live": "polite" });
    const take = async (file) => {
      shown.replaceChildren(html("p", { class: "muted" }, `reading ${file.name} …`));
      try {
        shown.replaceChildren(...compared(await page.post("run", { log: await file.text(), name: file.name }), page));
      } catch (failed) {
        shown.replaceChildren(...page.problems(failed));
      }
    };
    const input = html("input", { type: "file", id: "log", onchange: (event) => event.target.files[0] && take(event.target.files[0]) });
    const box = html("div", {
      class: "drop", ondragover: (event) => { event.preventDefault(); box.classList.add("over"); }, ondragleave: () => box.classList.remove("over"),
      ondrop: (event) => { event.preventDefault(); box.classList.remove("over"); if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]); },
    }, html("label", { for: "log" }, "Drop a log here, or choose one "), input);
    root.append(box, shown);
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
