// Points over two quantities that the reader chooses: marks by what fits, the front of those that fit, a limit.
import { along, explains } from "page/card.js";
import { svg } from "page/svg.js";
import { ticks } from "page/units.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [480, 360, 62, 40, 22, 14];
// Far away points, of plans that nobody would take, would press the others into a corner: they stand at the edge.
const FARTHEST = { less: 1.6, more: 0.6, limited: 1.8 };

// points: objects with quantities by key, the one on show first. across, up: { key, name, show, less, unit?, zero?,
// limit? }, where `less` says that less is better, the axis counts in `unit`, and `limit` is { value, name }. `mark(point)`: { kept, own, colour, size, label,
// card, act } of a point, whose `act` is done by a click, null where there is none.
export function scatter(points, across, up, mark) {
  const here = points.filter((one) => [across, up].every(({ key }) => Number.isFinite(one[key])));
  const [x, y] = [scale(here, across, LEFT, WIDTH - RIGHT), scale(here, up, HEIGHT - BOTTOM, TOP)];
  const axis = svg("g", { class: "axis", "aria-hidden": "true" },
    ...y.marks.map((tick) => [svg("line", { x1: LEFT, x2: WIDTH, y1: y.at(tick), y2: y.at(tick) }), svg("text", { x: LEFT - 8, y: y.at(tick) + 4, "text-anchor": "end" }, up.show(tick))]),
    ...x.marks.map((tick) => svg("text", { x: x.at(tick), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, across.show(tick))),
    svg("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, across.name + atEdge(x, "right")), svg("text", { x: 0, y: 11 }, up.name + atEdge(y, "upper")));
  const limits = [limit(up, y, (at) => ({ x1: LEFT, x2: WIDTH, y1: at, y2: at }), (at) => ({ x: WIDTH, y: at - 5 })),
    limit(across, x, (at) => ({ x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }), (at) => ({ x: at - 5, y: TOP + 10 }))];
  const ordered = front(here.filter((one) => one.fits !== "no" && x.holds(one[across.key])), across, up);
  const line = ordered.length > 1 ? svg("polyline", { class: "front", points: ordered.map((one) => `${x.at(one[across.key])},${y.at(one[up.key])}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 1.5, opacity: 0.7 }) : null;
  const shown = [...here].reverse();
  const marks = shown.map((one) => {
    const { kept, own, colour, size, label, card, act } = mark(one);
    const [cx, cy] = [x.at(one[across.key]), y.at(one[up.key])];
    return explains(svg("g", {
      role: act ? "button" : "img", "aria-label": label, opacity: kept ? 1 : 0.18, style: { cursor: act ? "pointer" : "default" },
      onclick: act, onkeydown: act && ((event) => { if (event.key === "Enter") act(); }),
    }, own ? svg("circle", { cx, cy, r: 10, fill: "none", stroke: "var(--accent)", "stroke-width": 2.5 }) : null,
    svg("circle", { cx, cy, r: size, fill: colour, stroke: "var(--raised)", "stroke-width": 1 })), card);
  });
  // One stop of the Tab key; arrow keys go from the left to the right.
  along([...marks.keys()].sort((a, b) => x.at(shown[a][across.key]) - x.at(shown[b][across.key])).map((at) => marks[at]));
  const names = [across, up].map(({ name }) => name.replace(/^[A-Z](?=[a-z])/, (first) => first.toLowerCase()));
  // Names of limits lie over the points: they are read, a point has its card.
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "drawing", role: "group", "aria-label": `Plans by ${names.join(" and ")}` }, axis, ...limits.map((one) => one?.line), line, ...marks, ...limits.map((one) => one?.name));
}

const atEdge = ({ beyond }, edge) => (beyond ? ` (${beyond} beyond the ${edge} edge)` : "");

// What no other point is better than in both quantities, in order; points that are equally good are one.
export function front(points, across, up) {
  const better = (quantity) => (quantity.less ? 1 : -1);
  const ordered = [...points].sort((a, b) => better(across) * (a[across.key] - b[across.key]) || better(up) * (a[up.key] - b[up.key]));
  let best = Infinity;
  return ordered.filter((one) => {
    const own = better(up) * one[up.key];
    if (own >= best) return false;
    best = own;
    return true;
  });
}

// Where values of a quantity lie between two places of the drawing.
function scale(points, { key, less, zero, limit: bound, unit = 1 }, from, to) {
  const values = points.map((one) => one[key]);
  const own = values[0] ?? 1;
  const [least, most] = [Math.min(...values, own), Math.max(...values, own)];
  let [low, high] = [least, most];
  if (zero) [low, high] = [0, 1.06 * (bound ? Math.min(Math.max(bound.value, most), FARTHEST.limited * bound.value) : most)];
  else {
    if (less) high = Math.min(most, FARTHEST.less * own);
    else low = Math.max(least, FARTHEST.more * own);
    const span = Math.max(high - low, 0.02 * Math.abs(high)) || 1;
    [low, high] = [low - 0.06 * span, high + 0.06 * span];
  }
  const inside = (value) => Math.min(Math.max(value, low), high);
  const step = (ticks((high - low) / unit, 5)[1] ?? (high - low) / unit) * unit;
  const marks = Array.from({ length: 9 }, (_, at) => (Math.ceil(low / step - 1e-9) + at) * step).filter((tick) => tick <= high && Math.abs(tick) > 1e-12 * high || tick === 0 && zero);
  const beyond = values.filter((value) => value < low || value > high).length;
  return { beyond, at: (value) => from + ((inside(value) - low) / (high - low)) * (to - from), holds: (value) => value >= low && value <= high, marks };
}

function limit({ limit: bound }, at, line, text) {
  if (!bound || !at.holds(bound.value)) return null;
  const place = at.at(bound.value);
  return { line: svg("line", { ...line(place), stroke: "var(--bad)", "stroke-dasharray": "5 4", "aria-hidden": "true" }), name: svg("text", { ...text(place), "text-anchor": "end", class: "muted halo", "aria-hidden": "true" }, bound.name) };
}
