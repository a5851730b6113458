import { html } from "page/svg.js";

// Files by the box they were dropped into: a view that is drawn again, for another plan or colours, shows them again.
const kept = new Map();

// A box that a file is dropped into, or chosen with; `draw(text, name)` is a promise of what is shown below it; of a
// file that is `raw`, `draw(file, name)`. What is used `once` is not read again when the view is drawn again.
export function dropped(root, page, id, label, draw, { once = false, raw = false } = {}) {
  const shown = html("div", { "aria-live": "polite" });
  const take = async (file) => {
    if (!file) return;
    if (!once) kept.set(id, file);
    shown.replaceChildren(html("p", { class: "muted" }, `reading ${file.name} …`));
    try {
      shown.replaceChildren(...(await draw(raw ? file : await file.text(), file.name)));
    } catch (failed) {
      shown.replaceChildren(...page.problems(failed));
    }
  };
  const box = html("div", {
    class: "drop", ondragover: (event) => { event.preventDefault(); box.classList.add("over"); }, ondragleave: () => box.classList.remove("over"),
    ondrop: (event) => { event.preventDefault(); box.classList.remove("over"); take(event.dataTransfer.files[0]); },
  }, html("label", { for: id }, label), html("input", { type: "file", id, onchange: (event) => take(event.target.files[0]) }));
  root.append(box, shown);
  take(kept.get(id));
}
