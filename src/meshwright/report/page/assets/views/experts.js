import { dropped } from "page/drop.js";
import { html, drawing, roomOf, svg } from "page/svg.js";
import { percent, significant } from "page/units.js";

const [WIDEST, HEIGHT, LEFT, BOTTOM, TOP] = [960, 210, 40, 22, 12];
const MOST_SKEW = 2.5;

export const holdsExperts = ({ inputs: { model } }) => model.active_parameters < model.parameters;

export const view = {
  name: "experts",
  title: "Experts",
  lede: (live) => `How many tokens each expert of a layer gets, relative to the mean.${live ? " Draw the bars, choose a distribution, or drop the counts of a run: the plan is priced again." : ""} The fullest rank sets the time of every exchange and product.`,
  of: holdsExperts,
  draw(root, data, page) {
    if (data.absent) return root.append(html("p", { class: "absent" }, data.absent));
    const load = [...data.load];
    // No expert gets a token twice.
    const all = data.experts / data.top_k;
    const most = Math.max(Math.min(3, all), Math.ceil(Math.max(...load) * 1.2));
    const ranks = data.ways[0].ep;
    const width = roomOf(WIDEST);
    const bars = barsOf(load, most, width, { noun: "expert", per: Math.ceil(load.length / ranks), label: "Tokens of each expert over the mean" });
    const changed = () => ({ expert_load: load.map((one) => Math.round(1000 * one)) });
    const [chosen, reading] = [html("input", { type: "number", id: "experts-number", min: 0, max: load.length - 1, value: "0" }), html("output", {}, `${significant(load[0])}×`)];
    const level = html("input", { type: "range", id: "experts-level", min: 0, max: most, step: 0.05, value: load[0], "aria-valuetext": `${significant(load[0])} times the mean` });
    const set = (expert, value) => {
      load[expert] = Math.min(Math.max(value, 0), most, all);
      bars.move(expert, load[expert]);
      if (expert === Number(chosen.value)) show(expert);
    };
    const show = (expert) => {
      reading.textContent = `${significant(load[expert])}×`;
      level.value = load[expert];
      level.setAttribute("aria-valuetext", `${significant(load[expert])} times the mean`);
    };
    // A load of no tokens is none; it waits for the next stroke.
    const use = (held) => { if (load.some((one) => one >= 0.001)) (held ? page.pull : page.apply)(changed()); };
    chosen.addEventListener("input", () => { if (load[chosen.value] !== undefined) { show(Number(chosen.value)); page.set("expert", chosen.value); } });
    level.addEventListener("input", () => { set(Number(chosen.value), Number(level.value)); use(true); });
    level.addEventListener("change", () => use(false));
    const kept = Number(page.get("expert") ?? 0);
    if (load[kept] !== undefined) { chosen.value = String(kept); show(kept); }

    const law = data.stated.zipf ?? 0;
    const skew = html("output", {}, significant(law));
    const zipf = html("input", { type: "range", id: "experts-zipf", min: 0, max: MOST_SKEW, step: 0.1, value: law, "aria-valuetext": significant(law),
      oninput: (event) => { skew.textContent = event.target.value; page.pull({ expert_load: `zipf:${event.target.value}` }); },
      onchange: (event) => page.apply({ expert_load: `zipf:${event.target.value}` }) });
    if (page.live) root.append(html("div", { class: "playground" }, html("div", {},
      html("label", { class: "slider" }, html("span", {}, "Zipf exponent ", skew), zipf),
      html("label", {}, "Expert", chosen), html("label", { class: "slider" }, html("span", {}, "Its load ", reading), level),
      html("button", { type: "button", class: "button", id: "experts-alike", onclick: () => page.apply({ expert_load: 1 }) }, "All alike"))));
    root.append(html("p", { class: "muted" }, said(data)), bars.element);
    if (page.live) strokes(bars, load, most, set, use);

    for (const way of data.ways) {
      const stages = data.ways.length > 1 ? `, ${stagesOf(way.stages)}` : "";
      root.append(html("h2", { style: { "margin-top": "16px" } }, `Expert ranks${stages}`), html("p", {}, facts(way, data)));
      if (way.ep > 1) root.append(barsOf(way.ranks, Math.max(2, ...way.ranks.map((one) => one * 1.15)), width, { noun: "rank", per: 1, label: "Tokens that each expert rank computes over the mean", height: 120 }).element);
    }
    const box = html("div", { style: { "margin-top": "18px" } });
    root.append(box);
    if (page.live) dropped(box, page, "expert-counts", "Drop the counted tokens of a run here (CSV or JSON, a line per layer), or choose a file ", async (counts) => {
      page.apply(await page.post("expert-load", { counts }));
      return [];
    }, { once: true });
    const [way] = data.ways;
    const held = (expert) => (way.placed ? "by load" : Math.floor(expert / Math.ceil(load.length / ranks)));
    page.table(root, [
      { name: "expert", key: "expert", number: true }, { name: "rank", key: "rank", number: true }, { name: "over the mean", key: "load", number: true, show: (value) => `${significant(value)}×` },
      { name: "of all copies of tokens", key: "share", number: true, show: percent },
    ], load.map((one, expert) => ({ expert, rank: held(expert), load: one, share: one / load.length })), { title: "Load of every expert" });
  },
};

