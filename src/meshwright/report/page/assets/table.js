import { html } from "page/svg.js";
import { sentence } from "page/units.js";

// A table behind a picture: sorted by a click on a head, folded where `folded` is not false.
//
// columns: [{ name, key, show?, number? }]; rows: objects by key. `show` makes the text of a cell of its value and row;
// `pick(row)` is done by a click on the name of a row, where `can(row)`. Where there is no room for its columns, a row is its name
// above its other cells, each behind the name of its column.
export function table(root, columns, rows, { title = "Table", folded = true, pick = null, can = () => true } = {}) {
  const state = { key: null, down: true };
  const body = html("tbody");
  const heads = columns.map((column) => {
    const button = html("button", { type: "button", class: "sort", onclick: () => sort(column) }, sentence(column.name));
    return html("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null, "aria-sort": "none" }, button);
  });

  function sort(column) {
    state.down = state.key === column.key ? !state.down : Boolean(column.number);
    state.key = column.key;
    heads.forEach((head, at) => {
      const own = columns[at] === column;
      head.setAttribute("aria-sort", own ? (state.down ? "descending" : "ascending") : "none");
    });
    fill();
  }

  function fill() {
    const order = [...rows];
    if (state.key !== null) {
      order.sort((a, b) => {
        const [x, y] = [a[state.key] ?? null, b[state.key] ?? null];
        if (x === null || y === null) return (x === null) - (y === null);
        const found = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
        return state.down ? -found : found;
      });
    }
    body.replaceChildren(...order.map((row) => {
      const cells = columns.map((column, at) => {
        const shown = column.show ? column.show(row[column.key], row) : (row[column.key] ?? "–");
        const inner = at === 0 && pick && can(row) ? html("button", { type: "button", class: "pick", onclick: () => pick(row) }, shown) : shown;
        return at === 0
          ? html("th", { scope: "row", role: "rowheader" }, inner)
          : html("td", { role: "cell", class: column.number ? "number" : null, "data-of": sentence(column.name) }, inner);
      });
      return html("tr", { role: "row", "aria-current": row.current ? "true" : null }, ...cells);
    }));
  }

  fill();
  const whole = html("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": title }, tableOf(title, heads, body, columns.length));
  root.append(folded ? html("details", { class: "behind" }, html("summary", {}, title), whole) : whole);
  return whole;
}

// The element of a table. Browsers forget what the parts of one are that is not laid out as one: roles say it.
export function tableOf(title, heads, body, columns) {
  body.setAttribute("role", "rowgroup");
  return html("table", { role: "table", class: columns > 7 ? "wide" : columns > 3 ? "broad" : null }, html("caption", { class: "unseen" }, title),
    html("thead", { role: "rowgroup" }, html("tr", { role: "row" }, ...heads)), body);
}
