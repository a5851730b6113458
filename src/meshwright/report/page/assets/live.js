// What a page with a server behind it can do besides: what if, searches, comparing, undo. Every state is in the address.
import { holdsExperts } from "page/views/experts.js";
import { problems, start } from "page/main.js";
import { along } from "page/card.js";
import { allUnpacked } from "page/packed.js";
import { coded, html } from "page/svg.js";
import { bytes, count, ofCapacity, percent, rate, seconds, sentence, significant } from "page/units.js";

const NAMES = {
  tp: "Tensor parallel", cp: "Context parallel", pp: "Pipeline stages", ep: "Expert parallel", etp: "Tensor within experts",
  vpp: "Chunks per stage", mbs: "Micro-batch", recompute: "Recompute", sharding: "Sharding", schedule: "Schedule",
};
const RECOMPUTE = { none: "none", sel: "selective", full: "full" };
const recomputed = (word) => RECOMPUTE[word] ?? String(word).replace(/^sel-/, "selective: ").replaceAll("-", ", ");
// Fields of a form by what the errors of their parts are about.
const ASKED_AS = { device: "gpus", dtypes: "dtype" };
const MOST_COMPARED = 4;
const FIRST_VIEW = "overview";
const MOST_ANSWERS = 48;
const LETTERS_OF_A_LINE = 27;
const STEPS_PER_OCTAVE = 6;
const MOST_KINDS_OPEN = 3;
// `H100: tp` is of the stages on H100.
const kindOf = (name) => name.split(": ").reverse()[1] ?? "";
// A page that is there before its answer asks again, so often without any server, and so many milliseconds apart.
const [MOST_MISSED, AGAIN_MS, NOT_YET] = [60, 50, 202];
const [PAINTED_WITHIN_MS, RESTING_MS] = [500, 300];

export async function live(root) {
  const given = JSON.parse(document.getElementById("document").textContent);
  const own = new Live(given);
  const shell = start(root, own);
  await own.restore(shell);
  if (given.unanswered) {
    await own.asksOf();
    await shell.draw();
  }
  if (given.recorded) await own.confirm(shell);
}

class Live {
  // first: what is asked first of the answer's first plan came along with the page; it has the data of the overview.
  constructor({ answer, first, recorded = false }) {
    Object.assign(this, { answer, home: answer, opens: { answer, first }, opening: recorded, changes: {}, busy: false, again: false, first: false, touched: null, next: null, answers: new Map(), depth: 0, moves: 0, knobs: null, quantities: null, search: null, unfolded: new Set() });
  }

