import { explains } from "page/card.js";
import { MEMORY, memory as memoryColour } from "page/colours.js";
import { secondsText } from "page/pipeline.js";
import { renewed } from "page/renewed.js";
import { linesOf } from "page/steps.js";
import { axisStrip, memoryStrip } from "page/strips.js";
import { html } from "page/svg.js";
import { treemap } from "page/treemap.js";
import { gib, ofCapacity, percent, seconds, sentence, signedPercent } from "page/units.js";

const KINDS = Object.keys(MEMORY);

export const view = {
  name: "memory",
  title: "Memory",
  async draw(root, data, page) {
    // What is drawn, which a pull at a slider changes.
    let [on, stages, over] = [data, page.entry.estimate.stages, null];
    const below = html("div", { class: "two" });
    const worst = () => stages.reduce((full, stage, at) => (filled(stage) > filled(stages[full]) ? at : full), 0);
    const kept = page.get?.("stage") ?? null;
    let chosen = kept !== null && stages[Number(kept)] ? Number(kept) : null;
    const [bars, fits, tabled] = [html("div"), html("div"), html("div")];
    bars.append(...atPeak());
    root.append(bars, fits);
    const remedies = (found) => { if (found.length) fits.append(html("h3", {}, "Make it fit"), chips(found, page)); };
    if (data.repairs) remedies(data.repairs);
    else if (page.live && !page.held && data.fits.includes("no")) page.rested().then((still) => still && page.ask({})).then((found) => found && remedies(found.repairs), () => {});
    root.append(below, tabled);
    page.table(tabled, [
      { name: "Stage", key: "name" }, { name: "Device", key: "device" },
      ...KINDS.map((kind) => ({ name: sentence(MEMORY[kind]), key: kind, show: gib, number: true })),
      { name: "Peak", key: "peak", show: gib, number: true }, { name: "Capacity", key: "capacity", show: gib, number: true },
      { name: "Moment", key: "moment" },
    ], stages.map((stage, at) => ({
      name: on.names[at], device: on.devices[at], ...stage.memory_bytes,
      peak: stage.peak_memory_bytes, capacity: stage.capacity_bytes, moment: stage.peak_moment,
    })), { title: "Memory by stage and part" });
    // Bars and table stand before anything is unpacked, also on paper.
    if (data.over_time) over = await overTime(data);
    let strip = null;
    show();
    root.renew = async (other, renewing) => {
      if (other.names.length !== on.names.length || !other.over_time !== !on.over_time) return false;
      const next = other.over_time && (await overTime(other));
      [on, stages, over] = [other, renewing.entry.estimate.stages, next];
      renewed(bars, atPeak());
      // What made another state of the plan fit.
      fits.replaceChildren();
      renewed(below.lastChild, [...parts(here()).childNodes]);
      renewed(below.firstChild.lastChild, [...areas(here()).childNodes]);
      strip?.say();
      return true;
    };

    // The stage whose parts are shown: the one that was chosen, or the fullest.
    function here() { return chosen ?? worst(); }

    function show() {
      const at = here();
      strip = over ? timed() : null;
      below.replaceChildren(html("div", {}, strip ?? "", areas(at)), parts(at));
      strip?.dispatchEvent(new Event("shown"));
    }

    function choose(at) {
      chosen = at;
      [...bars.querySelectorAll(".memory-row")].forEach((element, own) => element.setAttribute("aria-pressed", String(own === at)));
      page.set?.("stage", at === worst() ? null : String(at));
      show();
    }

    function atPeak() {
      const full = stages[worst()];
      return [html("h2", {}, "Memory of every stage, at its peak"),
        html("p", { class: "lede" }, `The upright line is the memory of the device. Fullest: ${on.names[worst()]}, ${ofCapacity(full.peak_memory_bytes, full.capacity_bytes)}.`),
        legend(stages), html("div", { class: "memory-rows", role: "group", "aria-label": "Stages" }, ...stages.map(row))];
    }

    function row(stage, at) {
      const most = Math.max(...stages.map((one) => Math.max(one.peak_memory_bytes, one.capacity_bytes))) * 1.02;
      const part = (size) => `${(100 * size) / most}%`;
      const full = stage.peak_memory_bytes > stage.capacity_bytes;
      const parts = KINDS.filter((kind) => stage.memory_bytes[kind] > 0);
      const element = html("button", {
        type: "button", class: stages.length > 16 ? "memory-row thin" : "memory-row", "aria-pressed": String(at === here()), onclick: () => choose(at),
        "aria-label": stages.length > 16 ? `${on.names[at]}, ${on.devices[at]}: ${ofCapacity(stage.peak_memory_bytes, stage.capacity_bytes)}${full ? ", does not fit" : ""}` : null,
      },
        html("span", { class: "name" }, on.names[at], " ", html("span", { class: "muted" }, on.devices[at])),
        html("span", { class: "memory-bar" },
          html("span", { class: "room", style: { width: part(stage.capacity_bytes) } }),
          html("span", { class: "fill", style: { width: part(stage.peak_memory_bytes) } },
            ...parts.map((kind) => html("i", { style: { flex: `${stage.memory_bytes[kind]} 0 0`, background: memoryColour(kind) } }))),
          full ? html("span", { class: "beyond", style: { left: part(stage.capacity_bytes), width: part(stage.peak_memory_bytes - stage.capacity_bytes) } }) : null,
          html("span", { class: "capacity", style: { left: part(stage.capacity_bytes) } })),
        html("span", { class: full ? "size bad" : on.fits[at] === "tight" ? "size warn" : "size" },
          full ? `${gib(stage.peak_memory_bytes - stage.capacity_bytes)} too much` : ofCapacity(stage.peak_memory_bytes, stage.capacity_bytes)));
      return explains(element, () => [on.names[at], ...parts.map((kind) => [MEMORY[kind], gib(stage.memory_bytes[kind])]),
        ["peak", gib(stage.peak_memory_bytes)], ["capacity", gib(stage.capacity_bytes)]]);
    }

    function timed() {
      const host = html("div", { class: "pipeline-memory" });
      const axis = html("div", { class: "pipeline-axis" });
      const [about, title] = [html("span"), html("p", { class: "muted" })];
      const picture = html("div", { role: "img" }, host, axis);
      const box = html("div", { class: "over-time" }, html("h3", {}, "Over the step"), title, picture);
      let wide = 0;
      const [x, across] = [(moment) => (moment / on.over_time.end_s) * wide, () => wide];
      const strips = [memoryStrip(host, about, () => over, x, here, { height: 170, kinds: () => held(stages[here()]), across }), axisStrip(axis, x, { below: true, across })];
      const draw = () => strips.forEach((one) => one({ from: 0, to: on.over_time.end_s }));
      box.say = () => {
        const peak = on.over_time.memory.workers[here()];
        const label = `From ${secondsText(peak.peak_s)} of ${secondsText(on.over_time.end_s)} on, ${on.names[here()]} is at its fullest, with the ${on.over_time.tasks[here()]}`;
        title.textContent = `${label}.`;
        picture.setAttribute("aria-label", `Memory over time. ${label}, ${gib(peak.peak_bytes)} of ${gib(peak.capacity_bytes)}.`);
        if (wide) draw();
      };
      const sized = () => {
        // A picture that has gone has no width: its canvases are the next one's.
        const now = host.clientWidth;
        if (!now || now === wide) return;
        wide = now;
        draw();
      };
      box.addEventListener("shown", sized);
      new ResizeObserver(sized).observe(host);
      box.say();
      return box;
    }

    function areas(at) {
      const stage = stages[at];
      const spare = stage.capacity_bytes - stage.peak_memory_bytes;
      return html("div", {}, html("h3", {}, `${sentence(on.names[at])} at its peak, by area`), treemap([
        ...KINDS.map((kind) => ({ name: MEMORY[kind], size: stage.memory_bytes[kind], colour: memoryColour(kind), shown: gib(stage.memory_bytes[kind]) })),
        ...(spare > 0 ? [{ name: "free", size: spare, colour: "var(--sunken)", shown: gib(spare), paper: true }] : []),
      ], `Memory of ${on.names[at]} at its peak as areas${spare > 0 ? ", what is free among them" : ""}`));
    }

    function parts(at) {
      const stage = stages[at];
      const named = `${sentence(on.names[at])} by part`;
      const box = html("div", {}, html("h3", {}, named), html("p", { class: "muted" }, `At its peak: ${stage.peak_moment}.`));
      const away = [["in host memory", stage.host_bytes], ["on disk", stage.disk_bytes]].filter(([, size]) => size > 0);
      page.table(box, [
        { name: "Part", key: "name" }, { name: "Size", key: "size", show: gib, number: true },
        { name: "Of capacity", key: "share", show: (share) => (share === null ? "–" : percent(share)), number: true },
      ], [
        ...KINDS.filter((kind) => stage.memory_bytes[kind] > 0).map((kind) => ({ name: MEMORY[kind], size: stage.memory_bytes[kind], share: stage.memory_bytes[kind] / stage.capacity_bytes })),
        { name: stage.peak_memory_bytes <= stage.capacity_bytes ? "free" : "too much", size: Math.abs(stage.capacity_bytes - stage.peak_memory_bytes), share: Math.abs(1 - filled(stage)) },
        ...away.map(([name, size]) => ({ name, size, share: null })),
      ], { title: named, folded: false });
      return box;
    }
  },
};

