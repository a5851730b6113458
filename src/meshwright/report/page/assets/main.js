// The shell: what was asked, the verdict, tabs. A view is a module of its own that exports
//
//   const view = { name, title, lede?, slow?, still?, of?(document), draw(root, data, page) }
//
// and fills `root` from `data`, which `report/page/views/NAME.py` made; `of` is false for answers that it has nothing to
// draw of. `slow` views wait until a slider is let go. `still` ones draw elements at once and measure nothing: while a
// slider is held, what stands there takes in what they draw. `page` is:
//
//   document, entry, index   the answer (meshwright.plan-set/1), the shown entry of `plans`, its place
//   unanswered               why nothing answers the question, null where something does; plans are then the nearest
//   ghost                    the entry that a what-if started from, null where nothing was changed
//   ghostData()              data of the same view for the ghost: a promise, null where there is none
//   live                     a server answers; a file has none
//   held                     live: a slider is held, what takes long is drawn when it is let go
//   table(root, columns, rows, options)      the table behind a picture (table.js)
//   choose(index)            show another plan of the answer
//   apply(changes)           live: what if, by field of a row or job: { tp: 4, recompute: "full", seq_len: 8192 }
//   pull(changes)            live: likewise while a control of the view is held: prices alone change, the view stays
//   search(fields)           live: the same question with more fields of `plan`, in place of this answer
//   ask(settings)            live: data of this view by `live_data(plan, source, settings)` of its Python module; a
//                            promise that rejects with { problems } where the server refuses
//   rested()                 live: a promise of whether nothing is changed for a moment: what takes the server long waits for it
//   save(form)               live: one step of the plan as a file, `svg` or `chrome`; a promise that rejects likewise
//   hand(text, name, type)   live: a text as a file that the browser keeps
//   compared()               a promise of the plans kept to compare, this one first: [{ title, entry, settings,
//                            training, timeline() }], whose last is a promise of what the timeline draws of it, null without
//   get(key), set(key, text) what a view wants to keep in the address
import { renewed } from "page/renewed.js";
import { table } from "page/table.js";
import { coded, dotted, html, svg } from "page/svg.js";
import { spelledLine } from "page/tokens.js";
import { gib, percent, seconds, significant, signedPercent, ofCapacity, usd, count } from "page/units.js";
import { views } from "page/views.js";

export function start(root, live = null) {
  const given = JSON.parse(document.getElementById("document").textContent);
  const shell = new Shell(root, given, live);
  shell.draw();
  return shell;
}

// What is in the address behind #: keys of the shell and of the views.
class Address {
  constructor() { this.read(); }
  read() { this.kept = new URLSearchParams(location.hash.slice(1)); }
  get(key) { return this.kept.get(key); }
  set(key, text, { enters = false } = {}) {
    if (text === null || text === undefined || text === "") this.kept.delete(key);
    else this.kept.set(key, text);
    const next = `#${this.kept}`;
    if (next === location.hash || (next === "#" && !location.hash)) return;
    try {
      history[enters ? "pushState" : "replaceState"](null, "", next === "#" ? location.pathname + location.search : next);
    } catch { /* a page inside another one may have no history of its own */ }
  }
}

