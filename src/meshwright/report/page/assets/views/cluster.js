import { GAP, groupWords, layout } from "page/boxes.js";
import { hide, show as showCard } from "page/card.js";
import { computed, part, stage as stageColour } from "page/colours.js";
import { html } from "page/svg.js";
import { rate } from "page/units.js";

// Pixels of a group whose domains are named, not only how fast the outermost is.
const NAMED = 420;
// Pairs of groups that are named one by one.
const MOST_PAIRS = 3;
const KIND_NAMES = { tp: "tensor", cp: "context", ep: "experts", etp: "tensor of experts", dp: "data", pp: "pipeline" };
// Directions of the lines over the devices of each group; dots, a grid and crossed lines once they have run out.
const HATCHES = [[], [[1, 0]], [[1, 1]], [[0, 1]], [[1, -1]], ["dots"], [[1, 0], [0, 1]], [[1, 1], [1, -1]]];

export const view = {
  name: "cluster",
  title: "Cluster",
  draw(root, data, page) {
    const map = placed(data);
    const kinds = [...new Set(data.stages.flatMap(({ kinds: own }) => own.map(([name]) => name)))];
    if (data.stages.some((stage) => stage.stage > 0)) kinds.push("pp");
    const used = data.stages.reduce((sum, stage) => sum + count(stage.devices), 0);
    const all = data.groups.reduce((sum, group) => sum + group.nodes * group.per_node, 0);
    root.append(html("h2", {}, "Which stage each device works for"),
      html("p", { class: "lede" }, all === 1 ? "One device, which talks to no other." : `${used.toLocaleString("en-US")} of ${all.toLocaleString("en-US")} devices used. Point at a device to light the ranks it talks to.`));
    for (const warning of data.warnings) {
      const share = warning.groups === warning.of ? "" : ` (${warning.groups.toLocaleString("en-US")} of ${warning.of.toLocaleString("en-US")} groups)`;
      root.append(html("p", { class: "notice warn" }, html("b", {}, `${warning.kind}${warning.size} leaves its ${warning.domain} domain of ${warning.domain_size}`), `${share}: its ranks reach each other over a slower link.`));
    }
    const state = { kind: page.get?.("kind") ?? "all", device: -1 };
    const picks = ["all", ...kinds].map((kind) => html("button", {
      type: "button", class: "button", "aria-pressed": String(kind === state.kind),
      onclick: () => {
        state.kind = kind;
        picks.forEach((one, at) => one.setAttribute("aria-pressed", String(["all", ...kinds][at] === kind)));
        page.set?.("kind", kind === "all" ? null : kind);
        drawing.light();
      },
    }, kind === "all" ? "all groups" : html("span", {}, html("i", { class: "dot", style: { background: kindColour(kind) } }), `${kind}: ${KIND_NAMES[kind.split(" ")[0]] ?? kind}`)));
    const bar = html("div", { class: "toolbar", role: "group", "aria-label": "Groups to highlight", hidden: !kinds.length }, ...picks);
    const said = html("p", { class: "unseen", "aria-live": "polite" });
    const host = html("div", {
      class: "cluster-host", tabindex: "0", role: "application", "aria-roledescription": "cluster map",
      "aria-label": `${all} devices in ${data.groups.length} groups of nodes. Left and right go from device to device, up and down from node to node.`,
    });
    // A narrow map has room for the outermost link alone.
    const links = data.groups.filter((group) => group.domains.length > 1).map((group) => html("p", { class: "muted on-narrow" }, `${groupWords(group)}: ${domainsOf(group)}`));
    root.append(bar, legend(data), host, said, ...links, ...(data.links.length > 1 ? [html("p", { class: "muted" }, speeds(data.links))] : []));
    const drawing = canvasOf(host, data, map, state);
    pointed(host, data, map, state, drawing, said);
    root.cluster = drawing;
    page.table(root, [
      { name: "stage", key: "name" }, { name: "group of nodes", key: "group" }, { name: "ranks", key: "ranks" }, { name: "nodes", key: "nodes" },
      { name: "layers", key: "layers" }, { name: "groups", key: "kinds" },
    ], data.stages.map((stage) => {
      const group = data.groups.find(({ name }) => name === stage.group);
      const node = (device) => Math.floor((device - group.first) / group.per_node);
      return {
        name: stageName(data, stage), group: stage.group, ranks: ranges(stage.devices), layers: ranges(stage.layers),
        nodes: ranges(stage.devices.map(([first, last]) => [node(first), node(last)])),
        kinds: stage.kinds.map(([name, size]) => `${name}${size}`).join(" ") || "–",
      };
    }), { title: "Ranks and nodes of every stage" });
    if (data.links.length) page.table(root, [
      { name: "between", key: "between" }, { name: "speed", key: "speed", show: rate, number: true }, { name: "basis", key: "basis" },
    ], data.links.map((link) => ({ between: link.between.join(" – "), speed: link.bytes_per_s, basis: link.basis })), { title: "Links between groups of nodes" });
  },
};

