import { explains } from "page/card.js";
import { PARTS, part } from "page/colours.js";
import { drawing, html, svg } from "page/svg.js";
import { bytes, percent, rate, seconds, significant } from "page/units.js";

const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [470, 310, 54, 16, 42];
// Between two numbers of an axis.
const [APART_ACROSS, APART_UP] = [62, 22];
const LETTER = 6.2;
const KINDS = { product: "part-compute", attention: "part-tp", scores: "part-cp", scan: "part-ep", stream: "part-offload" };
const KIND_NAMES = { product: "products", attention: "attention", scores: "scores", scan: "recurrences", stream: "streams" };
const SYMBOLS = { product: "circle", attention: "square", scores: "diamond", scan: "triangle", tp: "circle", cp: "square", ep: "diamond", dp: "triangle" };

export const view = {
  name: "operators",
  title: "Operators",
  still: true,
  draw(root, data, page) {
    if (data.absent) {
      root.append(html("p", { class: "absent" }, data.absent));
      return;
    }
    const place = Math.max(0, data.groups.findIndex(({ name }) => name === page.get?.("group")));
    const shown = html("div");
    if (data.groups.length > 1) {
      const picks = data.groups.map((group, at) => html("button", { type: "button", class: "button", "aria-pressed": String(at === place), onclick: () => choose(at) }, group.name));
      root.append(html("div", { class: "toolbar", role: "group", "aria-label": "Group of nodes" }, ...picks));
      const choose = (at) => {
        picks.forEach((pick, own) => pick.setAttribute("aria-pressed", String(own === at)));
        page.set?.("group", at ? data.groups[at].name : null);
        fill(shown, data.groups[at], page);
      };
    }
    root.append(shown);
    fill(shown, data.groups[place], page);
  },
};

function fill(root, group, page) {
  const streams = group.operators.filter(({ flop }) => !flop);
  const inside = group.stages > 1 ? `, mean of ${group.stages} stages` : "";
  const half = (title, note, ...parts) => html("section", {}, html("h2", {}, title), html("p", { class: "muted" }, note), ...parts);
  root.replaceChildren(html("div", { class: "grid" },
    half(`Roofline of ${group.device}`, `One dot is one operator in one phase${inside}; its area is its share of the step.`, roofline(group), kindsLegend(group)),
    half("Exchanges", group.messages.length ? "Size of a message against the bus bandwidth it reaches alone, as nccl-tests counts it; the lines are the links." : "",
      group.messages.length ? exchanges(group) : html("p", { class: "absent" }, "No device sends anything to another inside layers or for data parallelism."),
      group.messages.length ? messagesLegend(group) : null)));
  const above = group.operators.reduce((sum, row) => sum + Math.max(row.above_s, 0), 0);
  root.append(html("h2", {}, "Where time above the speed of light goes"),
    html("p", { class: "muted" }, `${seconds(above)} of a step are above what ${group.device} could do at its peak and at the full bandwidth of its memory.${
      streams.length ? ` Operators that only stream reach ${percent(weighted(streams))} of the bandwidth.` : ""}`));
  page.table(root, [
    { name: "Operator", key: "name" }, { name: "Module", key: "module", show: (name) => (name ? html("code", {}, name) : "–") }, { name: "Phase", key: "phase" },
    { name: "Time", key: "seconds", show: seconds, number: true }, { name: "Of step", key: "share", show: percent, number: true },
    { name: "Speed of light", key: "reached", show: percent, number: true }, { name: "Time above it", key: "above_s", show: seconds, number: true },
    { name: "Bound by", key: "bound" }, { name: "Basis", key: "basis" },
  ], group.operators.map((row) => ({ ...row, reached: row.light_s / row.seconds, bound: bound(group, row) })), { title: `Operators on ${group.device}`, folded: false });
  if (group.messages.length) {
    page.table(root, [
      { name: "Exchange", key: "collective" }, { name: "For", key: "category", show: (name) => PARTS[name] ?? name }, { name: "Phase", key: "phase" },
      { name: "Ranks", key: "ranks", number: true }, { name: "Message", key: "payload_bytes", show: bytes, number: true },
      { name: "Bus bandwidth", key: "bus_bytes_per_s", show: rate, number: true }, { name: "Calls", key: "calls", show: (calls) => significant(calls), number: true },
      { name: "Time alone", key: "seconds", show: seconds, number: true }, { name: "Link", key: "link", show: (at) => group.links[at]?.name ?? "–" },
      { name: "Basis", key: "basis" },
    ], group.messages.map((row) => ({ ...row, basis: group.links[row.link]?.basis })), { title: "Exchanges" });
  }
}

