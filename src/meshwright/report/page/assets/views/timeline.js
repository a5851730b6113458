import { explains, hide, show as showCard } from "page/card.js";
import { PARTS, TASKS, memory, part, span as spanColour, task as taskColour } from "page/colours.js";
import { PATTERNS, pipelineCanvas, rowHeight, secondsText } from "page/pipeline.js";
import { axisStrip, memoryStrip } from "page/strips.js";
import { liveAt, stepOf, taskAfter } from "page/steps.js";
import { html } from "page/svg.js";
import { gib, percent } from "page/units.js";

const GUTTER = ["compute", "tp", "cp", "ep", "pp", "dp", "optimizer", "bubble"];
const EXPOSED = ["tp", "cp", "ep", "pp", "dp"];
const KEYS = [
  ["W S, wheel", "zoom"], ["A D, Shift + drag", "move"], ["arrows", "go from task to task"], ["Enter, click", "follow a micro-batch"],
  ["Z", "zoom to the task"], ["C", "critical path"], ["0", "whole step"], ["drag", "measure"], ["Esc", "let go"],
];

export const exposedOf = (shares) => EXPOSED.reduce((sum, name) => sum + (shares[name] ?? 0), 0);

// The colour of a part of a stage's time; what is not in the palette of parts is a span's.
const gutterColour = (name) => (name === "bubble" ? "var(--sunken)" : name === "optimizer" ? spanColour("optimizer") : part(name));

// keep: is told the window as a text, moved: as { from, to }; heights: what `pipelineCanvas` takes.
export async function pipelineFigure(root, data, { keep = null, moved = null, heights = {}, opening = null } = {}) {
  const step = await stepOf(data);
  const status = html("p", { class: "unseen", "aria-live": "polite" });
  const about = html("p", { class: "pipeline-window muted" });
  const labels = html("div", { class: "pipeline-labels", "aria-hidden": "true" });
  const host = html("div", {
    class: "pipeline-host", tabindex: "0", role: "application", "aria-roledescription": "pipeline timeline",
    "aria-label": `${data.title}. ${step.workers} ${data.noun}s, ${step.count} tasks. Arrow keys go from task to task, W and S zoom, A and D move, Enter follows a micro-batch.`,
  });
  const gutter = html("div", { class: "pipeline-gutter", "aria-hidden": "true" });
  const axis = html("div", { class: "pipeline-axis" });
  const strip = html("div", { class: "pipeline-memory" });
  const memoryName = html("div", { class: "pipeline-memory-name muted" });
  const frame = html("div", { class: "pipeline" },
    html("div"), axis, gutterHead(step),
    labels, host, gutter, ...(data.memory ? [memoryName, strip, html("div", { class: "pipeline-memory-scale" })] : []));
  root.append(frame, status);

  // In the legend where a task on show has its number.
  const numbers = html("li", { class: "muted" }, "numbers: micro-batches");
  let followed = data.memory ? fullest(data.memory) : 0;
  const strips = [];
  const canvas = pipelineCanvas(host, step, {
    ...heights,
    opening: opening && ((width) => opening(step, width)),
    onView: (shown, { end_s }, numbered) => {
      numbers.hidden = !numbered;
      strips.forEach((strip) => strip(shown));
      about.textContent = `${secondsText(shown.from)} to ${secondsText(shown.to)}, ${secondsText(shown.to - shown.from)} of ${secondsText(heights.span ?? end_s)}`;
      if (keep) keep(windowText(shown.from, shown.to));
      if (moved) moved(shown);
    },
  });
  names(labels, step, canvas);
  shares(gutter, step, canvas);
  frame.style.setProperty("--pipeline-height", `${canvas.whole}px`);
  const [x, across] = [(moment) => canvas.x(moment), () => canvas.state.width];
  strips.push(axisStrip(axis, x, { across }));
  if (data.memory) strips.push(memoryStrip(strip, memoryName, () => canvas.step, x, () => followed, { across }));
  strips.forEach((strip) => strip(canvas.shown));

  const words = (task) => describe(canvas.step, task);
  const say = (task) => { status.textContent = words(task).flat(2).join(", "); };
  const follow = (row) => { if (data.memory && row >= 0 && row !== followed) { followed = row; strips.at(-1)(canvas.shown); } };
  pointer(host, canvas, words, follow);
  keyboard(host, canvas, words, say, follow);
  // Other times of the same tasks, in the picture that stands there: false where it has to be drawn anew.
  const renew = async (other, window) => {
    const next = other.absent ? null : await stepOf(other);
    if (!next || shape(next) !== shape(canvas.step) || next.kind !== canvas.step.kind) return false;
    gutter.replaceChildren();
    shares(gutter, next, canvas);
    canvas.renew(next, ...window(next));
    return true;
  };
  return { step, canvas, about, numbers, renew };
}