  async post(path, body) {
    for (let missed = 0; ;) {
      const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }).catch((failed) => {
        if (!this.opening || (missed += 1) > MOST_MISSED) throw unheard(failed);
      });
      if (answer && answer.status !== NOT_YET) {
        this.opening = false;
        return this.read(answer);
      }
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }

  // What came along with the page, where it is what is on show.
  came(index = 0, changed = this.changed) {
    return this.opens.answer === this.answer && index === 0 && !changed ? this.opens.first : null;
  }

  // A recorded answer is on show: what the planner says takes its place where it says something else.
  async confirm(shell) {
    const said = ({ plans, verdict, tie }) => JSON.stringify([plans, verdict, tie]);
    const recorded = said(shell.document);
    // The server begins to work with the first question, and would take processors from the drawing.
    await Promise.race([painted(), new Promise((done) => setTimeout(done, PAINTED_WITHIN_MS))]);
    const found = await this.post("page", { answer: this.opens.answer });
    if (this.answer === this.opens.answer) {
      Object.assign(shell, { given: found, document: found.document });
      shell.foot();
      if (said(found.document) !== recorded) {
        this.opens = {};
        await this.price(shell, { first: true });
      }
    }
    counted("confirmed");
  }

  async read(answer) {
    const found = await answer.json().catch((failed) => { throw unheard(failed); });
    if (!answer.ok) throw Object.assign(new Error(found.problems?.[0]?.what ?? "refused"), found);
    return found;
  }

  question(shell, more = {}) {
    return { answer: this.answer, plan: shell.index, changes: this.changes, ...more };
  }

  view(shell, name, more = {}) { return this.post("view", this.question(shell, { name, ...more })); }

  data(shell, name, { original, index }) {
    const changes = original || index !== shell.index ? {} : this.changes;
    const came = name === FIRST_VIEW && this.came(index, changes !== this.changes ? false : this.changed);
    if (came) return Promise.resolve(came.view);
    return this.view(shell, name, { plan: index, changes });
  }

  // The answer that the address names: where it names none, the one that came along with the page.
  addressed(shell) { return shell.address.get("answer") ?? this.home; }

  // Whether the address names another answer than the one on show.
  isBehind(shell) { return this.addressed(shell) !== this.answer; }

  // The address says another state: after undo, or when a link is opened.
  async restore(shell) {
    if (this.isBehind(shell)) await this.open(shell, this.addressed(shell), shell.address.get("ask"));
    const text = shell.address.get("changes");
    try {
      this.changes = text ? JSON.parse(text) : {};
    } catch {
      this.changes = {};
    }
    if (!this.changed) shell.changed = null;
    this.price(shell, { first: !this.knobs });
  }

  get changed() { return Object.keys(this.changes).length > 0; }

  chosen(shell) {
    this.changes = {};
    this.quantities = null;
    shell.address.set("changes", null);
    this.price(shell, { first: true });
  }

  undo() {
    this.depth -= 1;
    history.back();
  }

  // All changes with some more: a value of null goes back to the plan's own.
  changedBy(changes) {
    const numbers = { ...this.changes.numbers, ...changes.numbers };
    for (const [name, value] of Object.entries(numbers)) if (value === null || value === 1) delete numbers[name];
    const kept = "row" in changes ? Object.fromEntries(Object.entries(this.changes).filter(([name]) => !(name in NAMES))) : this.changes;
    const found = { ...kept, ...changes, numbers };
    for (const [name, value] of Object.entries(found)) if (value === null) delete found[name];
    if (!Object.keys(numbers).length) delete found.numbers;
    return found;
  }

  apply(shell, changes, { settled = true } = {}) {
    this.moves += 1;
    this.changes = this.changedBy(changes);
    if (settled) {
      this.depth += 1;
      shell.address.set("changes", this.changed ? JSON.stringify(this.changes) : null, { enters: true });
    }
    this.touched = Object.keys(changes.numbers ?? changes)[0] ?? null;
    this.price(shell);
  }

  // Ask for the changed plan with what the view on show draws of it, in one request. What moved while it was on its way
  // is asked next, in its newest state; each answer is drawn, so that the picture follows a pull that does not pause.
  async price(shell, { first = false } = {}) {
    this.first ||= first;
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try {
      do {
        this.again = false;
        const drawn = await this.ofChanged(shell);
        if (!this.dragging) this.draw(shell);
        await shell.draw(drawn);
        counted("redrawn");
      } while (this.again);
      counted("priced");
    } finally {
      this.busy = false;
    }
  }

  // What the view on show draws of the changed plan: { name, data } or { name, failed }; null where it is asked for later.
  async ofChanged(shell) {
    const [asked, touched, view] = [this.changed, this.touched, shell.view];
    const name = view.slow ? null : view.name;
    const quantities = this.first || !this.quantities;
    this.first = false;
    try {
      const came = this.came(shell.index);
      const found = came ?? await this.whatIf(this.question(shell, { quantities, settings: !this.dragging, view: name }));
      this.askAhead(shell, name);
      shell.changed = asked ? { entry: found.entry, text: found.change } : null;
      if (found.settings) this.knobs = found;
      this.quantities = found.quantities ?? this.quantities;
      this.failed = null;
      return name && (!came || name === FIRST_VIEW) ? { name, data: found.view, failed: found.refused } : null;
    } catch (failed) {
      this.failed = { failed, touched };
      return { name: view.name, failed };
    }
  }

  async rested() {
    // Who asks later takes the place of who asked before: a view may be drawn several times for one change.
    const own = this.moves += 1;
    await new Promise((done) => setTimeout(done, RESTING_MS));
    return this.moves === own && !this.busy;
  }

  // One question has one answer: a pull that goes back and forth asks each position once.
  whatIf(question) {
    const key = JSON.stringify(question);
    const found = this.answers.get(key) ?? this.readied(question);
    this.answers.delete(key);
    this.answers.set(key, found);
    if (this.answers.size > MOST_ANSWERS) this.answers.delete(this.answers.keys().next().value);
    found.catch(() => this.answers.delete(key));
    return found;
  }

  // An answer that can be drawn at once: with the columns of its view unpacked.
  async readied(question) {
    const found = await this.post("what-if", question);
    await allUnpacked(found.view ?? null);
    return found;
  }

  // The server works on what a pull comes to next while the browser draws where it is.
  askAhead(shell, view) {
    const changes = this.again ? this.changes : this.next && this.changedBy(this.next);
    if (this.dragging && changes) this.whatIf(this.question(shell, { changes, quantities: false, settings: false, view })).catch(() => {});
  }

  build(shell, aside) {
    this.aside = aside;
    this.draw(shell);
  }

  draw(shell) {
    const held = document.activeElement?.id;
    const knobs = this.knobs;
    const parts = [html("h2", {}, "What if", html("span", {}, this.changed
      ? html("button", { type: "button", class: "button", onclick: () => { this.changes = {}; this.apply(shell, {}); } }, "Reset")
      : null))];
    if (!knobs) parts.push(html("p", { class: "muted" }, "…"));
    else {
      parts.push(this.line(shell, knobs), ...this.workload(shell, knobs), ...this.settings(shell, knobs), this.price_(shell, knobs));
    }
    if (this.failed && !this.placed) parts.splice(1, 0, ...problems(this.failed.failed));
    this.placed = false;
    this.aside.replaceChildren(...parts.filter(Boolean));
    if (held) document.getElementById(held)?.focus({ preventScroll: true });
  }

  // The error of a field stands below it.
  problemOf(name) {
    const { failed, touched } = this.failed ?? {};
    if (!failed || this.placed || (touched !== name && !failed.problems?.some((one) => one.field === name))) return null;
    this.placed = true;
    return problems(failed);
  }

  // The whole plan in one line, to read, copy and write.
  line(shell, knobs) {
    const own = knobs.settings.some(({ name }) => name === "tp");
    if (!own && shell.document.inputs.cluster.groups.length > 1) return null;
    const text = this.failed && this.changes.row ? this.changes.row : own ? knobs.entry.name ?? knobs.entry.title : "";
    return html("div", { class: "row" in this.changes ? "knob changed" : "knob" }, html("label", { for: "knob-row" }, html("span", {}, "Plan in one line")),
      html("textarea", { id: "knob-row", class: "button mono", rows: Math.max(1, Math.ceil(text.length / LETTERS_OF_A_LINE)), spellcheck: "false", placeholder: own ? null : "tp8.pp4.mbs1.z1",
        onkeydown: (event) => { if (event.key === "Enter") { event.preventDefault(); event.target.blur(); event.target.focus(); } },
        onchange: (event) => this.apply(shell, { row: event.target.value.trim() || null }) }, text),
      own ? null : html("p", { class: "muted", style: { margin: "4px 0 0", "font-size": "12px" } }, "This plan chooses per layer or stage what no line says: its degrees stay as they are."), this.problemOf("row"));
  }

  // Settings and numbers; those of many kinds of device are folded below each kind's name, but where one is changed.
  settings(shell, { settings }) {
    const kinds = new Set([...settings, ...(this.quantities ?? [])].map(({ name }) => kindOf(name)));
    const of = (kind) => [...settings.filter(({ name }) => kind === null || kindOf(name) === kind).map((one) => this.setting(shell, one)), ...this.numbers(shell, kind)];
    if (kinds.size <= MOST_KINDS_OPEN) return of(null);
    const changed = new Set([...Object.keys(this.changes), ...Object.keys(this.changes.numbers ?? {})].map(kindOf));
    return [...[...kinds].filter(Boolean).map((kind) => {
      if (changed.has(kind)) this.unfolded.add(kind);
      return html("details", { class: "knobs", open: this.unfolded.has(kind), ontoggle: (event) => this.unfolded[event.target.open ? "add" : "delete"](kind) },
        html("summary", { id: `knobs-${kind.replaceAll(/\W+/g, "-")}` }, kind), ...of(kind));
    }), ...of("")];
  }

  setting(shell, { name, value, values }) {
    const own = name in this.changes;
    const [axis, group] = name.split(": ").reverse();
    // What is recomputed is on the button only where two of them recompute a selection.
    const alone = values.filter((one) => String(one.value).startsWith("sel")).length < 2;
    const shown = (one) => (axis !== "recompute" ? String(one) : alone ? recomputed(one).split(":")[0] : recomputed(one));
    const id = `knob-${name.replaceAll(/\W+/g, "-")}`;
    const head = (output) => [html("span", {}, group ? `${group}: ` : "", NAMES[axis] ?? axis), output];
    let control;
    if (name === "schedule") {
      const options = values.map((one) => html("option", { value: one.value, selected: one.value === value, disabled: Boolean(one.problem), title: one.problem?.what },
        one.problem ? `${one.value} (${one.problem.what})` : String(one.value)));
      control = [html("label", { for: id }, ...head(html("output", {}, String(value)))),
        html("select", { id, onchange: (event) => this.apply(shell, { schedule: event.target.value }) }, ...options)];
    } else {
      const buttons = values.map((one) => html("button", {
        type: "button", id: `${id}-${one.value}`, "aria-pressed": String(one.value === value), "aria-disabled": one.problem ? "true" : null,
        title: one.problem ? `${one.problem.what}: ${one.problem.why}` : axis === "recompute" && recomputed(one.value) !== shown(one.value) ? recomputed(one.value) : null,
        onclick: () => (one.problem ? this.refuse(shell, name, one.problem) : this.apply(shell, { [name]: one.value })),
      }, shown(one.value)));
      // One stop of the tab key for each setting; arrow keys go through its values.
      along(buttons, { first: Math.max(values.findIndex((one) => one.value === value), 0) });
      control = [html("div", { class: "label", id }, ...head(null)), html("div", { class: "choices", role: "toolbar", "aria-labelledby": id }, ...buttons)];
    }
    return html("div", { class: own ? "knob changed" : "knob" }, ...control, this.problemOf(name));
  }

  // A value that is not legal is not asked for: its reason is known.
  refuse(shell, name, problem) {
    this.failed = { failed: { problems: [{ ...problem, field: name }] }, touched: name };
    this.draw(shell);
  }

  slider(shell, { id, name, shown, values, at, change, own, field, below = null }) {
    const output = html("output", { for: id }, shown(values[at]));
    let place = at;
    const input = html("input", { type: "range", id, min: 0, max: values.length - 1, step: 1, value: at, "aria-valuetext": shown(values[at]),
      oninput: (event) => {
        const [before, value] = [place, values[place = Number(event.target.value)]];
        output.textContent = shown(value);
        event.target.setAttribute("aria-valuetext", shown(value));
        const next = onward(before, place, values.length - 1);
        this.pull(shell, change(value), { held: id, next: next === null ? null : change(values[next]) });
      },
      onchange: (event) => { this.dragging = null; this.apply(shell, change(values[Number(event.target.value)])); } });
    return html("div", { class: own ? "knob changed" : "knob" }, html("label", { for: id }, html("span", {}, sentence(name)), output), input, below, this.problemOf(field));
  }

  // While a slider is held the plan is priced, and what holds it, the panel or the view, stays under the pointer.
  // `next`: changes that it seems to come to next.
  pull(shell, changes, { held = shell.view.name, next = null } = {}) {
    Object.assign(this, { dragging: held, next });
    this.apply(shell, changes, { settled: false });
  }

  release(shell, changes) {
    this.dragging = null;
    this.apply(shell, changes);
  }

  workload(shell, knobs) {
    const { seq_len: length, global_batch: batch, expert_load: load, zipf } = knobs.workload;
    const lengths = near(length, Array.from({ length: 11 }, (_, at) => 1024 * 2 ** at));
    const base = shell.document.inputs.workload.global_batch ?? batch;
    const batches = near(batch, [-3, -2, -1, 0, 1, 2, 3].map((power) => base * 2 ** power).filter((one) => Number.isInteger(one)));
    const found = [
      this.slider(shell, { id: "knob-seq_len", name: "Sequence length", shown: whole, values: lengths, at: lengths.indexOf(length), change: (value) => ({ seq_len: value }), own: "seq_len" in this.changes, field: "seq_len" }),
      knobs.settings.length === 0 ? null : this.slider(shell, { id: "knob-global_batch", name: "Global batch", shown: whole, values: batches, at: batches.indexOf(batch), change: (value) => ({ global_batch: value }), own: "global_batch" in this.changes, field: "global_batch" }),
    ];
    if (!holdsExperts(shell.document)) return found;
    const own = "expert_load" in this.changes;
    const byExpert = html("button", { type: "button", class: "pick", onclick: () => shell.open("experts") }, "Edit by expert");
    if (load !== null) {
      const loads = near(load, Array.from({ length: 21 }, (_, at) => 1 + at / 10));
      found.push(this.slider(shell, { id: "knob-expert_load", name: "Fullest expert rank over mean", shown: (value) => `${significant(value)}×`, values: loads, at: loads.indexOf(load), change: (value) => ({ expert_load: value }), own, field: "expert_load", below: byExpert }));
    } else if (zipf !== null) {
      const laws = near(zipf, Array.from({ length: 26 }, (_, at) => at / 10));
      found.push(this.slider(shell, { id: "knob-expert_load", name: "Skew of experts (Zipf)", shown: significant, values: laws, at: laws.indexOf(zipf), change: (value) => ({ expert_load: `zipf:${value}` }), own, field: "expert_load", below: byExpert }));
    } else found.push(html("div", { class: own ? "knob changed" : "knob" }, html("div", { class: "label" }, html("span", {}, "Load of experts"), html("output", {}, "counted")), byExpert, this.problemOf("expert_load")));
    return found;
  }

  // kind: of device; null for all.
  numbers(shell, kind) {
    const factors = Array.from({ length: 4 * STEPS_PER_OCTAVE + 1 }, (_, at) => 2 ** (at / STEPS_PER_OCTAVE - 2));
    return (this.quantities ?? []).filter(({ name }) => kind === null || kindOf(name) === kind).map((one) => {
      const now = this.changes.numbers?.[one.name] ?? 1;
      const at = factors.reduce((best, factor, place) => (Math.abs(Math.log(factor / now)) < Math.abs(Math.log(factors[best] / now)) ? place : best), 0);
      const own = one.name in (this.changes.numbers ?? {});
      return this.slider(shell, {
        id: `knob-${one.name.replaceAll(/\W+/g, "-")}`, name: one.name, values: factors, at, own, field: one.name,
        shown: (factor) => quantity(one, factor), change: (factor) => ({ numbers: { [one.name]: Math.abs(factor - 1) < 1e-9 ? null : factor } }),
      });
    });
  }

  price_(shell, knobs) {
    const kinds = Object.entries(knobs.prices);
    const stated = typeof this.changes.price === "object" ? this.changes.price : {};
    const change = (kind, text) => {
      if (kinds.length === 1) return this.apply(shell, { price: text === "" ? null : Number(text) });
      const price = { ...stated, [kind]: Number(text) };
      if (text === "") delete price[kind];
      return this.apply(shell, { price: Object.keys(price).length ? price : null });
    };
    const field = ([kind, usd], at) => {
      const id = at ? `knob-price-${at}` : "knob-price";
      const name = kinds.length === 1 ? "USD per GPU and hour" : `${kind}: USD per GPU and hour`;
      return [html("label", { for: id }, html("span", {}, name)),
        html("input", { id, type: "number", min: 0, step: "0.1", class: "button", style: { width: "100%" }, value: usd ?? "", placeholder: "not said", onchange: (event) => change(kind, event.target.value) })];
    };
    return html("div", { class: "price" in this.changes ? "knob changed" : "knob" }, ...kinds.flatMap(field), this.problemOf("price"));
  }

  tools(shell) {
    const kept = this.kept(shell).length;
    return [
      html("button", { type: "button", class: "button", disabled: !this.depth, onclick: () => this.undo() }, "Undo"),
      html("button", { type: "button", class: "button", disabled: kept >= MOST_COMPARED - 1, title: "Keep this plan beside others in Compare", onclick: () => this.keep(shell) }, kept ? `Keep (${kept})` : "Keep"),
      html("button", { type: "button", class: "button", onclick: () => this.download(shell) }, "Plan file"),
      html("button", { type: "button", class: "button first", onclick: () => this.form(shell) }, "New question"),
    ];
  }

  async download(shell) {
    handed(await this.post("plan-file", this.question(shell)), "plan.json", "application/json");
  }

  // One step of the plan as a file: `svg` for papers, `chrome` for Perfetto and chrome://tracing.
  async save(shell, form) {
    const [name, type] = { svg: ["timeline.svg", "image/svg+xml"], chrome: ["trace.json", "application/json"] }[form];
    handed(await this.post("trace", this.question(shell, { form })), name, type);
  }

  hand(text, name, type) { handed(text, name, type); }

  kept(shell) {
    try {
      return JSON.parse(shell.address.get("kept") ?? "[]");
    } catch {
      return [];
    }
  }

  keep(shell) {
    const { answer, plan, changes } = this.question(shell);
    shell.address.set("kept", JSON.stringify([...this.kept(shell), { answer, plan, changes }].slice(0, MOST_COMPARED - 1)), { enters: true });
    shell.draw();
  }

  // The plan on show, and those that were kept; without any the best others of the answer.
  async compared(shell) {
    const own = this.question(shell);
    let others = this.kept(shell).filter((one) => JSON.stringify(one) !== JSON.stringify({ answer: own.answer, plan: own.plan, changes: own.changes }));
    if (!others.length && this.changed) others = [{ ...own, changes: {} }];
    else if (!others.length) others = shell.document.plans.map((_, plan) => ({ answer: own.answer, plan, changes: {} })).filter((one) => one.plan !== own.plan);
    return Promise.all([own, ...others.slice(0, MOST_COMPARED - 1)].map(async (one) => {
      const [priced, data] = await Promise.all([this.post("what-if", one), this.post("view", { ...one, name: "compare" })]);
      // Plans of one answer whose one line is the same are told apart in the answer alone.
      const told = one.answer === this.answer && !Object.keys(one.changes).length ? shell.document.plans[one.plan]?.title : null;
      return { title: told ?? priced.entry.title, entry: priced.entry, settings: data.settings, training: data.training, targets: data.targets, timeline: () => this.post("view", { ...one, name: "timeline" }), files: (target) => this.post("export", { ...one, target }) };
    }));
  }

  // Another question: the fields of `plan`, a search behind the page, its answer in place of this one.
  async form(shell, { fields = null, failed = null } = {}) {
    await this.asksOf();
    const asked = fields ?? JSON.parse(shell.address.get("ask") ?? "null") ?? shell.given.asked;
    const row = (one) => {
      const id = `ask-${one.name}`;
      const own = failed?.problems?.filter((problem) => [one.name, one.spelled].includes(ASKED_AS[problem.field] ?? problem.field)) ?? [];
      const value = asked[one.name] ?? "";
      const choice = one.choices && html("select", { id, name: one.name }, html("option", { value: "" }, ""), ...one.choices.map((name) => html("option", { value: name, selected: name === value }, name)));
      const input = one.flag ? html("input", { id, name: one.name, type: "checkbox", checked: Boolean(value), style: { width: "auto" } })
        : choice || html("input", { id, name: one.name, value, placeholder: one.placeholder, autocomplete: "off", spellcheck: "false", list: one.name === "model" ? "models" : null });
      return html("div", { class: "field" }, html("label", { for: id }, html("b", {}, one.spelled), " ", html("span", { class: "muted" }, coded(one.help))), input, ...(own.length ? problems({ ...failed, problems: own }) : []));
    };
    const usual = this.asks.fields.filter((one) => !one.rare);
    const rare = this.asks.fields.filter((one) => one.rare);
    const names = new Set(this.asks.fields.flatMap((one) => [one.name, one.spelled]));
    const rest = failed ? { ...failed, problems: (failed.problems ?? [failed]).filter((one) => !names.has(ASKED_AS[one.field] ?? one.field)) } : null;
    const dialog = html("dialog", { "aria-label": "New question", onclose: () => dialog.remove() },
      html("form", { method: "dialog", onsubmit: (event) => {
        event.preventDefault();
        const found = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value !== "").map(([name, value]) => [name, value === "on" ? true : value]));
        dialog.close();
        this.ask(shell, found);
      } },
      html("h2", { style: { "margin-bottom": "10px" } }, "New question"),
      html("datalist", { id: "models" }, ...this.asks.models.map((name) => html("option", { value: name }))),
      ...(rest?.problems.length ? problems(rest) : []), this.offers(shell, asked, failed, () => dialog.close()), ...usual.map(row),
      html("details", { open: rare.some((one) => asked[one.name]) }, html("summary", {}, "More"), ...rare.map(row)),
      html("div", { class: "actions" }, html("button", { type: "submit", class: "button first" }, "Search"), html("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Leave"))));
    document.body.append(dialog);
    dialog.showModal();
  }

  // What a form may ask, known from the first form on.
  async asksOf() { this.asks ??= await this.post("fields", {}); }

  // What would fit, as questions that a click asks; null without any.
  offers(shell, asked, failed, close = () => {}) {
    const found = this.asks ? (failed?.repairs ?? []).map((one) => ({ ...one, fields: this.fieldsOf(one.option) })).filter((one) => one.fields) : [];
    if (!found.length) return null;
    return html("ul", { class: "chips", "aria-label": "What would fit" }, ...found.map((one) => html("li", {}, html("button", { type: "button", class: "chip", onclick: () => { close(); this.ask(shell, { ...asked, ...one.fields }); } },
      html("b", {}, "Ask with ", html("code", {}, one.option)), " ", html("span", {}, `${one.text}: ${seconds(one.step_time_s)}, ${ofCapacity(one.peak_memory_bytes, one.capacity_bytes)}${one.changes_training ? ", changes the training" : ""}`)))));
  }

  // Options as they are typed, by fields of the form; null where it has not all of them.
  fieldsOf(option) {
    const fields = {};
    for (const part of ` ${option}`.split(" --").slice(1)) {
      const [spelled, ...value] = part.trim().split(" ");
      const own = this.asks.fields.find((one) => one.spelled === `--${spelled}`);
      if (!own || own.name in fields) return null;
      fields[own.name] = value.length ? value.join(" ") : true;
    }
    return Object.keys(fields).length ? fields : null;
  }

  async ask(shell, fields) {
    let search;
    try {
      search = await this.post("searches", { fields });
    } catch (failed) {
      return this.form(shell, { fields, failed });
    }
    document.querySelector("p.panel.because")?.remove();
    if (search.answer) return this.show(shell, search.answer, fields);
    const bar = html("div", { class: "panel progress", role: "status", style: { padding: "12px 16px", "margin-bottom": "16px" } });
    shell.parts.verdict.before(bar);
    const stop = html("button", { type: "button", class: "button", onclick: () => fetch(`searches/${search.search}`, { method: "DELETE" }) }, "Cancel");
    const [said, moving] = [html("span", {}), html("progress", { "aria-label": "Search" })];
    bar.append(html("code", {}, search.command), html("div", {}, said), moving, html("div", { class: "actions" }, stop));
    let state = { state: "searching" };
    while (state.state === "searching") {
      await new Promise((done) => setTimeout(done, 150));
      state = await fetch(`searches/${search.search}`).catch((failed) => { throw unheard(failed); }).then((answer) => this.read(answer)).catch((failed) => ({ state: "failed", error: failed }));
      const { space, decided, share, left_s: left, best, best_s: time } = state.progress ?? {};
      const far = share === undefined ? "" : `; ${percent(share)}, ${count(decided)} of ${count(space)} plans decided${left > 1 ? `, about ${seconds(left)} more` : ""}`;
      if (share !== undefined) moving.value = share;
      said.textContent = `searching, ${significant(state.elapsed_s ?? 0, 2)} s${far}${best ? `; quickest so far ${best}, ${seconds(time)}` : ""}`;
    }
    bar.remove();
    if (state.state === "done") return this.show(shell, state.answer, fields);
    if (state.state === "failed") return this.form(shell, { fields, failed: state.error });
    const best = state.progress?.best;
    if (best) shell.parts.verdict.before(html("p", { class: "panel because", role: "status", style: { padding: "8px 16px" } }, "Cancelled; the quickest so far was ", html("code", {}, best), `, ${seconds(state.progress.best_s)}.`));
    return null;
  }

  async show(shell, answer, fields) {
    const found = await this.post("page", { answer });
    Object.assign(this, { answer, changes: {}, quantities: null, depth: 0 });
    Object.assign(shell, { given: found, document: found.document, index: 0, changed: null });
    shell.address.set("plan", null);
    shell.address.set("changes", null);
    shell.address.set("ask", fields ? JSON.stringify(fields) : null);
    shell.address.set("answer", answer, { enters: true });
    shell.foot();
    await this.price(shell, { first: true });
  }

  // A link of another start of the server holds the question itself.
  async open(shell, answer, ask) {
    try {
      const found = await this.post("page", { answer });
      Object.assign(this, { answer, quantities: null });
      Object.assign(shell, { given: found, document: found.document });
      shell.index = shell.placeOf(shell.address.get("plan"));
      shell.foot();
    } catch {
      if (ask) await this.ask(shell, JSON.parse(ask));
    }
  }
}