const weighted = (rows) => rows.reduce((sum, row) => sum + row.light_s, 0) / rows.reduce((sum, row) => sum + row.seconds, 0);
const top = (group) => group.peaks.at(-1);
const bound = (group, row) => (!row.flop || row.flop / row.bytes < row.peak_flop_per_s / group.bytes_per_s ? "memory" : "compute");

// A scale of powers of ten between two numbers, as positions.
function logarithmic(low, high, from, to, apart) {
  const [a, b] = [Math.log10(low), Math.log10(high)];
  const at = (value) => from + ((Math.log10(value) - a) / (b - a)) * (to - from);
  const powers = Array.from({ length: Math.floor(b) - Math.floor(a) + 1 }, (_, step) => 10 ** (Math.floor(a) + step));
  // Three places to read from, at least, where they have room.
  const decade = Math.abs(to - from) / (b - a);
  const few = powers.filter((power) => power >= low && power <= high).length < 3;
  const digits = !few ? [1] : [[1, 2, 5], [1, 3], [1]].find((found) => decade * Math.log10(found[1] ?? 10) >= apart) ?? [1];
  at.ticks = powers.flatMap((power) => digits.map((digit) => digit * power)).filter((tick) => tick >= low && tick <= high);
  return at;
}

function axes(x, y, xName, yName, showX, showY) {
  return svg("g", { class: "axis" },
    ...x.ticks.map((tick) => [svg("line", { x1: x(tick), x2: x(tick), y1: TOP, y2: HEIGHT - BOTTOM }), svg("text", { x: x(tick), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, showX(tick))]),
    ...y.ticks.map((tick) => [svg("line", { x1: LEFT, x2: WIDTH - 8, y1: y(tick), y2: y(tick) }), svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, showY(tick))]),
    svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xName),
    svg("text", { x: 12, y: (TOP + HEIGHT - BOTTOM) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(TOP + HEIGHT - BOTTOM) / 2})` }, yName));
}

function mark(shape, x, y, size, colour) {
  const style = { fill: colour, "fill-opacity": 0.72, stroke: "var(--raised)", "stroke-width": 1 };
  if (shape === "circle") return svg("circle", { cx: x, cy: y, r: size, ...style });
  if (shape === "square") return svg("rect", { x: x - size * 0.89, y: y - size * 0.89, width: size * 1.78, height: size * 1.78, ...style });
  const points = shape === "diamond" ? [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]] : [[0, -1.3], [1.2, 0.9], [-1.2, 0.9]];
  return svg("polygon", { points: points.map(([a, b]) => `${x + a * size},${y + b * size}`).join(" "), ...style });
}

const area = (share) => Math.max(2.5, Math.sqrt(share) * 46);

function roofline(group) {
  const rows = group.operators.filter(({ flop }) => flop > 0).sort((a, b) => b.seconds - a.seconds);
  const intensities = rows.map((row) => row.flop / row.bytes);
  const rates = rows.map((row) => row.flop / row.seconds);
  const ridge = top(group) / group.bytes_per_s;
  const [low, high] = [Math.min(ridge / 30, ...intensities) * 0.6, Math.max(ridge * 30, ...intensities) * 1.8];
  const x = logarithmic(low, high, LEFT, WIDTH - 8, APART_ACROSS);
  const floor = Math.min(group.bytes_per_s * low * 4, ...rates) * 0.6;
  const y = logarithmic(floor, top(group) * 1.9, HEIGHT - BOTTOM, TOP, APART_UP);
  const begin = Math.max(low, floor / group.bytes_per_s);
  const roof = { stroke: "var(--ink)", "stroke-width": 1.6, fill: "none" };
  return drawing(WIDTH, HEIGHT, `Roofline of ${group.device}: ${rows.length} operators, ridge at ${significant(ridge)} FLOP per byte. The table below has them.`,
    axes(x, y, "FLOP per byte", "TFLOP/s", (tick) => significant(tick), (tick) => significant(tick / 1e12)),
    svg("path", { d: `M${x(begin)} ${y(begin * group.bytes_per_s)}L${x(ridge)} ${y(top(group))}H${WIDTH - 8}`, ...roof }),
    ...group.peaks.slice(0, -1).map((peak) => svg("path", { d: `M${x(peak / group.bytes_per_s)} ${y(peak)}H${WIDTH - 8}`, ...roof, "stroke-dasharray": "5 3" })),
    ...group.peaks.map((peak) => svg("text", { x: WIDTH - 10, y: y(peak) - 6, "text-anchor": "end", class: "muted" }, `${significant(peak / 1e12)} TFLOP/s`)),
    svg("text", { x: x(ridge) - 10, y: y(top(group)) - 6, "text-anchor": "end", class: "muted" }, `${significant(group.bytes_per_s / 1e12)} TB/s`),
    ...rows.map((row) => explains(mark(SYMBOLS[row.kind], x(row.flop / row.bytes), y(row.flop / row.seconds), area(row.share), `var(--${KINDS[row.kind]})`), [
      `${row.name}, ${row.phase}`, ...(row.module ? [["recompute module", row.module]] : []), ["time", `${seconds(row.seconds)}, ${percent(row.share)} of the step`], ["reaches", `${significant(row.flop / row.seconds / 1e12)} of ${significant(row.peak_flop_per_s / 1e12)} TFLOP/s`],
      ["FLOP per byte", significant(row.flop / row.bytes)], ["of the speed of light", percent(row.light_s / row.seconds)], ["bound by", bound(group, row)], ["basis", row.basis],
    ])));
}

function exchanges(group) {
  const { messages, links } = group;
  const sizes = messages.map((row) => row.payload_bytes);
  const rates = [...messages.map((row) => row.bus_bytes_per_s), ...links.map((link) => link.bytes_per_s)];
  const x = logarithmic(Math.min(...sizes) / 4, Math.max(...sizes) * 4, LEFT, WIDTH - 8, APART_ACROSS);
  const y = logarithmic(Math.min(...rates) / 3, Math.max(...rates) * 1.9, HEIGHT - BOTTOM, TOP, APART_UP);
  return drawing(WIDTH, HEIGHT, `${messages.length} kinds of exchange against their links. The table below has them.`,
    axes(x, y, "size of a message", "GB/s of bus bandwidth", (tick) => (tick >= 1e9 ? `${significant(tick / 1e9)} GB` : tick >= 1e6 ? `${significant(tick / 1e6)} MB` : `${significant(tick / 1e3)} kB`), (tick) => significant(tick / 1e9)),
    ...links.map((link) => svg("path", { d: `M${LEFT} ${y(link.bytes_per_s)}H${WIDTH - 8}`, stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": link.basis === "assumed" ? "5 3" : null })),
    ...messages.map((row) => explains(mark(SYMBOLS[row.category], x(row.payload_bytes), y(row.bus_bytes_per_s), area(row.share), part(row.category)), [
      `${row.collective}, ${row.phase}`, ["for", PARTS[row.category] ?? row.category], ["ranks", String(row.ranks)], ["message", bytes(row.payload_bytes)],
      ["bus bandwidth", rate(row.bus_bytes_per_s)], ["time alone", `${seconds(row.seconds)}, ${percent(row.share)} of the step`], ["link", links[row.link]?.name ?? "–"], ["basis", links[row.link]?.basis ?? "–"],
    ])), ...links.map((link) => linkName(link, y(link.bytes_per_s) - 6, messages.map((row) => ({ x: x(row.payload_bytes), y: y(row.bus_bytes_per_s), size: 1.3 * area(row.share) })))));
}

// The name of a link over its line, at the end where marks leave it free; over them where neither is.
function linkName(link, y, marks) {
  const name = `${link.name}: ${rate(link.bytes_per_s)}${link.basis === "assumed" ? ", assumed" : ""}`;
  const wide = LETTER * name.length;
  const covered = (from) => marks.filter((one) => one.x + one.size > from && one.x - one.size < from + wide && one.y + one.size > y - 12 && one.y - one.size < y + 3).length;
  const left = covered(LEFT + 6) < covered(WIDTH - 10 - wide);
  return svg("text", { x: left ? LEFT + 6 : WIDTH - 10, y, "text-anchor": left ? "start" : "end", class: "muted halo", "pointer-events": "none" }, name);
}

function kindsLegend(group) {
  const used = Object.keys(KINDS).filter((kind) => kind !== "stream" && group.operators.some((row) => row.kind === kind));
  return html("ul", { class: "legend" }, ...used.map((kind) => html("li", {}, html("i", { class: SYMBOLS[kind], style: { background: `var(--${KINDS[kind]})` } }), KIND_NAMES[kind])));
}

function messagesLegend(group) {
  const used = ["tp", "cp", "ep", "dp"].filter((name) => group.messages.some((row) => row.category === name));
  return html("ul", { class: "legend" }, ...used.map((name) => html("li", {}, html("i", { class: SYMBOLS[name], style: { background: part(name) } }), PARTS[name])),
    group.messages.some((row) => row.bus_bytes_per_s > (group.links[row.link]?.bytes_per_s ?? Infinity))
      ? html("li", { class: "muted" }, "above its link: what stays inside a domain, or is sent once for several ranks, does not cross it") : null);
}
