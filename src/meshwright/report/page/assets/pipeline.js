// The canvas of a pipeline: a row a stage, every task of a step, from the whole step down to a single task.
//
// Tasks are written into pixels row by row: one that is wider than a pixel has the colour and the pattern of its kind,
// narrower ones share a column of pixels from top to bottom by how much of its time they fill. So 64 stages of 256
// micro-batches take as long as eight.

import { computed, task as taskColour } from "page/colours.js";
import { taskAfter, taskAt, wayOf } from "page/steps.js";
import { canvasOf, seen } from "page/svg.js";
import { significant } from "page/units.js";

export const PATTERNS = { F: "plain", B: "rising", I: "rising", W: "falling", R: "dots", X: "dots", OPT: "level" };
const TILE = 8;
const PATTERN_PIXELS = {
  plain: () => false,
  rising: (x, y) => (x + y) % 8 < 2,
  falling: (x, y) => (x - y + 8) % 8 < 2,
  dots: (x, y) => x % 4 < 2 && y % 4 < 2 && (x >> 2) % 2 === (y >> 2) % 2,
  level: (x, y) => y % 4 < 1,
};
const PALEST = 0.5;
const MOST_LABELS = 700;
// Pixels by the canvas that they are put on.
const images = new WeakMap();
const NARROWEST = 4;
const PATTERNED = 8;

const rgb = (colour) => computed(colour).match(/[\d.]+/g).slice(0, 3).map(Number);
const mixed = (one, other, share) => one.map((value, at) => value + (other[at] - value) * share);
const word = ([r, g, b]) => (255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r);

export function rowHeight(workers) {
  return workers <= 4 ? 44 : workers <= 8 ? 34 : workers <= 16 ? 24 : workers <= 32 ? 16 : workers <= 64 ? 11 : 7;
}

// Colours of every kind and chunk as tiles of pixels: later chunks, or the other chains, are nearer to the paper.
function tilesOf(step) {
  const paper = rgb("var(--raised)");
  const ink = rgb("var(--ink)");
  const idle = mixed(paper, ink, 0.07);
  const kinds = step.data.kinds.map((name) => rgb(taskColour(name)));
  const dark = paper[0] + paper[1] + paper[2] < 384;
  const pixels = [];
  const plain = [];
  kinds.forEach((colour, kind) => {
    for (let chunk = 0; chunk < step.chunks; chunk++) {
      const towards = step.chunks > 1 ? (PALEST * chunk) / (step.chunks - 1) : 0;
      const own = mixed(colour, dark ? [30, 34, 40] : [255, 255, 255], towards);
      const line = mixed(own, [0, 0, 0], 0.24);
      const inside = PATTERN_PIXELS[PATTERNS[step.data.kinds[kind]] ?? "plain"];
      const tile = new Uint32Array(TILE * TILE);
      for (let y = 0; y < TILE; y++) for (let x = 0; x < TILE; x++) tile[y * TILE + x] = word(inside(x, y) ? line : own);
      pixels.push(tile);
      plain.push(own);
    }
  });
  // Behind those with patterns the same without, for tasks too narrow to show one.
  for (const own of plain) pixels.push(new Uint32Array(TILE * TILE).fill(word(own)));
  const bands = Int32Array.from(kinds, (_, kind) => word(plain[kind * step.chunks + (step.chunks >> 1)]));
  return { pixels, plain, bands, idle, paper: word(paper), edge: word(mixed(paper, ink, 0.28)), paperColour: paper };
}