class Shell {
  constructor(root, given, live) {
    Object.assign(this, { root, given, live, address: new Address(), changed: null, drawn: 0 });
    this.document = given.document;
    this.index = this.placeOf(this.address.get("plan"));
    const theme = this.address.get("theme");
    if (theme) document.documentElement.dataset.theme = theme;
    addEventListener("popstate", () => {
      this.address.read();
      this.index = this.placeOf(this.address.get("plan"));
      if (this.live?.isBehind(this)) return this.live.restore(this);
      this.live?.restore(this);
      this.draw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawView());
    addEventListener("beforeprint", () => this.printing(true));
    addEventListener("afterprint", () => this.printing(false));
  }

  placeOf(text) {
    const place = Number(text ?? 1) - 1;
    return Number.isInteger(place) && this.document.plans[place] ? place : 0;
  }

  // The entry on show: of the answer, or what a what-if made of it.
  get entry() { return this.changed?.entry ?? this.document.plans[this.index]; }
  get ghost() { return this.changed ? this.document.plans[this.index] : null; }

  page() {
    const shell = this;
    return {
      document: this.document, entry: this.entry, index: this.index, ghost: this.ghost, live: Boolean(this.live), unanswered: this.given.unanswered ?? null,
      held: Boolean(this.live?.dragging),
      // Rows that nobody sees are made when the slider is let go.
      table: (root, columns, rows, more = {}) => table(root, columns, this.live?.dragging && more.folded !== false ? [] : rows, more),
      ghostData: () => (shell.ghost ? shell.dataOf(shell.view.name, { original: true }) : Promise.resolve(null)),
      choose: (index) => shell.choose(index),
      show: (name) => shell.open(name),
      apply: (changes) => shell.live?.release(shell, changes),
      pull: (changes) => shell.live?.pull(shell, changes),
      ask: (asked) => (shell.live ? shell.live.view(shell, shell.view.name, { asked }) : Promise.reject(new Error("no server"))),
      rested: () => shell.live.rested(),
      post: (path, body) => shell.live.post(path, shell.live.question(shell, body)),
      search: (fields) => shell.live?.ask(shell, { ...shell.given.asked, ...fields }),
      save: (form) => shell.live.save(shell, form),
      hand: (text, name, type) => shell.live.hand(text, name, type),
      problems,
      compared: () => (shell.live ? shell.live.compared(shell) : Promise.resolve(comparedInFile(shell))),
      get: (key) => shell.address.get(`${shell.view.name}.${key}`),
      set: (key, text) => shell.address.set(`${shell.view.name}.${key}`, text),
    };
  }

  get views() { return views.filter((one) => one.of?.(this.document) ?? true); }
  get view() { return this.views.find((one) => one.name === this.address.get("view")) ?? views[0]; }

  choose(index) {
    this.index = index;
    this.changed = null;
    this.address.set("plan", index ? String(index + 1) : null, { enters: true });
    if (this.live) this.live.chosen(this);
    this.draw();
  }

  open(name) {
    this.address.set("view", name, { enters: true });
    this.drawTabs();
    this.drawView();
  }

  async dataOf(name, { original = false, index = this.index } = {}) {
    if (this.live) return this.live.data(this, name, { original, index });
    return this.given.data[name]?.[index] ?? null;
  }

  // Everything on show; while a slider is held only what a price can change. `drawn` is what the view draws, where it
  // came along with the price: { name, data } or { name, failed }.
  draw(drawn = null) {
    // Asked for before anything changes: later the browser would lay out what is half drawn.
    const top = scrollY;
    if (!this.parts) this.build();
    if (!this.live?.dragging) this.parts.head.replaceChildren(...head(this));
    if (this.live?.dragging) renewed(this.parts.verdict, verdict(this));
    else {
      this.parts.verdict.replaceChildren(...verdict(this));
      this.parts.unanswered.replaceChildren(...unanswered(this));
      this.parts.unanswered.hidden = !this.given.unanswered;
      this.drawTabs();
    }
    return this.drawView(drawn, top);
  }

  build() {
    const parts = this.parts = {
      head: html("header", { class: "top" }),
      unanswered: html("section", { class: "panel unanswered", "aria-label": "No answer", hidden: true }),
      verdict: html("section", { class: "panel verdict", "aria-label": "Verdict" }),
      tabs: html("div", { class: "tabs", role: "tablist", "aria-label": "Views" }),
      view: html("div", { class: "view", role: "tabpanel", id: "view", tabindex: "-1" }),
      asking: this.live ? html("aside", { class: "panel asking", "aria-label": "What if" }) : null,
    };
    parts.foot = html("footer");
    this.foot();
    const main = html("main", { id: "main" }, parts.unanswered, parts.verdict, html("section", { class: "panel", "aria-label": "Views" }, parts.tabs, parts.view));
    this.root.append(
      html("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); parts.view.focus(); } }, "Skip to the view"),
      parts.head,
      html("div", { class: this.live ? "below asked" : "below" }, parts.asking, main),
      parts.foot,
    );
    if (this.live) this.live.build(this, parts.asking);
  }

  foot() { this.parts?.foot.replaceChildren(...footer(this)); }

  drawTabs() {
    const [chosen, shown] = [this.view, this.views];
    const tabs = shown.map((one) => html("button", {
      type: "button", role: "tab", id: `tab-${one.name}`, "aria-controls": "view", "aria-selected": String(one === chosen),
      tabindex: one === chosen ? "0" : "-1", onclick: () => this.open(one.name),
      onkeydown: (event) => this.alongTabs(event, one),
    }, one.title));
    this.parts.tabs.replaceChildren(...tabs);
    this.parts.tabs.classList.toggle("many", tabs.length > 11);
    const own = tabs[shown.indexOf(chosen)];
    const beyond = own.offsetLeft + own.offsetWidth - this.parts.tabs.clientWidth;
    if (beyond > 0 || own.offsetLeft < this.parts.tabs.scrollLeft) this.parts.tabs.scrollLeft = Math.max(beyond + 24, 0);
  }

  alongTabs(event, one) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const shown = this.views;
    const next = shown[(shown.indexOf(one) + step + shown.length) % shown.length];
    this.open(next.name);
    document.getElementById(`tab-${next.name}`).focus();
  }

  async drawView(drawn = null, top = null) {
    if (this.live?.dragging && (this.view.slow || this.live.dragging === this.view.name)) return;
    const [view, turn, root] = [this.view, ++this.drawn, this.parts.view];
    root.setAttribute("aria-labelledby", `tab-${view.name}`);
    let data;
    const here = drawn?.name === view.name ? drawn : null;
    const patience = view.slow && !here ? setTimeout(() => turn === this.drawn && this.wait(root, view), 150) : null;
    try {
      if (here?.failed) throw here.failed;
      data = here ? here.data : await this.dataOf(view.name);
    } catch (failed) {
      clearTimeout(patience);
      if (turn === this.drawn) root.replaceChildren(...this.refused(failed));
      return;
    }
    if (turn !== this.drawn) return;
    clearTimeout(patience);
    root.removeAttribute("aria-busy");
    await this.drawInto(root, view, data, here ? top : null);
    if (turn !== this.drawn) return;
    document.documentElement.dataset.drawn = `${view.name}:${turn}`;
  }

  // Settings that are refused have their reason beside them; the view says the way back.
  refused(failed) {
    this.parts.view.removeAttribute("aria-busy");
    if (!this.live?.failed) return problems(failed);
    const back = html("button", { type: "button", class: "button", onclick: () => this.live.undo() }, "Undo");
    return [html("p", { class: "absent" }, `Not drawn: ${failed.problems?.[0]?.what ?? failed.message}. `, this.live.depth ? back : null)];
  }

  // What stands there until the data of a view are computed: the view as it was, dimmed, or a sentence.
  wait(root, view) {
    const same = document.documentElement.dataset.drawn?.startsWith(`${view.name}:`);
    if (same) root.setAttribute("aria-busy", "true");
    else root.replaceChildren(html("p", { class: "muted", role: "status" }, "Pricing the plans around this one ..."));
  }

  // A promise where the view unpacks something before it has drawn all. While a slider is held, a view that has left a
  // `renew(data, page)` at its element, or that is `still`, takes the data in where it stands, so that nothing around it
  // is laid out again.
  drawInto(root, view, data, before = null) {
    const { figure } = this;
    if (this.live?.dragging && data && figure?.view === view && figure.inner.isConnected) {
      const { inner } = figure;
      if (inner.renew) return inner.renew(data, this.page()).then((taken) => taken || this.drawAnew(root, view, data, before));
      if (view.still) {
        const fresh = html("div");
        view.draw(fresh, data, this.page());
        return renewed(inner, [...fresh.childNodes]);
      }
    }
    return this.drawAnew(root, view, data, before);
  }

  drawAnew(root, view, data, before) {
    let drawing = null;
    const [top, held] = [before ?? scrollY, root.contains(document.activeElement) ? document.activeElement.id : null];
    root.replaceChildren(...(view.lede ? [html("p", { class: "lede" }, coded(view.lede.call ? view.lede(Boolean(this.live)) : view.lede))] : []));
    if (data === null) {
      const asked = `meshwright report plans.json#${this.index + 1}`;
      root.append(html("p", { class: "absent" }, "This file draws it for the first plan alone. ", html("code", {}, `${asked} -o plan.html`), " draws it for this one."));
    } else {
      const inner = html("div");
      this.figure = { view, inner };
      root.append(inner);
      drawing = view.draw(inner, data, this.page());
    }
    // Asked for once all stands there: before that the browser would lay out a part of it, and scroll within that.
    const settled = () => {
      if (held) document.getElementById(held)?.focus({ preventScroll: true });
      if (scrollY !== top) scrollTo({ top });
    };
    return drawing?.then ? drawing.then(settled) : settled();
  }

  // All views below each other on paper, in a file whose data are all here.
  printing(on) {
    this.printed?.remove();
    if (!on || this.live) return;
    this.printed = html("div");
    for (const view of this.views) {
      const data = this.given.data[view.name]?.[this.index];
      if (view === this.view || !data) continue;
      const root = html("div", { class: "view" }, html("h2", {}, view.title));
      this.printed.append(root);
      this.parts.view.after(this.printed);
      view.draw(root.appendChild(html("div")), data, this.page());
    }
  }
}

const MOST_COMPARED = 4;

// In a file: the plan on show and the best others, whose data are here.
function comparedInFile(shell) {
  const order = [shell.index, ...shell.document.plans.keys()].filter((at, place, all) => all.indexOf(at) === place);
  return order.slice(0, MOST_COMPARED).map((at) => ({
    title: shell.document.plans[at].title, entry: shell.document.plans[at], settings: shell.given.data.compare?.[at]?.settings ?? {}, training: shell.given.data.compare?.[at]?.training ?? [],
    timeline: () => Promise.resolve(shell.given.data.timeline?.[at] ?? null),
  }));
}

export function problems(failed) {
  const found = failed?.problems ?? [{ what: String(failed?.message ?? failed) }];
  return found.map((one) => html("p", { class: "problem", role: "alert" },
    failed.code ? `error[${failed.code}]: ` : "", coded(one.what),
    one.why ? html("span", { class: "why" }, coded(`why: ${one.why}`)) : null, one.fix ? html("span", { class: "fix" }, coded(`fix: ${one.fix}`)) : null));
}

// Characters of a model or a cluster in the head; its whole name is shown to who points at it.
const MOST_OF_A_NAME = 30;

function head(shell) {
  const { model, cluster, workload } = shell.document.inputs;
  const devices = `${cluster.devices.toLocaleString("en-US")} GPU${cluster.devices === 1 ? "" : "s"}${cluster.groups.length > 1 ? `, ${cluster.groups.length} groups` : ""}`;
  const facts = [["Model", model.name, model.parameters ? count(model.parameters) : null], ["Cluster", cluster.name, devices]];
  if (workload.seq_len) facts.push(["Sequence", workload.seq_len.toLocaleString("en-US")]);
  if (workload.global_batch) facts.push(["Batch", workload.global_batch.toLocaleString("en-US"), workload.tokens_per_step ? `${count(workload.tokens_per_step)} tokens` : null]);
  if (workload.dtype) facts.push(["Format", workload.dtype]);
  facts.push(...tuned(model.tuning));
  const mark = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { d: "M1 2h8v4H1zM7 10h8v4H7z", fill: "var(--task-F)" }), svg("path", { d: "M4 6h8v4H4z", fill: "var(--task-B)" }));
  return [
    html("h1", { class: "mark" }, mark, "meshwright"),
    html("div", { class: "facts" }, ...facts.map(([name, value, more]) => html("span", {}, `${name} `, html("b", value.length > MOST_OF_A_NAME ? { class: "long", title: value } : {}, value), more ? ` · ${more}` : ""))),
    html("div", { class: "tools" }, ...(shell.live ? shell.live.tools(shell) : []), themeButton(shell)),
  ];
}