// What a picture has around its tasks: lanes, what is sent, memory.
const shape = ({ data }) => JSON.stringify([data.spans.map(([row, name, , , lane]) => [row, name, lane]), data.hops_s.forward.map((time) => time > 0), Boolean(data.memory)]);

function gutterHead(step) {
  if (rowHeight(step.workers) < 12) return html("div", { class: "pipeline-gutter-head thin muted" }, "compute, comm., bubble");
  return html("div", { class: "pipeline-gutter-head muted" }, html("span", {}, "busy"), html("span", {}, "comm."), html("span", {}, "bubble"));
}

export function fullest(memory) {
  const share = (row) => row.peak_bytes / row.capacity_bytes;
  return memory.workers.reduce((most, row, at) => (share(row) > share(memory.workers[most]) ? at : most), 0);
}

// What a card and a screen reader say of a task.
function describe(step, task) {
  const { data } = step;
  const row = step.worker[task];
  const { layers, shares, name } = data.workers[row];
  const letter = data.kinds[step.kind[task]];
  const text = layers[step.chunk[task]];
  const unit = step.unit[task];
  const lines = [
    [`${TASKS[letter] ?? letter}, micro-batch ${data.segments > 1 ? `${Math.floor(unit / data.segments)}, segment ${unit % data.segments}` : unit}`],
    [data.noun, name.replace(/^stage /, "")],
  ];
  if (step.chunks > 1) lines.push([Math.max(...data.stages.chain) > 0 ? "pipeline and chunk" : "chunk", String(step.chunk[task])]);
  if (text) lines.push(["layers", text]);
  const pair = (step.joined && step.joined[task]) || (step.joined && step.joined[task + 1] && step.worker[task + 1] === row);
  lines.push(["lasts", secondsText(step.end[task] - step.start[task]) + (pair ? ", with its partner" : "")]);
  lines.push(["from", secondsText(step.start[task])]);
  if (Object.keys(shares).some((one) => ["tp", "cp", "ep"].includes(one))) {
    const inside = GUTTER.slice(0, 4).filter((one) => shares[one] > 0);
    const sum = inside.reduce((total, one) => total + shares[one], 0);
    const most = inside.reduce((best, one) => (shares[one] > shares[best] ? one : best), inside[0]);
    lines.push(["tasks of the stage", inside.map((one) => `${PARTS[one]} ${percent(shares[one] / sum)}`).join(", ")]);
    lines.push(["bound by", PARTS[most]]);
  } else if (shares.compute) lines.push(["bound by", PARTS.compute]);
  if (step.memory && !data.unit) {
    const held = data.memory.workers[row];
    lines.push(["memory", gib(held.held_bytes + held.transient_bytes + liveAt(step, row, step.start[task]))]);
  }
  return lines;
}

