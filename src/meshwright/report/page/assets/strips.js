// What lies along a timeline, on its axis of time: the scale, and the memory of one stage.

import { MEMORY, computed, memory as memoryColour } from "page/colours.js";
import { liveAt } from "page/steps.js";
import { canvasOf, seen } from "page/svg.js";
import { gib, significant, ticks } from "page/units.js";

// across: the width of the host, where it is known: asking the browser has it lay out everything.
function strip(host, height, across = () => host.clientWidth) {
  // Strips of one height share canvases: one that is sized anew is laid out anew.
  const canvas = canvasOf(`strip high-${height}`);
  host.append(canvas);
  return () => {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const width = Math.max(1, Math.floor(across()));
    seen(canvas);
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    return { context, width, height };
  };
}

// Colours are looked up once for a theme.
function palette(names) {
  let [found, theme] = [{}, null];
  return () => {
    const now = computed("var(--ink)");
    if (now !== theme) {
      theme = now;
      found = Object.fromEntries(Object.entries(names).map(([name, colour]) => [name, computed(colour)]));
    }
    return found;
  };
}

// `below`: the scale stands under what it measures.
export function axisStrip(host, x, { below = false, across } = {}) {
  const sheet = strip(host, 24, across);
  const colours = palette({ line: "var(--line)", muted: "var(--muted)" });
  return ({ from, to }) => {
    const { context, width, height } = sheet();
    const { line, muted } = colours();
    const [size, unit] = to >= 1 ? [1, "s"] : to >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
    const [, step = to - from] = ticks(to - from, Math.max(2, Math.floor(width / 90)));
    const digits = Math.max(3, Math.ceil(Math.log10(to / step)) + 1);
    context.strokeStyle = line;
    context.fillStyle = muted;
    context.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= to * (1 + 1e-12); at += step) {
      const left = x(at);
      context.beginPath();
      context.moveTo(left + 0.5, below ? 0 : height - 6);
      context.lineTo(left + 0.5, below ? 5 : height);
      context.stroke();
      const text = `${significant(at / size, Math.min(digits, 9))} ${unit}`;
      const wide = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(left, wide), width - wide), below ? 17 : 12);
    }
  };
}

// of: gives the step, whose times may change; which: gives the stage.
export function memoryStrip(host, name, of, x, which, { height = 74, kinds = null, across } = {}) {
  const sheet = strip(host, height, across);
  // Without bytes: how many activations of one micro-batch.
  const { unit = null } = of().data;
  const sized = unit ? (size) => significant(size) : gib;
  const colours = palette({
    ink: "var(--ink)", muted: "var(--muted)", line: "var(--line)", bad: "var(--bad)", raised: "var(--raised)",
    ...Object.fromEntries(Object.keys(MEMORY).map((kind) => [kind, memoryColour(kind)])),
  });
  return ({ from, to }) => {
    const { context, width } = sheet();
    const own = colours();
    const [step, row] = [of(), which()];
    const worker = step.data.memory.workers[row];
    const fixed = worker.held_bytes + worker.transient_bytes;
    const top = 14;
    const highest = Math.max(worker.capacity_bytes, worker.peak_bytes) * 1.04 || 1;
    const y = (size) => height - (size / highest) * (height - top);
    const live = mostPerPixel(step, row, from, to, width);
    context.fillStyle = own.activations;
    // One outline is painted in a fraction of the time that a rectangle for each column of pixels takes.
    context.beginPath();
    context.moveTo(0, y(fixed));
    let before = 0;
    for (let at = 0; at < width; at++) {
      if (live[at] !== before) {
        context.lineTo(at, y(fixed + before));
        context.lineTo(at, y(fixed + live[at]));
      }
      before = live[at];
    }
    context.lineTo(width, y(fixed + before));
    context.lineTo(width, y(fixed));
    context.fill();
    let under = 0;
    for (const [name, size] of kinds ? kinds(row) : [["overhead", worker.held_bytes], ["transient", worker.transient_bytes]]) {
      context.fillStyle = own[name];
      context.fillRect(0, y(under + size), width, y(under) - y(under + size));
      under += size;
    }
    context.strokeStyle = worker.peak_bytes > worker.capacity_bytes ? own.bad : own.muted;
    context.setLineDash([5, 3]);
    context.beginPath();
    context.moveTo(0, y(worker.capacity_bytes));
    context.lineTo(width, y(worker.capacity_bytes));
    context.stroke();
    context.setLineDash([]);
    const at = x(worker.peak_s);
    const shown = at >= 0 && at <= width;
    // On paper of their own: the line of the capacity may lie behind them.
    const written = (text, left, base, colour) => {
      const wide = context.measureText(text).width;
      const from = Math.min(Math.max(left(wide), 3), width - wide - 3);
      context.fillStyle = own.raised;
      context.fillRect(from - 3, base - 10, wide + 6, 13);
      context.fillStyle = colour;
      context.fillText(text, from, base);
    };
    context.textAlign = "left";
    // At the end that the peak is not at.
    const beside = shown && at > width / 2 ? () => 0 : (wide) => width - wide;
    if (!unit) written(`capacity ${gib(worker.capacity_bytes)}`, beside, y(worker.capacity_bytes) + 4, own.muted);
    if (shown) {
      context.fillStyle = own.ink;
      context.beginPath();
      context.arc(Math.max(3, at), y(worker.peak_bytes), 3, 0, 7);
      context.fill();
      written(`peak ${sized(worker.peak_bytes)}`, () => at + 8, Math.max(10, y(worker.peak_bytes) - 4), own.ink);
    }
    const [label] = step.data.workers[row].name.split(":");
    name.replaceChildren(...(unit ? [unit, document.createElement("br"), label] : ["memory of", document.createElement("br"), label]));
  };
}

// The most bytes of activations in each column of pixels.
function mostPerPixel(step, row, from, to, width) {
  const { at_s, live_bytes } = step.memory;
  const [first, behind] = [step.data.memory.first[row], step.data.memory.first[row + 1]];
  const most = new Float64Array(width);
  const scale = width / (to - from);
  let carried = liveAt(step, row, from);
  let column = 0;
  most[0] = carried;
  let [low, high] = [first, behind];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at_s[middle] <= from) low = middle + 1;
    else high = middle;
  }
  for (let at = low; at < behind && at_s[at] < to; at++) {
    const next = Math.min(width - 1, Math.floor((at_s[at] - from) * scale));
    for (; column < next; column++) most[column + 1] = carried;
    carried = live_bytes[at];
    most[column] = Math.max(most[column], carried);
  }
  for (; column + 1 < width; column++) most[column + 1] = carried;
  return most;
}