// What is trained, where that is not all of the model.
function tuned(tuning) {
  if (!tuning) return [];
  const { lora, frozen } = tuning;
  return [...(lora ? [[lora.dora ? "DoRA" : "LoRA", `rank ${lora.rank}`, lora.base]] : []), ...(frozen.length ? [["Frozen", frozen.join(", ")]] : [])];
}

function planPicker(shell) {
  const { plans } = shell.document;
  if (plans.length < 2) return null;
  const options = plans.map((plan, at) => html("option", { value: String(at), selected: at === shell.index }, at === shell.index ? `plan ${plan.rank} of ${plans.length}` : `${plan.rank}. ${plan.title}`));
  return html("label", {}, html("span", { class: "unseen" }, "Plan"),
    html("select", { class: "button", onchange: (event) => shell.choose(Number(event.target.value)) }, ...options));
}

function themeButton(shell) {
  const root = document.documentElement;
  return html("button", { type: "button", class: "button", title: "Light or dark", "aria-label": "Light or dark", onclick: () => {
    const dark = getComputedStyle(root).colorScheme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = dark ? "light" : "dark";
    shell.address.set("theme", root.dataset.theme);
    shell.drawView();
  } }, "◐");
}

const FIRST_REASONS = 5;
const FITS = { yes: ["good", "fits"], tight: ["warn", "tight"], no: ["bad", "does not fit"] };