// host: an element that has a width. `opening(width)` is the window that is drawn first. Returns what the view steers it by.
export function pipelineCanvas(host, step, { height = rowHeight(step.workers), gap = height > 12 ? 4 : 1, span = null, opening = null, onView = () => {}, onPick = () => {} } = {}) {
  const base = canvasOf("pipeline-base");
  host.append(base);
  const over = canvasOf("pipeline-over");
  host.append(over);
  const pitch = height + gap;
  const whole = step.workers * pitch;
  let end = span ?? step.end_s;
  const shown = { from: 0, to: end };
  const state = { width: 0, ratio: 1, hover: -1, picked: null, critical: false, measure: null, cursor: null, frames: 0, numbered: false };
  let tiles = tilesOf(step);
  let asked = 0;
  let image = null;
  const context = base.getContext("2d", { alpha: false });
  const above = over.getContext("2d");

  function sized() {
    state.width = Math.max(1, Math.floor(host.clientWidth));
    state.ratio = Math.min(devicePixelRatio || 1, 2);
    const [wide, high] = [Math.round(state.width * state.ratio), Math.round(whole * state.ratio)];
    for (const canvas of [base, over]) {
      if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
      canvas.style.width = `${state.width}px`;
      canvas.style.height = `${whole}px`;
    }
    image = images.get(base);
    if (image?.width !== wide || image.height !== high) images.set(base, (image = context.createImageData(wide, high)));
    if (opening) {
      within(...opening(state.width));
      opening = null;
    }
    draw();
  }

  // Columns of one row: the style of each (0: shared), and what part of a shared one each kind of task fills.
  const kinds = step.data.kinds.length;
  let [style, filled, level, until, line] = [];
  function columns(width) {
    if (style && style.length === width) return;
    style = new Int32Array(width);
    filled = new Float32Array(width * kinds);
    level = new Uint8Array(width);
    until = new Int32Array(width * kinds);
  }

  function half(row, width, scale, lower) {
    style.fill(0);
    filled.fill(0);
    const { start, end: ends, kind, chunk, joined } = step;
    const behind = step.first[row + 1];
    const { from, to } = shown;
    for (let task = taskAfter(step, row, from); task < behind && start[task] < to; task++) {
      if (joined && ((joined[task] && !lower) || (lower && task + 1 < behind && joined[task + 1]))) continue;
      const number = kind[task] * step.chunks + chunk[task];
      const x0 = (start[task] - from) * scale;
      const x1 = (ends[task] - from) * scale;
      if (x1 - x0 >= NARROWEST) {
        const left = Math.max(0, Math.round(x0));
        const right = Math.min(width, Math.round(x1));
        const own = x1 - x0 >= PATTERNED ? number + 1 : number + 1 + tiles.plain.length;
        for (let x = left; x < right; x++) style[x] = own;
        // The first pixel of a task parts it from the one before.
        if (x0 >= 0 && left < width) style[left] = -number - 1;
      } else {
        const last = Math.min(width - 1, Math.floor(x1));
        for (let x = Math.max(0, Math.floor(x0)); x <= last; x++) {
          filled[x * kinds + kind[task]] += Math.min(x1, x + 1) - Math.max(x0, x);
        }
      }
    }
  }

  function lines(pixels, width, top, count, y0) {
    if (!line || line.length !== TILE * width) line = new Uint32Array(TILE * width);
    const empty = word(tiles.idle);
    for (let y = 0; y < Math.min(TILE, count); y++) {
      const at = y * width;
      const across = ((y + y0) % TILE) * TILE;
      for (let x = 0; x < width; x++) {
        const own = style[x];
        line[at + x] = own === 0 ? empty : own < 0 ? tiles.edge : tiles.pixels[own - 1][across + (x % TILE)];
      }
    }
    for (let y = 0; y < count; y++) pixels.set(line.subarray((y % TILE) * width, (y % TILE) * width + width), (top + y) * width);
    bands(pixels, width, top, count);
  }

  // Shared columns, line by line as pixels lie in memory; `level` is the kind that each has come to.
  function bands(pixels, width, top, count) {
    const { styles, levels, untils, parts } = { styles: style, levels: level, untils: until, parts: filled };
    const colours = tiles.bands;
    let [first, last] = [width, 0];
    for (let x = 0; x < width; x++) {
      levels[x] = kinds;
      if (styles[x] !== 0) continue;
      let share = 0;
      for (let kind = 0; kind < kinds; kind++) {
        share += parts[x * kinds + kind];
        untils[kind * width + x] = share * count + 0.5;
      }
      if (share === 0) continue;
      levels[x] = 0;
      if (first > x) first = x;
      last = x + 1;
    }
    for (let y = 0; y < count; y++) {
      const at = (top + y) * width;
      for (let x = first; x < last; x++) {
        let own = levels[x];
        if (own === kinds) continue;
        while (own < kinds && untils[own * width + x] <= y) own++;
        levels[x] = own;
        if (own < kinds) pixels[at + x] = colours[own];
      }
    }
  }

  function draw() {
    asked = 0;
    // Its canvas may be another picture's already.
    if (!host.isConnected) return;
    [base, over].forEach(seen);
    state.frames++;
    const { ratio } = state;
    const width = base.width;
    const pixels = new Uint32Array(image.data.buffer);
    const scale = width / (shown.to - shown.from);
    pixels.fill(tiles.paper);
    columns(width);
    for (let row = 0; row < step.workers; row++) {
      const top = Math.round(row * pitch * ratio);
      const high = Math.round(height * ratio);
      half(row, width, scale, false);
      if (step.joined) {
        const middle = high >> 1;
        lines(pixels, width, top, middle, top);
        half(row, width, scale, true);
        lines(pixels, width, top + middle, high - middle, top + middle);
      } else lines(pixels, width, top, high, top);
    }
    context.putImageData(image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    spans();
    sent();
    labels();
    overlay();
    onView(shown, step, state.numbered);
  }

  const x = (moment) => ((moment - shown.from) / (shown.to - shown.from)) * state.width;
  const moment = (at) => shown.from + (at / state.width) * (shown.to - shown.from);

  // What stages do behind the pipeline: gradient sums, the optimizer.
  function spans() {
    for (const [row, , from, to, lane] of step.data.spans) {
      if (to < shown.from || from > shown.to) continue;
      const [left, right] = [x(from), x(to)];
      context.fillStyle = computedOnce(`var(--span-${lane})`);
      context.fillRect(left, row * pitch, Math.max(right - left, 0.5), height);
      if (right - left > 6) {
        context.fillStyle = "rgba(0,0,0,.22)";
        for (let at = Math.ceil(Math.max(left, 0) / 4) * 4; at < Math.min(right, state.width); at += 4) {
          if (lane === "optimizer") context.fillRect(at, row * pitch, 1, height);
        }
        if (lane !== "optimizer") for (let y = 1; y < height; y += 4) context.fillRect(left, row * pitch + y, right - left, 1);
      }
    }
  }

  // What leaves a stage, under its row, where there is room.
  function sent() {
    if (gap < 4) return;
    const seconds = step.data.hops_s;
    const longest = Math.max(0, ...seconds.forward, ...seconds.backward);
    if (x(shown.from + longest) < 1) return;
    context.fillStyle = computedOnce("var(--part-pp)");
    for (let row = 0; row < step.workers; row++) {
      for (let task = taskAfter(step, row, shown.from - longest); task < step.first[row + 1] && step.end[task] < shown.to; task++) {
        const name = step.data.kinds[step.kind[task]];
        const stage = step.stage(row, step.chunk[task]);
        const under_way = name === "F" ? seconds.forward[stage] : name === "B" || name === "I" ? seconds.backward[stage] : 0;
        if (under_way > 0) context.fillRect(x(step.end[task]), row * pitch + height + 1, Math.max(1, x(step.end[task] + under_way) - x(step.end[task])), 2);
      }
    }
  }

  function labels() {
    state.numbered = false;
    if (height < 10) return;
    const size = Math.max(8, Math.min(12, Math.floor(height * (step.joined ? 0.45 : 0.62))));
    const digits = String(step.most).length;
    const wide = size * (0.5 + 0.6 * digits);
    const found = [];
    for (let row = 0; row < step.workers; row++) {
      for (let task = taskAfter(step, row, shown.from); task < step.first[row + 1] && step.start[task] < shown.to; task++) {
        if (x(step.end[task]) - x(step.start[task]) >= wide) found.push(task);
        if (found.length > MOST_LABELS) return;
      }
    }
    context.font = `${size}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const onDark = tiles.plain.map(([r, g, b]) => r * 0.3 + g * 0.59 + b * 0.11 < 105);
    let ink = null;
    for (const task of found) {
      const box = place(task);
      const [left, right] = [Math.max(box.left, 0), Math.min(box.right, state.width)];
      if (right - left < wide) continue;
      const own = onDark[step.kind[task] * step.chunks + step.chunk[task]];
      if (own !== ink) context.fillStyle = own ? "rgba(255,255,255,.94)" : "rgba(0,0,0,.82)";
      ink = own;
      state.numbered = true;
      const unit = step.data.segments > 1 ? Math.floor(step.unit[task] / step.data.segments) : step.unit[task];
      context.fillText(String(unit), (left + right) / 2, box.top + box.height / 2 + 0.5);
    }
  }

  function place(task) {
    const row = step.worker[task];
    const second = step.joined && step.joined[task];
    const pair = second || (step.joined && task + 1 < step.first[row + 1] && step.joined[task + 1]);
    const high = pair ? height / 2 : height;
    return { left: x(step.start[task]), right: x(step.end[task]), top: row * pitch + (second ? height / 2 : 0), height: high };
  }

  function outlined(tasks, colour, wide) {
    above.strokeStyle = colour;
    above.lineWidth = wide;
    for (const task of tasks) {
      const box = place(task);
      if (box.right < 0 || box.left > state.width) continue;
      above.strokeRect(box.left, box.top + 0.5, Math.max(box.right - box.left, 1), box.height - 1);
    }
  }

  function joinedUp(tasks, colour, wide) {
    above.strokeStyle = colour;
    above.lineWidth = wide;
    above.beginPath();
    tasks.forEach((task, at) => {
      const box = place(task);
      const y = box.top + box.height / 2;
      if (at) above.lineTo(box.left, y);
      else above.moveTo(box.left, y);
      above.lineTo(box.right, y);
    });
    above.stroke();
  }

  function overlay() {
    above.setTransform(state.ratio, 0, 0, state.ratio, 0, 0);
    above.clearRect(0, 0, state.width, whole);
    const ink = computedOnce("var(--ink)");
    if (state.picked) {
      const [r, g, b] = tiles.paperColour;
      above.fillStyle = `rgba(${r},${g},${b},.66)`;
      above.fillRect(0, 0, state.width, whole);
      for (const task of state.picked.tasks) {
        const box = place(task);
        if (box.right < 0 || box.left > state.width) continue;
        const wide = Math.max(box.right - box.left, 1);
        above.drawImage(base, box.left * state.ratio, box.top * state.ratio, wide * state.ratio, box.height * state.ratio, box.left, box.top, wide, box.height);
      }
      joinedUp(state.picked.passes, ink, 1.4);
      outlined(state.picked.tasks, ink, 1);
    }
    if (state.critical) {
      const accent = computedOnce("var(--bad)");
      outlined(step.critical, accent, height > 12 ? 2 : 1);
      joinedUp(step.critical, accent, 1);
    }
    if (state.hover >= 0) outlined([state.hover], ink, 2);
    if (state.measure) measured(ink);
    if (state.cursor !== null) {
      above.fillStyle = ink;
      above.globalAlpha = 0.35;
      above.fillRect(x(state.cursor), 0, 1, whole);
      above.globalAlpha = 1;
    }
  }

  function measured(ink) {
    const [from, to] = [...state.measure].sort((a, b) => a - b);
    const [left, right] = [x(from), x(to)];
    above.fillStyle = ink;
    above.globalAlpha = 0.12;
    above.fillRect(left, 0, right - left, whole);
    above.globalAlpha = 1;
    for (const at of [left, right]) above.fillRect(at, 0, 1, whole);
    const text = secondsText(to - from);
    above.font = "600 12px system-ui, sans-serif";
    const wide = above.measureText(text).width + 12;
    const at = Math.min(Math.max((left + right - wide) / 2, 2), state.width - wide - 2);
    above.fillRect(at, 4, wide, 20);
    const [r, g, b] = tiles.paperColour;
    above.fillStyle = `rgb(${r},${g},${b})`;
    above.textAlign = "left";
    above.textBaseline = "middle";
    above.fillText(text, at + 6, 14.5);
  }

  const colours = new Map();
  function computedOnce(name) {
    if (!colours.has(name)) colours.set(name, computed(name));
    return colours.get(name);
  }

  function redraw() {
    if (!asked) asked = requestAnimationFrame(draw);
  }
  function redrawOver() {
    overlay();
  }
  function within(from, to) {
    const least = Math.max(end * 1e-7, 1e-12);
    const wide = Math.min(Math.max(to - from, least), end);
    shown.from = Math.min(Math.max(0, from), end - wide);
    shown.to = shown.from + wide;
  }
  function show(from, to) {
    within(from, to);
    redraw();
  }
  const zoom = (factor, around = (shown.from + shown.to) / 2) => show(around - (around - shown.from) * factor, around + (shown.to - around) * factor);
  const pan = (share) => show(shown.from + share * (shown.to - shown.from), shown.to + share * (shown.to - shown.from));
  function zoomTo(task) {
    const lasting = Math.max(step.end[task] - step.start[task], end * 1e-7);
    show(step.start[task] - lasting * 0.15, step.end[task] + lasting * 0.15);
  }
  function hit(event) {
    const box = over.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const row = Math.floor(top / pitch);
    if (row < 0 || row >= step.workers) return { row: -1, task: -1, moment: moment(left) };
    return { row, task: taskAt(step, row, moment(left), top - row * pitch > height / 2), moment: moment(left) };
  }
  function pick(task) {
    state.picked = task < 0 ? null : wayOf(step, task);
    redrawOver();
    onPick(task);
  }
  const observer = new ResizeObserver(() => { if (host.clientWidth && Math.floor(host.clientWidth) !== state.width) sized(); });
  observer.observe(host);
  const themed = () => {
    if (!host.isConnected) return letGo();
    tiles = tilesOf(step);
    colours.clear();
    return redraw();
  };
  // A view that is drawn again leaves nothing behind that draws.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = new MutationObserver(themed);
  const letGo = () => { dark.removeEventListener("change", themed); theme.disconnect(); observer.disconnect(); };
  dark.addEventListener("change", themed);
  theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  sized();
  return {
    get step() { return step; },
    // The same tasks with other times, in the window that they shall be shown in.
    renew(next, from, to) {
      step = next;
      end = span ?? step.end_s;
      within(from, to);
      draw();
    },
    shown, state, pitch, height, whole, over, x, moment, show, zoom, pan, zoomTo, hit, pick, redraw, themed,
    hover(task) { if (task !== state.hover) { state.hover = task; redrawOver(); } },
    measure(pair) { state.measure = pair; redrawOver(); },
    critical(on) { state.critical = on; redrawOver(); },
    cursor(at) { state.cursor = at; redrawOver(); },
  };
}

export function secondsText(time) {
  const size = Math.abs(time);
  return size >= 1 || size === 0 ? `${significant(time)} s` : size >= 1e-3 ? `${significant(time * 1e3)} ms` : `${significant(time * 1e6)} µs`;
}
