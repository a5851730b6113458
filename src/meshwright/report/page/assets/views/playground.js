import { html } from "page/svg.js";
import { percent, seconds, significant } from "page/units.js";
import { kindsLegend, pipelineFigure } from "page/views/timeline.js";

const TIMES = [["forward_s", "Forward"], ["input_s", "Input gradient"], ["weight_s", "Weight gradient"], ["recompute_s", "Recompute"], ["transfer_s", "Transfer"]];
const SIZES = [["p", "Stages"], ["m", "Micro-batches"], ["v", "Chunks per stage"]];
const STEPS = 100;

export const view = {
  name: "playground",
  title: "Schedules",
  lede: (live) => `Equal stages, any schedule: ${live ? "drag the times and see" : "choose two and see"} what waits. Memory is counted in activations of one micro-batch.`,
  async draw(root, data, page) {
    const asked = { ...data.asked, below: null, ...kept(page) };
    const simulated = (own) => (page.live ? page.ask(own) : Promise.resolve(data.held[own.name] ?? data.held[data.asked.name]));
    const longest = 3 * Math.max(asked.forward_s, asked.input_s, asked.weight_s, 1e-9);
    const shown = html("div", { class: "playground-shown", "aria-live": "off" });
    const failed = html("p", { class: "notice bad", role: "alert", hidden: true });
    const readings = {};
    const change = (name, value) => {
      asked[name] = value;
      page.set?.("asked", JSON.stringify(asked));
      readings[name]?.(value);
      return ask();
    };
    root.append(html("form", { class: "playground", onsubmit: (event) => event.preventDefault() },
      html("div", {}, choice("Schedule", "name", data.schedules, false), choice("and below it", "below", data.schedules, true), ...(page.live ? SIZES : []).map(size)),
      page.live ? html("div", {}, ...TIMES.map(time))
        : html("p", { class: "muted" }, `${asked.p} stages, ${asked.m} micro-batches; ${TIMES.filter(([name]) => asked[name]).map(([name, text]) => `${text.toLowerCase()} ${seconds(asked[name])}`).join(", ")}`)), failed, shown);

    function size([name, text]) {
      return html("label", {}, text, html("input", {
        type: "number", min: 1, max: data.sizes[name], value: asked[name] ?? "", placeholder: name === "v" ? "fewest" : null, id: `playground-${name}`,
        oninput: (event) => change(name, event.target.value === "" ? null : Number(event.target.value)),
      }));
    }

    function time([name, text]) {
      const reading = html("output", {}, seconds(asked[name]));
      readings[name] = (value) => { reading.textContent = seconds(value); };
      return html("label", { class: "slider", for: `playground-${name}` }, html("span", {}, text, " ", reading), html("input", {
        type: "range", min: 0, max: STEPS, value: Math.round((asked[name] / longest) * STEPS), id: `playground-${name}`,
        oninput: (event) => change(name, (Number(event.target.value) / STEPS) * longest),
      }));
    }

    function choice(text, name, schedules, none) {
      return html("label", {}, text, html("select", { id: `playground-${name}`, onchange: (event) => change(name, event.target.value || null) },
        none ? html("option", { value: "" }, "nothing") : null,
        ...schedules.map((one) => html("option", { value: one.name, title: one.title, selected: one.name === asked[name] }, one.name))));
    }

    // While one answer is on its way, only the newest question waits.
    let [busy, again] = [false, false];
    async function ask() {
      if (busy) { again = true; return; }
      busy = true;
      try {
        const { below, ...own } = asked;
        const found = [await simulated(own)];
        if (below) found.push(await simulated({ ...own, name: below, v: null }));
        failed.hidden = true;
        await draw(found);
      } catch (error) {
        failed.hidden = false;
        const problems = error.problems ?? [{ what: error.message }];
        failed.replaceChildren(...problems.map(({ what, why, fix }) => html("span", {}, html("b", {}, what), why ? `: ${why}. ` : " ", fix ?? "", " ")));
      }
      busy = false;
      if (again) {
        again = false;
        await ask();
      }
    }

    async function draw(found) {
      const span = Math.max(...found.map((one) => one.end_s));
      const next = html("div");
      // What was drawn stays until the next picture has its size.
      next.style.visibility = "hidden";
      next.style.position = "absolute";
      next.style.width = `${root.clientWidth}px`;
      shown.append(next);
      for (const one of found) {
        const section = html("section", {});
        next.append(section);
        section.append(html("h2", {}, `${one.name} `, html("span", { class: "muted" }, facts(one))));
        const figure = await pipelineFigure(section, one, { heights: { span } });
        section.append(kindsLegend(figure));
        section.pipeline = figure.canvas;
      }
      page.table(next, [
        { name: "schedule", key: "name" }, { name: "worker", key: "worker", number: true }, { name: "busy", key: "busy", show: percent, number: true },
        { name: "bubble", key: "bubble", show: percent, number: true }, { name: "most activations", key: "peak", number: true },
      ], found.flatMap((one) => one.workers.map(({ shares }, worker) => ({ name: one.name, worker, busy: shares.compute, bubble: shares.bubble, peak: one.peak_activations[worker] }))), { title: "Workers" });
      next.removeAttribute("style");
      shown.replaceChildren(next);
    }

    await ask();
  },
};

const facts = (one) => [
  seconds(one.makespan_s), `${percent(one.bubble)} idle`, `at most ${significant(Math.max(...one.peak_activations))} ${one.unit}`,
  one.weight_copies === 1 ? "one copy of the weights" : `${one.weight_copies} copies of the weights`,
  ...(one.exact_semantics ? [] : ["not the gradient of one set of weights"]),
].join(", ");

function kept(page) {
  try {
    return JSON.parse(page.get?.("asked") ?? "{}");
  } catch {
    return {};
  }
}