function delta(now, before, less = true) {
  if (before === undefined || before === null || !before || Math.abs(now / before - 1) < 5e-4) return null;
  const better = now < before === less;
  return html("span", { class: `badge ${better ? "down" : "up"}` }, signedPercent(now / before - 1));
}

// What a number is, as formula and basis: shown below the tiles by a click.
function explained(estimate, workload) {
  const parts = Object.entries(estimate.breakdown_s).filter(([, value]) => value > 1e-9 * estimate.step_time_s).map(([name, value]) => `${name} ${seconds(value)}`);
  const basis = { datasheet: "device numbers from data sheets", fitted: "device numbers fitted to public runs", measured: "device numbers measured" };
  const range = `${seconds(estimate.step_time_low_s)} to ${seconds(estimate.step_time_high_s)}`;
  return {
    step: [`step = ${parts.join(" + ")}`, `Range ${range}; basis: ${basis[estimate.basis] ?? estimate.basis}. The overview has the parts, the timeline the order.`],
    rate: [`tokens/s/GPU = ${count(workload.tokens_per_step ?? 0)} tokens of a step / (${seconds(estimate.step_time_s)} × GPUs of the plan)`],
    mfu: ["MFU = FLOP that the model needs / (step × GPUs × peak FLOP/s of the format); recomputed work does not count.",
      `HFU counts it too: ${percent(estimate.hfu ?? 0)}. Both count attention as the mask needs it.`],
    memory: ["peak = weights + gradients + optimizer states + activations in flight + working memory + buffers + context and reserve",
      "Of the fullest stage, at its fullest moment; the memory view has every stage."],
    price: ["price of a step = GPU hours of the step × price per GPU and hour"],
  };
}