function names(labels, step, canvas) {
  const { data } = step;
  const every = Math.max(1, Math.ceil(13 / canvas.pitch));
  let island = null;
  // Names stand beside the rows of their groups if all fit there; else under each stage, where rows are high enough.
  const held = (name) => data.workers.filter((worker) => worker.island === name).length;
  const beside = data.workers.every(({ island: name }) => !name || held(name) * canvas.pitch - 4 > name.length * 7) || canvas.height < 28;
  data.workers.forEach((worker, row) => {
    if (worker.island && worker.island !== island?.name) {
      const behind = data.workers.findIndex((other, at) => at > row && other.island !== worker.island);
      const count = (behind < 0 ? step.workers : behind) - row;
      const high = count * canvas.pitch - 4;
      labels.append(html("div", { class: "pipeline-island", style: { top: `${row * canvas.pitch}px`, height: `${high}px` } },
        html("span", {}, beside && high > worker.island.length * 7 ? worker.island : "")));
      island = { name: worker.island };
    } else if (worker.island !== island?.name) island = null;
    if (row % every === 0) {
      const [name] = worker.name.split(":");
      labels.append(html("div", { class: "pipeline-label", style: { top: `${row * canvas.pitch}px`, height: `${canvas.height}px` } },
        html("span", {}, name.replace("pipeline ", "p").replace(/ stage /, " s"), ...(beside || !worker.island ? [] : [html("small", {}, worker.island)]))));
    }
  });
}

// Where the time of every stage goes, beside its row.
function shares(gutter, { data }, canvas) {
  data.workers.forEach((worker, row) => {
    const bar = html("div", { class: "pipeline-bar" }, ...GUTTER.filter((name) => worker.shares[name] > 0).map((name) =>
      html("i", { style: { flex: `${worker.shares[name]} 0 0`, background: gutterColour(name) } })));
    const numbers = canvas.height >= 12
      ? [worker.shares.compute, exposedOf(worker.shares), worker.shares.bubble].map((share) => html("b", {}, percent(share).replace("under ", "<")))
      : [];
    const line = html("div", { class: numbers.length ? "pipeline-share" : "pipeline-share thin", style: { top: `${row * canvas.pitch}px`, height: `${canvas.height}px` } }, ...numbers, bar);
    explains(line, [worker.name, ...GUTTER.filter((name) => name in worker.shares).map((name) => [PARTS[name] ?? name, percent(worker.shares[name])])]);
    gutter.append(line);
  });
}

function pointer(host, canvas, words, follow) {
  let drag = null;
  host.addEventListener("wheel", (event) => {
    const { from, to } = canvas.shown;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) canvas.pan(event.deltaX / 800);
    else if (event.deltaY > 0 && to - from >= canvas.step.end_s * 0.999) return;
    else canvas.zoom(Math.exp(Math.max(-400, Math.min(400, event.deltaY)) / 500), canvas.hit(event).moment);
    event.preventDefault();
  }, { passive: false });
  host.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    drag = { at: event.clientX, moment: canvas.hit(event).moment, pans: event.shiftKey || event.button === 1, moved: false };
    host.setPointerCapture(event.pointerId);
  });
  host.addEventListener("pointermove", (event) => {
    const found = canvas.hit(event);
    if (drag) {
      drag.moved ||= Math.abs(event.clientX - drag.at) > 3;
      if (drag.pans) { canvas.pan((drag.at - event.clientX) / canvas.state.width); drag.at = event.clientX; }
      else if (drag.moved) canvas.measure([drag.moment, found.moment]);
      hide();
      return;
    }
    canvas.hover(found.task);
    follow(found.row);
    if (found.task >= 0) showCard(event.clientX, event.clientY, words(found.task));
    else hide();
  });
  host.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved && !drag.pans) {
      canvas.measure(null);
      canvas.pick(canvas.hit(event).task);
    }
    drag = null;
  });
  host.addEventListener("pointerleave", () => { canvas.hover(-1); hide(); });
  host.addEventListener("dblclick", (event) => {
    const { task } = canvas.hit(event);
    if (task >= 0) canvas.zoomTo(task);
  });
}

