// Colours by what they stand for. The values are variables of CSS, so that light, dark and print share every drawing.

const dashed = (name) => String(name).replaceAll("_", "-");

export const part = (name) => `var(--part-${dashed(name)}, var(--muted))`;
export const memory = (name) => `var(--memory-${dashed(name)}, var(--muted))`;
export const task = (kind) => `var(--task-${dashed(kind)}, var(--muted))`;
export const span = (lane) => `var(--span-${dashed(lane)}, var(--muted))`;

// Plans that stand side by side.
export const series = (at) => `var(--series-${(at % 4) + 1})`;

// Stages: of one lightness, so that none stands out; those that follow each other are far apart in hue, by the golden angle.
export const stage = (at, of) => `oklch(74% 0.105 ${Math.round(of > 6 ? 245 + 137.5 * at : 245 + (360 * at) / Math.max(of, 1)) % 360})`;

// What a variable is at this moment, for canvas: "var(--ink)" gives "rgb(26, 29, 33)". It is looked up once a theme.
const known = new Map();
let knownOf = null;
export function computed(colour) {
  const theme = `${document.documentElement.dataset.theme ?? ""} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (theme !== knownOf) known.clear();
  knownOf = theme;
  if (!known.has(colour)) known.set(colour, looked(colour));
  return known.get(colour);
}

function looked(colour) {
  const probe = document.createElement("span");
  probe.style.color = colour;
  probe.hidden = true;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export const PARTS = {
  compute: "compute", recompute: "recompute", bubble: "pipeline bubble", tp: "tensor parallel", cp: "context parallel",
  ep: "expert parallel", pp: "pipeline transfers", dp: "data parallel", optimizer: "optimizer", offload: "offload", host: "host",
};
export const MEMORY = {
  weights: "weights", gradients: "gradients", optimizer: "optimizer states", activations: "activations",
  transient: "working memory", comm_buffers: "communication buffers", overhead: "context and reserve",
};
export const TASKS = {
  F: "forward", B: "backward", I: "input gradient", W: "weight gradient", R: "recompute", X: "redundant forward", OPT: "optimizer",
};