// Why nothing answers the question, and questions that have an answer.
function unanswered(shell) {
  const { given: { unanswered: failed, asked }, live, document } = shell;
  if (!failed) return [];
  const offers = live?.offers(shell, asked, failed);
  const shown = offers ? { ...failed, problems: failed.problems.map((one) => ({ ...one, fix: null })) } : failed;
  const near = document.plans[0].estimate.fits === "no"
    ? "On show is the plan that lacks the least memory: change it until it fits, or ask what has an answer." : "On show is the answer without this limit.";
  return [html("h2", {}, "No plan answers this question"), ...problems(shown), offers, html("p", { class: "because" }, near)].filter(Boolean);
}

// Memory that is left over on the fullest stage, or that it lacks.
function roomOf(full, word) {
  const spare = full.capacity_bytes - full.peak_memory_bytes;
  return `${word}, ${spare >= 0 ? `${gib(spare)} spare of` : `${gib(-spare)} more than`} ${gib(full.capacity_bytes)}`;
}

function verdict(shell) {
  const { entry, ghost } = shell;
  const { verdict: said, tie, inputs } = shell.document;
  if (!entry) return [html("p", {}, said?.text ?? "no plan")];
  const now = entry.estimate;
  const before = ghost?.estimate;
  const full = now.stages.reduce((a, b) => (b.peak_memory_bytes / b.capacity_bytes > a.peak_memory_bytes / a.capacity_bytes ? b : a));
  const fullBefore = before ? Math.max(...before.stages.map((stage) => stage.peak_memory_bytes)) : null;
  const [tone, word] = FITS[now.fits];
  const formulas = explained(now, inputs.workload);
  const told = html("div", { class: "formula", hidden: true, "aria-live": "polite" });
  let shown = null;
  const tile = (key, name, value, more, badge, lead) => html("div", { class: lead ? "tile lead" : "tile" },
    html("div", { class: "name" }, name),
    html("button", { type: "button", class: "value", "aria-label": `${name}: ${value}; how it is made`, onclick: () => tell(key) }, value),
    html("div", { class: "more" }, more, badge ? [" ", badge] : null));
  const words = spelledLine(entry.title);
  if (words.length) formulas.plan = words.map(([word, text]) => [html("code", {}, word), ` ${text}`]);
  const tell = (key) => {
    shown = shown === key ? null : key;
    told.hidden = shown === null;
    told.replaceChildren(...formulas[key].map((line) => html("p", {}, line)));
  };
  const tiles = [
    tile("step", "Step", seconds(now.step_time_s), `${significant(now.step_time_low_s)} to ${seconds(now.step_time_high_s)}`, delta(now.step_time_s, before?.step_time_s), true),
    now.tokens_per_s_per_device ? tile("rate", "Tokens/s per GPU", significant(now.tokens_per_s_per_device), "", delta(now.tokens_per_s_per_device, before?.tokens_per_s_per_device, false)) : null,
    now.mfu ? tile("mfu", "MFU", percent(now.mfu), `HFU ${percent(now.hfu)}`, null) : null,
    tile("memory", "Memory", gib(full.peak_memory_bytes), html("span", { class: `state ${tone}` }, roomOf(full, word)), delta(full.peak_memory_bytes, fullBefore)),
    now.price_per_step !== null && now.price_per_step !== undefined ? tile("price", "Step costs", usd(now.price_per_step), "", delta(now.price_per_step, before?.price_per_step)) : null,
  ];
  const lines = [];
  if (ghost) lines.push(html("p", { class: "because" }, `What if${shell.changed.text ? ` ${shell.changed.text.replaceAll(" -> ", " → ")}` : ""}: changed from `, html("code", {}, ghost.title), ", which takes ", seconds(ghost.estimate.step_time_s), "."));
  else if (entry.rank === 1 && said) {
    const tied = tie?.ranks?.includes(2) ? html("span", { class: "badge" }, `tie: plans ${tie.ranks.join(", ")} are within ${percent(tie.within)}`) : null;
    const [whys, more] = [said.why.slice(1, 1 + FIRST_REASONS), said.why.slice(1 + FIRST_REASONS)];
    lines.push(html("ul", { class: "because" }, ...whys.map((line) => html("li", {}, coded(line)))));
    if (more.length) lines.push(html("details", { class: "more-reasons" }, html("summary", {}, `${more.length} more`), html("ul", { class: "because" }, ...more.map((line) => html("li", {}, coded(line))))));
    if (said.runner_up) lines.push(html("p", { class: "because", style: { "margin-top": "2px" } }, "runner-up ", html("code", {}, said.runner_up.title), `, ${seconds(said.runner_up.step_time_s)}: ${said.runner_up.loses_because} `, tied));
  } else lines.push(html("p", { class: "because" }, entry.identities.join("; ")));
  const named = words.length ? html("button", { type: "button", class: "value", title: "What each word of the plan says", onclick: () => tell("plan") }, ...dotted(entry.title)) : dotted(entry.title);
  const files = shell.views.some(({ name }) => name === "export") ? html("button", { type: "button", class: "button", title: "The files that start a framework with this plan", onclick: () => shell.open("export") }, "Launch files") : null;
  return [html("div", { class: "named" }, html("p", { class: "plan" }, named), html("div", { class: "tools" }, files, planPicker(shell))), html("div", { class: "tiles" }, ...tiles), told, ...lines,
    ...(shell.document.warnings ?? []).map((text) => html("p", { class: "because warn" }, "warning: ", coded(text)))];
}

function footer(shell) {
  const { made, made_by: { command } } = shell.given;
  return [
    ...(command ? [html("div", {}, "The same answer on a command line:"), html("pre", { tabindex: "0", "aria-label": "Command" }, command)] : []),
    html("div", {}, `${made}. Predictions are models: `, "each number above has its range and its basis, and a plan's file keeps all of them."),
  ];
}