function keyboard(host, canvas, words, say, follow) {
  const near = (row, moment) => Math.min(taskAfter(canvas.step, row, moment), canvas.step.first[row + 1] - 1);
  const go = (task) => {
    const { step } = canvas;
    canvas.hover(task);
    if (step.start[task] < canvas.shown.from || step.end[task] > canvas.shown.to) {
      const wide = canvas.shown.to - canvas.shown.from;
      const middle = (step.start[task] + step.end[task]) / 2;
      canvas.show(middle - wide / 2, middle + wide / 2);
    }
    follow(step.worker[task]);
    say(task);
    const box = canvas.over.getBoundingClientRect();
    showCard(box.left + Math.max(0, canvas.x(step.start[task])), box.top + (step.worker[task] + 1) * canvas.pitch, words(task));
  };
  const arrow = (key) => {
    const [{ step }, at] = [canvas, canvas.state.hover];
    if (at < 0) return go(near(0, canvas.shown.from));
    const row = step.worker[at];
    if (key === "ArrowRight") return at + 1 < step.first[row + 1] && go(at + 1);
    if (key === "ArrowLeft") return at > step.first[row] && go(at - 1);
    const next = row + (key === "ArrowDown" ? 1 : -1);
    return next >= 0 && next < step.workers && go(near(next, step.start[at]));
  };
  host.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [{ step }, at] = [canvas, canvas.state.hover];
    const deeds = {
      w: () => canvas.zoom(0.8), s: () => canvas.zoom(1.25), a: () => canvas.pan(-0.08), d: () => canvas.pan(0.08),
      "+": () => canvas.zoom(0.8), "-": () => canvas.zoom(1.25), 0: () => canvas.show(0, step.end_s), Home: () => canvas.show(0, step.end_s),
      z: () => at >= 0 && canvas.zoomTo(at), c: () => canvas.critical(!canvas.state.critical),
      Enter: () => at >= 0 && canvas.pick(at), Escape: () => { canvas.pick(-1); canvas.measure(null); canvas.hover(-1); },
    };
    const deed = event.key.startsWith("Arrow") ? () => arrow(event.key) : deeds[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!deed) return;
    event.preventDefault();
    deed();
    host.dispatchEvent(new CustomEvent("changed"));
  });
  host.addEventListener("blur", () => hide());
}

export function kindsLegend({ step, numbers }) {
  const { data } = step;
  const used = step.used.map((kind) => data.kinds[kind]);
  const lanes = [...new Set(data.spans.map(([, , , , lane]) => lane))];
  const swatch = (colour, pattern) => html("i", { class: `swatch ${pattern}`, style: { "background-color": colour } });
  return html("ul", { class: "legend" },
    ...used.map((kind) => html("li", {}, swatch(taskColour(kind), PATTERNS[kind] ?? "plain"), TASKS[kind] ?? kind)),
    ...lanes.map((lane) => html("li", {}, swatch(spanColour(lane), lane === "optimizer" ? "upright" : "level"), lane)),
    html("li", {}, swatch("var(--sunken)", "plain"), "bubble"),
    data.hops_s.forward.some((seconds) => seconds > 0) ? html("li", {}, html("i", { class: "swatch thin", style: { "background-color": part("pp") } }), "sent to another stage") : null,
    data.paler ? html("li", { class: "muted" }, data.paler.replace(/^paler/, "fainter")) : null,
    numbers, ...(data.memory && !data.unit ? heldLegend(data.memory) : []));
}

// What the strip below the rows stacks, on a line of its own.
function heldLegend({ workers }) {
  const kinds = [["overhead", "held through the step"], ["transient", "working memory"], ["activations", "activations"]];
  const used = kinds.filter(([name]) => name !== "transient" || workers.some((worker) => worker.transient_bytes > 0));
  return [html("li", { class: "break" }), html("li", { class: "muted" }, "memory:"),
    ...used.map(([name, words]) => html("li", {}, html("i", { class: "swatch", style: { "background-color": memory(name) } }), words))];
}

export const keysHelp = () => html("details", { class: "keys" }, html("summary", {}, "Keys"),
  html("dl", {}, ...KEYS.map(([key, what]) => [html("dt", {}, html("kbd", {}, key)), html("dd", {}, what)])));

