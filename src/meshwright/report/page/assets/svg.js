// Elements of HTML and SVG made in one call. Text is set as text, never parsed.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

// html("p", { class: "note" }, "text", html("b", {}, "more"))
export const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A drawing that scales with its box and has a name for those who do not see it.
export const drawing = (width, height, label, ...children) =>
  svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "drawing" }, ...children);

// Pixels that a drawing of the view may be wide, for those drawn as wide as their place: their words keep their size.
export const roomOf = (most) => Math.min(Math.max((document.getElementById("view")?.clientWidth ?? most) - 40, 300), most);

// The one-line form of a plan, which breaks behind its dots where it has no room.
export const dotted = (title) => title.split(/(?<=\.)/).flatMap((part, at) => (at ? [html("wbr"), part] : [part]));

// A canvas of a picture that is gone, or a new one: pixels take longer to make than to fill. `kind` is its class.
const [canvases, MOST_CANVASES] = [[], 12];
export function canvasOf(kind) {
  const gone = canvases.findIndex((one) => one.className === kind && one.wasSeen && !one.isConnected);
  const [found] = gone < 0 ? [html("canvas", { class: kind, "aria-hidden": "true" })] : canvases.splice(gone, 1);
  found.wasSeen = false;
  canvases.push(found);
  if (canvases.length > MOST_CANVASES) canvases.shift();
  return found;
}

// To be said of a canvas that is drawn on: one that is not in the page yet is no other picture's.
export const seen = (canvas) => { canvas.wasSeen ||= canvas.isConnected; };

// Words of the command line: what stands between backticks is code.
export const coded = (text) => text.split("`").map((part, at) => (at % 2 ? html("code", {}, part) : part));