// What is said where no answer came: the server has ended, or something else answers in its place.
const unheard = (failed) => Object.assign(new Error("the server of this page does not answer"), {
  problems: [{ what: "the server of this page does not answer", why: String(failed?.message ?? failed), fix: "start `meshwright web` again: its page takes what stands in this address behind #" }],
});

// How often something was done, on the root element: what else watches the page sees when it is done.
function counted(what) {
  const { dataset } = document.documentElement;
  dataset[what] = String(Number(dataset[what] ?? 0) + 1);
}

// Done behind the next painting.
const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

// A text as a file that the browser keeps.
function handed(text, name, type) {
  const link = html("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const whole = (value) => value.toLocaleString("en-US");

// Where a slider goes next: on where it moves by single positions, from an end to the only one beside it; null where
// nothing tells.
const onward = (before, at, last) => (last < 1 ? null : at === 0 ? 1 : at === last ? last - 1 : Math.abs(at - before) === 1 ? 2 * at - before : null);

const near = (own, values) => [...new Set([...values, own])].sort((a, b) => a - b);

function quantity({ value, unit }, factor) {
  const now = value * factor;
  const changed = Math.abs(factor - 1) < 1e-9 ? "" : ` (×${significant(factor)})`;
  if (unit === "share") return `${percent(Math.min(now, 1))} of peak${changed}`;
  return (unit === "B/s" ? rate(now) : bytes(now)) + changed;
}