const count = (pairs) => pairs.reduce((sum, [first, last]) => sum + last - first + 1, 0);
const ranges = (pairs) => pairs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
const kindColour = (kind) => (kind === "etp" ? part("recompute") : part(kind.split(" ")[0]));
const several = (data) => data.stages.some(({ pipeline }) => pipeline > 0);
const stageName = (data, stage) => (several(data) ? `pipeline ${stage.pipeline} stage ${stage.stage}` : `stage ${stage.stage}`);

// Which stage each device belongs to, and its place among the ranks of the stage.
function placed(data) {
  const last = data.groups.at(-1);
  const all = last.first + last.nodes * last.per_node;
  const [stage, place] = [new Int32Array(all).fill(-1), new Int32Array(all)];
  const members = data.stages.map(({ devices }, at) => {
    const own = [];
    for (const [first, behind] of devices) for (let device = first; device <= behind; device++) own.push(device);
    own.forEach((device, rank) => { stage[device] = at; place[device] = rank; });
    return own;
  });
  return { all, stage, place, members };
}

// Devices of the groups of one device, by kind.
function groupsOf(data, map, device) {
  const own = map.stage[device];
  if (own < 0) return [];
  const stage = data.stages[own];
  const rank = map.place[device];
  const found = stage.kinds.map(([name, size, stride]) => {
    const block = Math.floor(rank / (size * stride)) * size * stride;
    const first = block + (rank % stride);
    return [name, Array.from({ length: size }, (_, at) => map.members[own][first + at * stride]).filter((one) => one !== undefined)];
  });
  const line = data.stages.map((other, at) => [other, at]).filter(([other]) => other.pipeline === stage.pipeline);
  if (line.length > 1) found.push(["pp", line.map(([, at]) => map.members[at][Math.floor((rank * map.members[at].length) / map.members[own].length)])]);
  return found;
}

// A text as it has room, with dots where it is cut.
function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}

// How quickly groups reach each other, one speed after the other, those of most pairs first.
const domainsOf = (group) => group.domains.map((domain) => `${domain.name} ${rate(domain.bytes_per_s)}${domain.basis === "assumed" ? " assumed" : ""}`).join(" · ");

function speeds(links) {
  const pairs = new Map();
  for (const link of links) {
    const text = `${rate(link.bytes_per_s)}${link.basis === "assumed" ? ", assumed" : ""}`;
    pairs.set(text, [...(pairs.get(text) ?? []), link.between.join(" – ")]);
  }
  if (pairs.size === 1) return `Between all groups of nodes: ${[...pairs.keys()][0]}.`;
  const listed = [...pairs].sort(([, a], [, b]) => b.length - a.length);
  const some = (names) => (names.length > MOST_PAIRS ? `${names.slice(0, MOST_PAIRS).join(", ")} and ${names.length - MOST_PAIRS} more pairs` : names.join(", "));
  return `Between groups of nodes: ${listed.map(([text, names]) => `${text} (${some(names)})`).join("; ")}.`;
}

