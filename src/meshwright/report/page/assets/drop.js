import { html } from "page/svg.js";

// Files by the box they were dropped into: a view that is drawn again, for another plan or colours, shows them again.
const kept = new Map();

// A box that a file is dropped into, or chosen with; `draw(text, name)` is a promise of what is shown below it; of a
// file that is `raw`, `draw(file, name)`. What is used `once` is not read again when the view is drawn again.
export function dropped(root, page, id, label, draw, { once = false, raw = false } = {}) {
  const shown = html("div", { "aria-live": "polite" });
  let turn = 0;
  const take = async (file) => {
    if (!file) return;
    const own = ++turn;
    if (!once) kept.set(id, file);
    shown.replaceChildren(html("p", { class: "muted" }, `reading ${file.name} …`));
    const found = await (raw ? draw(file, file.name) : file.text().then((text) => draw(text, file.name))).catch((failed) => page.problems(failed));
    // What is read of a file before it comes later where that took longer.
    if (own === turn) shown.replaceChildren(...found);
  };
  const box = html("div", {
    class: "drop", ondragover: (event) => { event.preventDefault(); box.classList.add("over"); }, ondragleave: () => box.classList.remove("over"),
    ondrop: (event) => { event.preventDefault(); box.classList.remove("over"); take(event.dataTransfer.files[0]); },
  }, html("label", { for: id }, label), html("input", { type: "file", id, onchange: (event) => take(event.target.files[0]) }));
  root.append(box, shown);
  take(kept.get(id));
}