// What the bars are.
function said({ stated, experts, top_k, load }) {
  const each = `${experts} experts, ${significant(top_k)} of them for each token. `;
  if (stated.zipf !== null) {
    const full = Math.max(...load) > (experts / top_k) * (1 - 1e-6) ? ` No expert gets a token twice: ${significant(experts / top_k)} times the mean is the most.` : "";
    return `${each}Tokens are drawn by Zipf's law; which experts are popular differs from layer to layer: this is one layer of many.${full}`;
  }
  if (stated.layers > 1) return `${each}Counted on ${stated.layers} layers; the bars are their mean, and drawing gives all layers one load.`;
  if (stated.layers === 1) return `${each}One load for every layer.`;
  return stated.factor > 1 ? `${each}Only the fullest rank is stated: ${significant(stated.factor)} times the mean.` : `${each}All get the same.`;
}

function facts(way, data) {
  if (way.ep === 1) return "Every rank holds all experts, so that no rank is fuller than another.";
  const each = Math.ceil(data.experts / way.ep);
  const held = `${way.ep} ranks of ${each} ${each === 1 ? "expert" : "experts"} each${way.placed ? ", placed by load" : ""}${way.shadowed ? `; the ${way.shadowed} hottest are on every rank` : ""}. `;
  if (way.dispatcher === "move-experts") return `${held}Experts move to the tokens, so that no rank is fuller than another.`;
  if (way.capacity !== null) {
    const dropped = way.dropped === null ? "" : `; ${percent(way.dropped)} of the routed tokens are dropped`;
    return `${held}With a capacity factor of ${significant(way.capacity)} every rank computes ${significant(way.capacity)} times the mean, padding included${dropped}.`;
  }
  const times = (value) => (Math.abs(value - 1) < 1e-3 ? "as much as" : `${significant(value)} times`);
  return `${held}Over all layers, the fullest rank computes ${times(way.computed)} the mean${Math.abs(way.arriving - way.computed) < 1e-3 ? "" : ` and receives ${times(way.arriving)} it`}.`;
}

function stagesOf(stages) {
  const pipelines = new Set(stages.map(([pipeline]) => pipeline));
  const places = stages.map(([, stage]) => stage);
  const run = places.length > 2 && places.every((one, at) => !at || one === places[at - 1] + 1);
  const text = run ? `stages ${places[0]} to ${places.at(-1)}` : `stage${places.length > 1 ? "s" : ""} ${places.join(", ")}`;
  return pipelines.size > 1 || stages[0][0] ? `${pipelines.size} pipelines` : text;
}

// Bars from 0 to `most`, a line at the mean; neighbours of one rank share a shade.
function barsOf(values, most, width, { noun, per, label, height = HEIGHT }) {
  const [step, floor] = [(width - LEFT) / values.length, height - BOTTOM];
  const y = (value) => floor - (Math.min(value, most) / most) * (floor - TOP);
  const rects = values.map((value, at) => svg("rect", {
    x: LEFT + at * step, width: Math.max(step - (step > 4 ? 1 : 0), 0.5), y: y(value), height: floor - y(value), fill: "var(--series-1)", opacity: per > 1 && Math.floor(at / per) % 2 ? 0.6 : 1,
  }));
  const line = (value, dashed) => [
    svg("line", { x1: LEFT, x2: width, y1: y(value), y2: y(value), stroke: dashed ? "var(--ink)" : "var(--line)", "stroke-dasharray": dashed ? "4 3" : null }),
    svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", "font-size": 11, fill: "var(--muted)" }, value === 1 ? "mean" : value ? `${significant(value)}×` : ""),
  ];
  const whole = [0, 1, ...(most >= 2 ? [Math.floor(most)] : [])];
  const ends = [[LEFT, "start", 0], ...(values.length > 1 ? [[width, "end", values.length - 1]] : [])].map(([x, anchor, number]) => svg("text", { x, y: height - 6, "text-anchor": anchor, "font-size": 11, fill: "var(--muted)" }, `${number ? "" : `${noun} `}${number}`));
  const element = drawing(width, height, label, ...whole.filter((one) => one !== 1).flatMap((one) => line(one, false)), ...rects, ...line(1, true), ...ends);
  element.classList.add("bars", "as-wide");
  return { element, width, move: (at, value) => { rects[at].setAttribute("y", y(value)); rects[at].setAttribute("height", floor - y(value)); } };
}

// A stroke of the pointer sets the bars that it crosses.
function strokes({ element, width }, load, most, set, use) {
  element.style.cursor = "crosshair";
  element.style.touchAction = "pan-y";
  let last = null;
  const place = (event) => {
    const box = element.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * HEIGHT];
    const expert = Math.min(Math.max(Math.floor(((x - LEFT) / (width - LEFT)) * load.length), 0), load.length - 1);
    return { expert, value: Math.max(0, ((HEIGHT - BOTTOM - y) / (HEIGHT - BOTTOM - TOP)) * most) };
  };
  const stroke = (event) => {
    const to = place(event);
    const from = last ?? to;
    const steps = Math.max(Math.abs(to.expert - from.expert), 1);
    for (let at = 0; at <= steps; at += 1) set(Math.round(from.expert + ((to.expert - from.expert) * at) / steps), from.value + ((to.value - from.value) * at) / steps);
    last = to;
    use(true);
  };
  element.addEventListener("pointerdown", (event) => { element.setPointerCapture(event.pointerId); stroke(event); });
  element.addEventListener("pointermove", (event) => { if (last) stroke(event); });
  for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => { if (last) { last = null; use(false); } });
}
