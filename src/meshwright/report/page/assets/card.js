import { html } from "page/svg.js";

// One card for the whole page, shown beside the pointer or below the element that has the focus.
let card = null;

function own() {
  if (!card) {
    card = html("div", { class: "card", role: "tooltip", id: "card", hidden: true });
    document.body.append(card);
    addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
    addEventListener("scroll", hide, { passive: true });
  }
  return card;
}

// lines: [title, [name, value], ...]
export function show(x, y, [title, ...lines]) {
  const box = own();
  box.replaceChildren(html("b", {}, title), html("dl", {}, ...lines.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)])));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? Math.max(4, x - width - 14) : x + 14;
  const top = y + 14 + height > innerHeight ? Math.max(4, y - height - 14) : y + 14;
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}

export function hide() {
  if (card) card.hidden = true;
}

// Show the card of an element on hover and on focus. `lines` is the card, or a function that makes it.
export function explains(element, lines) {
  const made = () => (typeof lines === "function" ? lines() : lines);
  element.addEventListener("pointermove", (event) => show(event.clientX, event.clientY, made()));
  element.addEventListener("pointerleave", hide);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    show(box.left, box.bottom, made());
  });
  element.addEventListener("blur", hide);
  // Browsers put every shape that listens for the focus into the tab order; those with a name are put there by themselves.
  if (element instanceof SVGElement && !element.hasAttribute("tabindex")) element.setAttribute("tabindex", "-1");
  return element;
}

// Arrow keys go along elements; one of them is in the tab order.
export function along(elements, { vertical = false, first = 0 } = {}) {
  const keys = vertical ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  elements.forEach((element, at) => {
    element.setAttribute("tabindex", at === first ? "0" : "-1");
    element.addEventListener("keydown", (event) => {
      const step = keys.indexOf(event.key);
      const next = event.key === "Home" ? 0 : event.key === "End" ? elements.length - 1 : step < 0 ? null : at + 2 * step - 1;
      if (next === null || !elements[next]) return;
      event.preventDefault();
      elements.forEach((one) => one.setAttribute("tabindex", "-1"));
      elements[next].setAttribute("tabindex", "0");
      elements[next].focus();
    });
  });
}
