import { explains } from "page/card.js";
import { MEMORY, memory as memoryColour } from "page/colours.js";
import { secondsText } from "page/pipeline.js";
import { linesOf } from "page/steps.js";
import { axisStrip, memoryStrip } from "page/strips.js";
import { html } from "page/svg.js";
import { treemap } from "page/treemap.js";
import { gib, ofCapacity, percent, seconds, signedPercent } from "page/units.js";

const KINDS = Object.keys(MEMORY);

export const view = {
  name: "memory",
  title: "Memory",
  async draw(root, data, page) {
    const stages = page.entry.estimate.stages;
    const most = Math.max(...stages.map((stage) => Math.max(stage.peak_memory_bytes, stage.capacity_bytes))) * 1.02;
    let over = null;
    const below = html("div", { class: "two" });
    const worst = stages.reduce((full, stage, at) => (filled(stage) > filled(stages[full]) ? at : full), 0);
    root.append(html("h2", {}, "Memory of every stage, at its peak"),
      html("p", { class: "lede" }, `The vertical line is the memory of the device. Fullest: ${data.names[worst]}, ${ofCapacity(stages[worst].peak_memory_bytes, stages[worst].capacity_bytes)}.`));
    const rows = stages.map((stage, at) => row(stage, at));
    root.append(legend(stages), html("div", { class: "memory-rows", role: "group", "aria-label": "Stages" }, ...rows));
    const fits = html("div");
    root.append(fits);
    const remedies = (found) => { if (found.length) fits.append(html("h3", {}, "Make it fit"), chips(found, page)); };
    if (data.repairs) remedies(data.repairs);
    else if (page.live && !page.held && data.fits.includes("no")) page.ask({}).then(({ repairs }) => remedies(repairs), () => {});
    root.append(below);
    page.table(root, [
      { name: "stage", key: "name" }, { name: "device", key: "device" },
      ...KINDS.map((kind) => ({ name: MEMORY[kind], key: kind, show: gib, number: true })),
      { name: "peak", key: "peak", show: gib, number: true }, { name: "capacity", key: "capacity", show: gib, number: true },
      { name: "moment", key: "moment" },
    ], stages.map((stage, at) => ({
      name: data.names[at], device: data.devices[at], ...stage.memory_bytes,
      peak: stage.peak_memory_bytes, capacity: stage.capacity_bytes, moment: stage.peak_moment,
    })), { title: "Memory by stage and part" });
    // Bars and table stand before anything is unpacked, also on paper.
    if (data.over_time) over = await overTime(data);
    const kept = Number(page.get?.("stage") ?? worst);
    choose(stages[kept] ? kept : worst);

    function row(stage, at) {
      const part = (size) => `${(100 * size) / most}%`;
      const full = stage.peak_memory_bytes > stage.capacity_bytes;
      const parts = KINDS.filter((kind) => stage.memory_bytes[kind] > 0);
      const element = html("button", {
        type: "button", class: stages.length > 16 ? "memory-row thin" : "memory-row", "aria-pressed": "false", onclick: () => choose(at),
        "aria-label": stages.length > 16 ? `${data.names[at]}, ${data.devices[at]}: ${ofCapacity(stage.peak_memory_bytes, stage.capacity_bytes)}${full ? ", does not fit" : ""}` : null,
      },
        html("span", { class: "name" }, data.names[at], " ", html("span", { class: "muted" }, data.devices[at])),
        html("span", { class: "memory-bar" },
          html("span", { class: "room", style: { width: part(stage.capacity_bytes) } }),
          html("span", { class: "fill", style: { width: part(stage.peak_memory_bytes) } },
            ...parts.map((kind) => html("i", { style: { flex: `${stage.memory_bytes[kind]} 0 0`, background: memoryColour(kind) } }))),
          full ? html("span", { class: "beyond", style: { left: part(stage.capacity_bytes), width: part(stage.peak_memory_bytes - stage.capacity_bytes) } }) : null,
          html("span", { class: "capacity", style: { left: part(stage.capacity_bytes) } })),
        html("span", { class: full ? "size bad" : data.fits[at] === "tight" ? "size warn" : "size" },
          full ? `${gib(stage.peak_memory_bytes - stage.capacity_bytes)} too much` : ofCapacity(stage.peak_memory_bytes, stage.capacity_bytes)));
      return explains(element, () => [data.names[at], ...parts.map((kind) => [MEMORY[kind], gib(stage.memory_bytes[kind])]),
        ["peak", gib(stage.peak_memory_bytes)], ["capacity", gib(stage.capacity_bytes)]]);
    }

    function choose(at) {
      const stage = stages[at] ?? stages[worst];
      rows.forEach((element, own) => element.setAttribute("aria-pressed", String(own === at)));
      page.set?.("stage", at === worst ? null : String(at));
      below.replaceChildren(html("div", {}, over ? timed(stage, at) : "", areas(stage, at)), parts(stage, at));
      if (over) below.querySelector(".over-time").dispatchEvent(new Event("shown"));
    }

    function timed(stage, at) {
      const host = html("div", { class: "pipeline-memory" });
      const axis = html("div", { class: "pipeline-axis" });
      const about = html("span");
      const peak = data.over_time.memory.workers[at];
      const label = `From ${secondsText(peak.peak_s)} of ${secondsText(data.over_time.end_s)} on, ${data.names[at]} is at its fullest, with the ${data.over_time.tasks[at]}`;
      const box = html("div", { class: "over-time" }, html("h3", {}, "Over the step"), html("p", { class: "muted" }, `${label}.`),
        html("div", { role: "img", "aria-label": `Memory over time. ${label}, ${gib(peak.peak_bytes)} of ${gib(peak.capacity_bytes)}.` }, host, axis));
      let wide = 0;
      const [x, across] = [(moment) => (moment / data.over_time.end_s) * wide, () => wide];
      const strips = [memoryStrip(host, about, () => over, x, () => at, { height: 170, kinds: () => held(stage), across }), axisStrip(axis, x, { below: true, across })];
      const draw = () => {
        // A picture that has gone has no width: its canvases are the next one's.
        const now = host.clientWidth;
        if (!now || now === wide) return;
        wide = now;
        strips.forEach((strip) => strip({ from: 0, to: data.over_time.end_s }));
      };
      box.addEventListener("shown", draw);
      new ResizeObserver(draw).observe(host);
      return box;
    }

    function areas(stage, at) {
      const spare = stage.capacity_bytes - stage.peak_memory_bytes;
      return treemap([
        ...KINDS.map((kind) => ({ name: MEMORY[kind], size: stage.memory_bytes[kind], colour: memoryColour(kind), shown: gib(stage.memory_bytes[kind]) })),
        ...(spare > 0 ? [{ name: "free", size: spare, colour: "var(--sunken)", shown: gib(spare), paper: true }] : []),
      ], `Memory of ${data.names[at]} at its peak as areas${spare > 0 ? ", what is free among them" : ""}`);
    }

    function parts(stage, at) {
      const box = html("div", {}, html("h3", {}, `${data.names[at]} by part`), html("p", { class: "muted" }, `At its peak: ${stage.peak_moment}.`));
      const away = [["in host memory", stage.host_bytes], ["on disk", stage.disk_bytes]].filter(([, size]) => size > 0);
      page.table(box, [
        { name: "part", key: "name" }, { name: "size", key: "size", show: gib, number: true },
        { name: "of capacity", key: "share", show: (share) => (share === null ? "–" : percent(share)), number: true },
      ], [
        ...KINDS.filter((kind) => stage.memory_bytes[kind] > 0).map((kind) => ({ name: MEMORY[kind], size: stage.memory_bytes[kind], share: stage.memory_bytes[kind] / stage.capacity_bytes })),
        { name: stage.peak_memory_bytes <= stage.capacity_bytes ? "free" : "too much", size: Math.abs(stage.capacity_bytes - stage.peak_memory_bytes), share: Math.abs(1 - filled(stage)) },
        ...away.map(([name, size]) => ({ name, size, share: null })),
      ], { title: `${data.names[at]} by part`, folded: false });
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
