import { changesShown } from "page/differing.js";
import { coded, html } from "page/svg.js";

export const view = {
  name: "export",
  title: "Export",
  lede: "The files that start a framework with the plan on show, with what is changed of it. Where the framework cannot express the plan, it says what and what to do instead.",
  draw(root, data, page) {
    const shown = html("div", { "aria-live": "polite" });
    const [runs, others] = [data.runs, data.targets.filter((name) => !data.runs.includes(name))];
    const first = runs[0] ?? others[0];
    const own = data.targets.includes(page.get("to")) ? page.get("to") : first;
    const options = (label, names) => (names.length ? html("optgroup", { label }, ...names.map((name) => html("option", { value: name, selected: name === own }, name))) : null);
    const choice = html("select", { class: "button", id: "export-to", onchange: (event) => { page.set("to", event.target.value === first ? null : event.target.value); write(event.target.value); } },
      options("run this plan", runs), options("cannot express it", others));
    root.append(html("div", { class: "toolbar" }, html("label", { for: "export-to" }, "Framework"), choice), shown);
    let turn = 0;
    return write(own);

    async function write(target) {
      const now = ++turn;
      shown.setAttribute("aria-busy", "true");
      const [found, before] = await Promise.all([asked(page, { target }), page.ghost ? asked(page, { target, changes: {} }) : null]);
      if (now !== turn) return;
      shown.removeAttribute("aria-busy");
      shown.replaceChildren(...(found.failed ? [...page.problems(found.failed), html("p", {}, html("button", { type: "button", class: "button", onclick: () => page.search({ target }) }, `Search the best plan that ${target} runs`))] : written(found, before?.failed ? null : before, page)));
    }
  },
};

const PLAN = "plan.json";
const asked = (page, more) => page.post("export", more).catch((failed) => ({ failed }));

function written(found, before, page) {
  const said = [...found.warnings.map((line) => html("p", { class: "because warn" }, "warning: ", coded(line))), ...found.notes.map((line) => html("p", { class: "muted" }, coded(line)))];
  const start = found.start ? [html("p", {}, "Start it with ", html("code", {}, found.start))] : [];
  // The plan itself is beside what starts it, and longer.
  const files = [...found.files].sort((a, b) => (a.name === PLAN) - (b.name === PLAN));
  return [...start, ...said, ...files.map(({ name, content }) => {
    const old = before?.files.find((one) => one.name === name);
    const changed = old ? changesShown(old.content, content, `${name}: what the change changes`) : null;
    const whole = html("pre", { class: "file", tabindex: "0", role: "region", "aria-label": name }, content);
    return html("section", { style: { "margin-top": "14px" } },
      html("div", { class: "toolbar" }, html("h2", {}, html("code", {}, name)), html("button", { type: "button", class: "button", "aria-label": `Save ${name}`, onclick: () => page.hand(content, name.split("/").at(-1), "text/plain") }, "Save"),
        html("button", { type: "button", class: "button", "aria-label": `Copy ${name}`, onclick: (event) => copy(content, event.target) }, "Copy")),
      !before ? (name === PLAN ? html("details", { class: "behind" }, html("summary", {}, "All of it"), whole) : whole) : [changed ? [html("p", { class: "muted" }, "What the change changes:"), changed] : html("p", { class: "muted" }, "The change changes nothing here."), html("details", { class: "behind" }, html("summary", {}, "All of it"), whole)]);
  })];
}

async function copy(text, button) {
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