export const view = {
  name: "timeline",
  title: "Timeline",
  async draw(root, data, page) {
    if (data.absent) {
      root.append(html("p", { class: "absent" }, data.absent));
      return;
    }
    const bar = html("div", { class: "toolbar" });
    root.append(bar);
    let opens = null;
    const opened = (step, width) => {
      const first = firstShown(step, width);
      opens = windowText(0, first);
      return first;
    };
    const keep = page.set ? (text) => page.set("window", text === opens ? null : text) : null;
    const window_ = page.get?.("window")?.match(/^([\d.e-]+?)-([\d.]+(?:e-?\d+)?)$/);
    const figure = await pipelineFigure(root, data, {
      keep: throttled(keep),
      opening: (step, width) => {
        const first = opened(step, width);
        return window_ ? [Number(window_[1]), Number(window_[2])] : [0, first];
      },
    });
    root.renew = (other) => figure.renew(other, (next) => {
      const { shown, state } = figure.canvas;
      return windowText(shown.from, shown.to) === opens ? [0, opened(next, state.width)] : [shown.from, shown.to];
    });
    const { step, canvas, about } = figure;
    const button = (text, deed, more = {}) => html("button", { type: "button", class: "button", onclick: deed, ...more }, text);
    const critical = button("Critical path", () => toggle(), { "aria-pressed": "false" });
    const toggle = () => { canvas.critical(!canvas.state.critical); pressed(); };
    const pressed = () => critical.setAttribute("aria-pressed", String(canvas.state.critical));
    const edges = steady(step);
    bar.append(button("Whole step", () => canvas.show(0, canvas.step.end_s)),
      edges ? button("Steady state", () => canvas.show(...(steady(canvas.step) ?? edges))) : "",
      button("Zoom in", () => canvas.zoom(0.6)), button("Zoom out", () => canvas.zoom(1 / 0.6)), critical, ...(page.live ? files(page, root, button) : []), about, keysHelp());
    canvas.over.parentElement.addEventListener("changed", pressed);
    root.append(kindsLegend(figure),
      html("p", { class: "muted" }, step.data.workers.some(({ shares }) => shares.tp || shares.ep || shares.cp)
        ? "Tensor, context and expert exchanges that compute does not hide are inside the tasks; the table says what part they are." : ""));
    page.table(root, [
      { name: data.noun, key: "name" }, { name: "busy", key: "compute", show: percent, number: true },
      ...EXPOSED.filter((name) => data.workers.some(({ shares }) => shares[name])).map((name) => ({ name: PARTS[name], key: name, show: (share) => percent(share ?? 0), number: true })),
      { name: "optimizer", key: "optimizer", show: (share) => percent(share ?? 0), number: true }, { name: "bubble", key: "bubble", show: percent, number: true },
    ], data.workers.map(({ name, shares }) => ({ name, ...shares })), { title: "Shares of the step by stage" });
    root.pipeline = canvas;
  },
};

// The step as files; nothing leaves this machine, so that the viewer is opened by hand.
function files(page, root, button) {
  const save = (form) => () => page.save(form).catch((failed) => root.prepend(...page.problems(failed)));
  return [button("SVG", save("svg"), { title: "The whole step as a figure" }),
    button("Trace", save("chrome"), { title: "A trace file: open it at ui.perfetto.dev or chrome://tracing" })];
}

const SEEN = 14;
const windowText = (from, to) => `${from.toPrecision(5)}-${to.toPrecision(5)}`;

// What is shown first, in seconds from the start: the whole step where its tasks can be told apart, or where there are so
// many stages that only the whole has a shape; else the part in which the pipeline fills, with tasks that can be seen.
function firstShown(step, width) {
  const tasks = step.count / step.workers;
  const shown = width / SEEN;
  if (tasks <= 3 * shown || shown < 3 * step.workers) return step.end_s;
  return (step.end_s * shown) / tasks;
}

// From when every stage has had its first backward to when one has had its last forward.
function steady(step) {
  const kinds = step.data.kinds;
  let [from, to] = [0, Infinity];
  for (let row = 0; row < step.workers; row++) {
    let last = 0;
    let begins = Infinity;
    for (let task = step.first[row]; task < step.first[row + 1]; task++) {
      if (kinds[step.kind[task]] === "F") last = step.end[task];
      else begins = Math.min(begins, step.start[task]);
    }
    from = Math.max(from, begins);
    to = Math.min(to, last);
  }
  return to - from > step.end_s * 0.1 && to - from < step.end_s * 0.97 ? [from, to] : null;
}

function throttled(keep) {
  if (!keep) return null;
  let waits = 0;
  return (text) => { clearTimeout(waits); waits = setTimeout(() => keep(text), 300); };
}