// What stays the same through a step, as it is stacked under the activations.
const held = (stage) => KINDS.filter((kind) => kind !== "activations").map((kind) => [kind, stage.memory_bytes[kind]]);

const filled = (stage) => stage.peak_memory_bytes / stage.capacity_bytes;

async function overTime(data) {
  const { over_time } = data;
  return {
    memory: await linesOf(over_time.memory), end_s: over_time.end_s,
    data: { memory: over_time.memory, workers: data.names.map((name) => ({ name })) },
  };
}

function legend(stages) {
  const used = KINDS.filter((kind) => stages.some((stage) => stage.memory_bytes[kind] > 0));
  return html("ul", { class: "legend" }, ...used.map((kind) => html("li", {}, html("i", { style: { background: memoryColour(kind) } }), MEMORY[kind])));
}

function chips(repairs, page) {
  return html("ul", { class: "chips" }, ...repairs.map((repair) => {
    const inner = [html("b", {}, repair.change.replaceAll(" -> ", " → ")), " ", html("span", {}, `${seconds(repair.step_time_s)} (${signedPercent(repair.slower)}), ${ofCapacity(repair.peak_memory_bytes, repair.capacity_bytes)}${repair.changes_training ? ", changes the training" : ""}`)];
    return html("li", {}, page.live && repair.changes
      ? html("button", { type: "button", class: "chip", onclick: () => page.apply(repair.changes) }, ...inner)
      : html("span", { class: "chip", title: repair.name }, ...inner));
  }));
}
