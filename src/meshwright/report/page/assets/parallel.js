// Parallel coordinates: a row is a line across axes, one for each setting; what is marked on an axis keeps the rows that
// pass there. A drag along an axis marks a range, a value is marked by a click or the enter key. Axes are upright side by
// side; where they would be wider than the page they lie one below the other.
import { along, explains } from "page/card.js";
import { html, svg } from "page/svg.js";

const [HEIGHT, TOP, BOTTOM, LEFT, RIGHT] = [340, 34, 16, 30, 86];
const LETTER = 6.6;
const [CLOSEST, WIDEST] = [54, 150];
// Where axes lie: from one to the next, from a line to its values below it, and free beside the first and the last value.
const [LYING, BELOW, ENDS] = [50, 15, 24];
const MOST_LINES = 2000;
const MOST_TICKS = 12;

// An axis of the values that rows have under a key: numbers by size, words by name.
export function valuesAxis(key, name, rows, show = String) {
  const values = [...new Set(rows.map((row) => row[key]))].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
  return { key, name, ticks: values, show, at: (value) => (values.length > 1 ? values.indexOf(value) / (values.length - 1) : 0.5) };
}

// An axis of a quantity, on a scale of powers where it spans many; the least is on top, where the eye goes for the best.
export function quantityAxis(key, name, rows, show) {
  const found = rows.map((row) => row[key]).filter((value) => Number.isFinite(value) && value > 0);
  const [low, high] = [Math.min(...found), Math.max(...found)];
  const scaled = high > 8 * low ? Math.log : (value) => value;
  const back = high > 8 * low ? Math.exp : (value) => value;
  const span = scaled(high) - scaled(low) || 1;
  const ticks = high > low ? [0, 0.25, 0.5, 0.75, 1].map((share) => back(scaled(low) + share * span)) : [low];
  return { key, name, ticks, show, leastOnTop: true, at: (value) => 1 - (scaled(value) - scaled(low)) / span };
}

// Room that the values of an axis take on its right.
const besideOf = (axis) => 18 + LETTER * longest(axis);
const longest = (axis) => Math.max(...axis.ticks.map((value) => axis.show(value).length));

// Where axes and shares of them lie. `at(place, share)` is a point, `strip(place, low, high, half)` the rectangle around a
// part of an axis, `shareOf(place, x, y)` the share that is nearest to a point, `every(axis)` which values have room.
function uprightFrame(axes, room) {
  const beside = axes.map(besideOf);
  const right = Math.max(RIGHT, beside.at(-1));
  const long = beside.slice(0, -1).reduce((sum, wide) => sum + Math.max(wide - CLOSEST, 0), 0);
  const pitch = Math.min(Math.max((room - LEFT - right - long) / Math.max(axes.length - 1, 1), CLOSEST), WIDEST);
  const places = [LEFT];
  for (const wide of beside.slice(0, -1)) places.push(places.at(-1) + Math.max(pitch, wide));
  const y = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  return {
    width: places.at(-1) + right, height: HEIGHT, lies: false, cursor: "ns-resize",
    at: (place, share) => [places[place], y(share)],
    strip: (place, low, high, half) => ({ x: places[place] - half, y: y(high), width: 2 * half, height: y(low) - y(high) }),
    shareOf: (place, _, own) => (HEIGHT - BOTTOM - own) / (HEIGHT - TOP - BOTTOM),
    every: (axis) => Math.ceil(axis.ticks.length / MOST_TICKS),
    tick: (place, share) => ({ x: places[place] + 7, y: y(share) + 4 }),
    name: (place) => ({ x: places[place], y: 16, "text-anchor": "middle" }),
  };
}

// The least is on the left of every axis.
function lyingFrame(axes, width) {
  const along = width - 2 * ENDS;
  const turned = (place, share) => (axes[place].leastOnTop ? 1 - share : share);
  const x = (place, share) => ENDS + turned(place, share) * along;
  const y = (place) => TOP + place * LYING;
  return {
    width, height: TOP + axes.length * LYING, lies: true, cursor: "ew-resize",
    at: (place, share) => [x(place, share), y(place)],
    strip: (place, low, high, half) => ({ x: Math.min(x(place, low), x(place, high)), y: y(place) - half, width: Math.abs(x(place, high) - x(place, low)), height: 2 * half }),
    shareOf: (place, own) => turned(place, (own - ENDS) / along),
    every: (axis) => Math.ceil(((LETTER * longest(axis) + 8) * axis.ticks.length) / along),
    tick: (place, share, text) => {
      const half = (LETTER * text.length) / 2 + 2;
      return { x: Math.min(Math.max(x(place, share), half), width - half), y: y(place) + BELOW, "text-anchor": "middle" };
    },
    name: (place) => ({ x: 2, y: y(place) - 10 }),
  };
}