function canvasOf(host, data, map, state) {
  const [base, over] = [document.createElement("canvas"), document.createElement("canvas")];
  base.setAttribute("aria-hidden", "true");
  over.setAttribute("aria-hidden", "true");
  over.className = "over";
  host.append(base, over);
  let laid = null;
  let colours = null;

  function sized() {
    const width = Math.floor(host.clientWidth);
    if (!width) return;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    laid = layout(data, width, map.all);
    for (const canvas of [base, over]) {
      canvas.width = width * ratio;
      canvas.height = laid.height * ratio;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${laid.height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    host.style.height = `${laid.height}px`;
    draw();
    light();
  }

  function draw() {
    const stages = data.stages.length;
    colours = {
      stages: data.stages.map((_, at) => computed(stageColour(at, stages))), ink: computed("var(--ink)"), muted: computed("var(--muted)"),
      line: computed("var(--line)"), sunken: computed("var(--sunken)"), raised: computed("var(--raised)"),
    };
    const context = base.getContext("2d");
    context.clearRect(0, 0, base.width, base.height);
    context.textBaseline = "middle";
    for (const box of laid.boxes) {
      context.setLineDash(box.domain?.basis === "assumed" ? [4, 3] : []);
      context.strokeStyle = box.group || box.domain ? colours.muted : colours.line;
      context.lineWidth = box.domain ? 1.3 : 1;
      context.beginPath();
      context.roundRect(box.x, box.y, box.wide, box.high, box.group ? 8 : laid.tile <= 5 ? 2 : 4);
      context.stroke();
      context.setLineDash([]);
      if (box.group) {
        const { group } = box;
        context.font = "600 12.5px system-ui, sans-serif";
        context.fillStyle = colours.ink;
        context.textAlign = "left";
        const words = groupWords(group);
        const outer = group.domains.at(-1);
        const speed = outer ? rate(outer.bytes_per_s) : "";
        const named = domainsOf(group);
        const shown = cut(context, words, box.wide - 40 - 7 * speed.length);
        const room = box.wide - 48 - context.measureText(shown).width;
        context.fillText(shown, box.x + 12, box.y + 15);
        context.fillStyle = colours.muted;
        context.textAlign = "right";
        context.font = "12px system-ui, sans-serif";
        context.fillText(box.wide > NAMED && context.measureText(named).width <= room ? named : speed, box.x + box.wide - 12, box.y + 15);
      }
    }
    links(context);
    const hatch = data.groups.map((_, number) => HATCHES[number % HATCHES.length]);
    data.groups.forEach((group, number) => {
      for (let device = group.first; device < group.first + group.nodes * group.per_node; device++) {
        const own = map.stage[device];
        context.fillStyle = own < 0 ? colours.sunken : colours.stages[own];
        context.fillRect(laid.at.x[device], laid.at.y[device], laid.tile, laid.tile);
        if (own >= 0 && laid.tile >= 8) for (const way of hatch[number]) hatched(context, laid.at.x[device], laid.at.y[device], laid.tile, way);
      }
    });
    if (laid.tile < 18) byNode(context);
    else {
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "center";
      for (let device = 0; device < map.all; device++) {
        if (map.stage[device] < 0) continue;
        context.fillStyle = "rgba(0,0,0,.78)";
        context.fillText(String(data.stages[map.stage[device]].stage), laid.at.x[device] + laid.tile / 2, laid.at.y[device] + laid.tile / 2 + 0.5);
      }
    }
  }

  // Devices that are too small for a number: one for each node that works for one stage, where it has room.
  function byNode(context) {
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "center";
    for (const group of data.groups) {
      for (let first = group.first; first < group.first + group.nodes * group.per_node; first += group.per_node) {
        const last = first + group.per_node - 1;
        if (!sameStage(first, last)) continue;
        const own = map.stage[first];
        const text = own < 0 ? "" : String(data.stages[own].stage);
        const wide = context.measureText(text).width + 6;
        const [x, y] = [laid.at.x[first], laid.at.y[first]];
        const [across, high] = [Math.max(...laid.at.x.subarray(first, last + 1)) + laid.tile - x, laid.at.y[last] + laid.tile - y];
        if (!text || across < wide + 4 || high < 16) continue;
        context.fillStyle = colours.stages[own];
        context.fillRect(x + (across - wide) / 2, y + high / 2 - 7, wide, 14);
        context.fillStyle = "rgba(0,0,0,.82)";
        context.fillText(text, x + across / 2, y + high / 2 + 0.5);
      }
    }
  }

  function sameStage(first, last) {
    for (let device = first; device <= last; device++) if (map.stage[device] !== map.stage[first]) return false;
    return true;
  }

  // Between groups of nodes: those that stand beside or below each other as a line, dashed where the speed is assumed.
  function links(context) {
    const boxes = laid.boxes.filter(({ group }) => group);
    const place = (name) => boxes.findIndex(({ group }) => group.name === name);
    context.font = "12px system-ui, sans-serif";
    data.links.forEach((link) => {
      const [one, other] = link.between.map(place).sort((a, b) => a - b);
      if (one < 0 || other - one !== 1) return;
      const [above, below] = [boxes[one], boxes[other]];
      const beside = below.y === above.y;
      if (!beside && below.wide !== above.wide) return;
      context.strokeStyle = colours.muted;
      context.lineWidth = 1 + Math.log10(Math.max(link.bytes_per_s / 1e9, 1)) * 1.4;
      context.setLineDash(link.basis === "assumed" ? [6, 4] : []);
      context.beginPath();
      const [from, to] = beside ? [above.x + above.wide, below.x] : [above.y + above.high, below.y];
      const across = beside ? above.y + 15 : 40;
      if (beside) { context.moveTo(from, across); context.lineTo(to, across); }
      else if (below.x === above.x) { context.moveTo(across, from); context.lineTo(across, to); }
      context.stroke();
      context.setLineDash([]);
      if (beside || to - from < 40) return;
      context.fillStyle = colours.muted;
      context.textAlign = "left";
      context.fillText(`${link.between.join(" – ")}: ${rate(link.bytes_per_s)}${link.basis === "assumed" ? ", assumed" : ""}`, across + 12, (from + to) / 2);
    });
  }

  function light() {
    if (!laid) return;
    const context = over.getContext("2d");
    context.clearRect(0, 0, over.width, over.height);
    if (state.device < 0) return;
    const found = groupsOf(data, map, state.device).filter(([name]) => state.kind === "all" || name === state.kind);
    const kept = new Set([state.device, ...found.flatMap(([, devices]) => devices)]);
    context.globalAlpha = 0.7;
    context.fillStyle = colours.raised;
    for (let device = 0; device < map.all; device++) {
      if (!kept.has(device)) context.fillRect(laid.at.x[device] - 0.5, laid.at.y[device] - 0.5, laid.tile + 1, laid.tile + 1);
    }
    context.globalAlpha = 1;
    const wide = laid.tile >= 12 ? 2.5 : laid.tile >= 8 ? 1.6 : 1;
    // Large groups first, so that what is close is seen on top of them.
    [...found].sort(([, a], [, b]) => b.length - a.length).forEach(([name, devices], at) => {
      context.strokeStyle = computed(kindColour(name));
      context.lineWidth = wide;
      const inset = laid.tile >= 18 ? at * 2 : 0;
      for (const device of devices) context.strokeRect(laid.at.x[device] + inset, laid.at.y[device] + inset, laid.tile - 2 * inset, laid.tile - 2 * inset);
    });
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(laid.at.x[state.device] - 1, laid.at.y[state.device] - 1, laid.tile + 2, laid.tile + 2);
  }

  new ResizeObserver(() => { if (Math.floor(host.clientWidth) !== parseInt(base.style.width, 10)) sized(); }).observe(host);
  const theme = new MutationObserver(() => {
    if (!host.isConnected) return theme.disconnect();
    draw();
    return light();
  });
  theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  sized();
  return {
    light,
    groups: (device) => groupsOf(data, map, device),
    place: (device) => ({ x: laid.at.x[device], y: laid.at.y[device], tile: laid.tile }),
    at(left, top) {
      for (let device = 0; device < map.all; device++) {
        const [x, y] = [left - laid.at.x[device], top - laid.at.y[device]];
        if (x >= 0 && y >= 0 && x < laid.tile + GAP && y < laid.tile + GAP) return device;
      }
      return -1;
    },
  };
}

function hatched(context, x, y, tile, way) {
  if (way === "dots") {
    context.fillStyle = "rgba(0,0,0,.34)";
    for (let left = 2; left < tile - 1; left += 4) for (let top = 2; top < tile - 1; top += 4) context.fillRect(x + left, y + top, 1.4, 1.4);
    return;
  }
  const [across, up] = way;
  context.save();
  context.beginPath();
  context.rect(x, y, tile, tile);
  context.clip();
  context.strokeStyle = "rgba(0,0,0,.3)";
  context.lineWidth = 1.2;
  context.beginPath();
  for (let at = -tile; at < 2 * tile; at += 5) {
    if (across && up) { context.moveTo(x + at, up > 0 ? y + tile : y); context.lineTo(x + at + tile, up > 0 ? y : y + tile); }
    else if (across) { context.moveTo(x, y + at); context.lineTo(x + tile, y + at); }
    else { context.moveTo(x + at, y); context.lineTo(x + at, y + tile); }
  }
  context.stroke();
  context.restore();
}

function describe(data, map, device) {
  const group = data.groups.findLast((one) => one.first <= device);
  const own = map.stage[device];
  const node = Math.floor((device - group.first) / group.per_node);
  const lines = [`device ${device}, ${group.device}`, ["node", `${node} of ${group.name}, place ${(device - group.first) % group.per_node}`]];
  if (own < 0) return [...lines, ["works for", "nobody"]];
  const stage = data.stages[own];
  lines.push(["works for", stageName(data, stage)], ["layers", ranges(stage.layers)]);
  const domain = group.domains[0];
  for (const [name, devices] of groupsOf(data, map, device)) {
    const inside = devices.filter((one) => Math.floor((one - group.first) / domain.size) === Math.floor((device - group.first) / domain.size)).length;
    lines.push([name, `${devices.length} ranks, ${inside === devices.length ? `all in one ${domain.name} domain` : `${inside} in its ${domain.name} domain`}`]);
  }
  return lines;
}

function pointed(host, data, map, state, drawing, said) {
  const go = (device, at) => {
    if (device !== state.device) {
      state.device = device;
      drawing.light();
    }
    if (device < 0) return hide();
    const lines = describe(data, map, device);
    if (at) showCard(at.clientX, at.clientY, lines);
    else {
      const { x, y, tile } = drawing.place(device);
      const box = host.getBoundingClientRect();
      showCard(box.left + x + tile, box.top + y + tile, lines);
      said.textContent = lines.flat().join(", ");
    }
    return null;
  };
  host.addEventListener("pointermove", (event) => {
    const box = host.getBoundingClientRect();
    go(drawing.at(event.clientX - box.left, event.clientY - box.top), event);
  });
  host.addEventListener("pointerleave", () => go(-1));
  host.addEventListener("blur", () => go(-1));
  host.addEventListener("keydown", (event) => {
    const group = data.groups.findLast((one) => one.first <= Math.max(state.device, 0));
    if (event.key === "Escape") return go(-1);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: group.per_node, ArrowUp: -group.per_node }[event.key];
    if (!step) return null;
    event.preventDefault();
    return go(state.device < 0 ? 0 : Math.min(Math.max(state.device + step, 0), map.all - 1));
  });
}

function legend(data) {
  const stages = data.stages.slice(0, 16);
  const hatches = data.groups.length > 1 ? data.groups.map((group, number) => html("li", {}, html("i", { class: `swatch hatch-${number % HATCHES.length}`, style: { "background-color": "var(--ghost)" } }), group.name)) : [];
  return html("ul", { class: "legend" },
    ...stages.map((stage, at) => html("li", {}, html("i", { style: { background: stageColour(at, data.stages.length) } }), stageName(data, stage))),
    data.stages.length > 16 ? html("li", { class: "muted" }, `and ${data.stages.length - 16} more`) : null,
    ...hatches,
    data.groups.some(({ domains }) => domains.some(({ basis }) => basis === "assumed")) || data.links.some(({ basis }) => basis === "assumed")
      ? html("li", { class: "muted" }, "dashed: speed assumed") : null);
}