// axes: of the functions above. rows: objects by key, the best first. `onKept(rows)` is told what the marks leave;
// `card(row)` is shown beside a line, and `pick(row)` is done by a click on one.
export function parallel(root, axes, rows, { label, noun, card, pick = null, onKept = () => {} }) {
  const marks = new Map();
  const room = (document.getElementById("view")?.clientWidth ?? 1100) - 42;
  const upright = uprightFrame(axes, room);
  const frame = upright.width > room ? lyingFrame(axes, room) : upright;
  const shareOf = (place, event) => {
    const box = drawing.getBoundingClientRect();
    const share = frame.shareOf(place, ((event.clientX - box.left) / box.width) * frame.width, ((event.clientY - box.top) / box.height) * frame.height);
    return Math.min(Math.max(share, 0), 1);
  };
  const drawn = rows.slice(0, MOST_LINES);
  const strength = Math.min(0.85, Math.max(0.25, 40 / drawn.length));
  const colour = (at) => `color-mix(in srgb, var(--accent) ${Math.round(100 * (1 - at / drawn.length))}%, var(--warn))`;
  const lines = drawn.map((row, at) => {
    const line = svg("polyline", { points: axes.map((axis, place) => frame.at(place, axis.at(row[axis.key])).map((one) => one.toFixed(1)).join()).join(" "), fill: "none", stroke: at ? colour(at) : "var(--good)", "stroke-width": at ? 1.6 : 3, opacity: at ? strength : 1,
      style: { cursor: pick ? "pointer" : "default" }, onclick: pick ? () => pick(row) : null });
    return explains(line, () => card(row));
  });
  const ranges = axes.map(() => svg("rect", { fill: "var(--accent)", opacity: 0.22, visibility: "hidden", "pointer-events": "none" }));
  const said = html("span", { class: "muted", "aria-live": "polite" });
  const clear = html("button", { type: "button", class: "button", onclick: () => { marks.clear(); marked(); } }, "Clear marks");
  const uprights = axes.map((axis, place) => ruled(axis, place));
  const drawing = svg("svg", { viewBox: `0 0 ${frame.width} ${frame.height}`, class: "parallel", role: "group", "aria-label": label, style: { width: `${frame.width}px` } },
    svg("g", {}, ...[...lines].reverse()), ...ranges, ...uprights);
  root.append(html("div", { class: "toolbar" }, said, clear), html("div", { class: "scrolled beside", tabindex: "0", role: "region", "aria-label": label }, drawing));
  marked();

  function ruled(axis, place) {
    const grip = svg("rect", { ...frame.strip(place, -0.02, 1.02, 12), fill: "transparent", style: { cursor: frame.cursor, "touch-action": "none" } });
    grip.addEventListener("pointerdown", (event) => {
      const from = shareOf(place, event);
      grip.setPointerCapture(event.pointerId);
      const drag = (moved) => { marks.set(axis.key, [from, shareOf(place, moved)].sort((a, b) => a - b)); marked(); };
      const end = (last) => {
        grip.removeEventListener("pointermove", drag);
        // A press without a way takes the mark away.
        if (Math.abs(shareOf(place, last) - from) < 0.012) { marks.delete(axis.key); marked(); }
      };
      grip.addEventListener("pointermove", drag);
      grip.addEventListener("pointerup", end, { once: true });
    });
    const every = frame.every(axis);
    const last = axis.ticks.length - 1;
    const shown = axis.ticks.filter((_, at) => at === last || (at % every === 0 && at + every <= last));
    const ticks = shown.map((value) => {
      const share = axis.at(value);
      const toggle = (event) => {
        const [own, wider] = [marks.get(axis.key), event.shiftKey];
        const only = own && own[0] <= share && own[1] >= share && own[1] - own[0] < 0.03;
        if (only && !wider) marks.delete(axis.key);
        else marks.set(axis.key, own && wider ? [Math.min(own[0], share - 0.01), Math.max(own[1], share + 0.01)] : [share - 0.01, share + 0.01]);
        marked();
      };
      const tick = svg("g", { role: "button", "aria-label": `${axis.name} ${axis.show(value)}`, style: { cursor: "pointer" }, onclick: toggle,
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(event); } } },
      svg("text", { ...frame.tick(place, share, axis.show(value)), class: "halo" }, axis.show(value)));
      tick.share = share;
      return tick;
    });
    const placeOf = ({ share }) => frame.at(place, share)[frame.lies ? 0 : 1];
    along([...ticks].sort((one, other) => placeOf(one) - placeOf(other)), { vertical: !frame.lies });
    const [[x1, y1], [x2, y2]] = [frame.at(place, 0), frame.at(place, 1)];
    return svg("g", { class: "ruled" }, svg("line", { x1, x2, y1, y2 }), grip, svg("text", { ...frame.name(place), class: "name halo" }, axis.name), ...ticks);
  }

  function marked() {
    const inside = (row) => axes.every((axis) => {
      const own = marks.get(axis.key);
      const share = axis.at(row[axis.key]);
      return !own || (share >= own[0] && share <= own[1]);
    });
    lines.forEach((line, at) => line.classList.toggle("beyond", !inside(drawn[at])));
    ranges.forEach((range, place) => {
      const own = marks.get(axes[place].key);
      range.setAttribute("visibility", own ? "visible" : "hidden");
      if (!own) return;
      for (const [name, value] of Object.entries(frame.strip(place, own[0] - 0.01, own[1] + 0.01, 9))) range.setAttribute(name, value);
    });
    const kept = rows.filter(inside);
    const capped = rows.length > drawn.length ? `, the best ${drawn.length.toLocaleString("en-US")} of them drawn` : "";
    said.textContent = `${kept.length.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")} ${noun}${marks.size ? " within the marks" : ""}${capped}. Drag along an axis, or click its values, to mark what to keep. The thick line is the best, the others go from blue to brown, the worst.`;
    clear.disabled = !marks.size;
    onKept(kept, marks.size > 0);
  }
}
