// What the words of a plan's one line say, in the words of the glossary.

// Patterns of a whole word; $1 is what stands behind its name.
const WORDS = [
  [/^tp(\d+)(?:[d-].*)?$/, "tpN", "tensor parallel: the matrices of a layer are cut over $1 ranks"],
  [/^cp(\d+)(?:-.*)?$/, "cpN", "context parallel: each sequence is cut over $1 ranks"],
  [/^pp(\d+)$/, "ppN", "pipeline parallel: $1 stages of consecutive layers"],
  [/^vpp(\d+)$/, "vppN", "$1 chunks of layers per stage"],
  [/^interleaved-group(\d+)$/, "interleaved-groupN", "each chunk runs $1 micro-batches before the next one runs them"],
  [/^ep(\d+)$/, "epN", "expert parallel: the experts of a layer are on $1 ranks"],
  [/^etp(\d+)$/, "etpN", "the matrices of one expert are cut over $1 ranks"],
  [/^dp(\d+)$/, "dpN", "data parallel: $1 replicas with other sequences"],
  [/^mbs(\d+)$/, "mbsN", "$1 sequences per micro-batch"],
  [/^gbs(\d+)$/, "gbsN", "$1 sequences per step"],
  [/^z0$/, "z0", "weights, gradients and optimizer states whole on every data rank"],
  [/^z1(?:in(\d+))?$/, "z1", "ZeRO-1: optimizer states sharded over the data ranks"],
  [/^z2$/, "z2", "ZeRO-2: optimizer states and gradients sharded"],
  [/^z3$/, "z3", "ZeRO-3: optimizer states, gradients and weights sharded"],
  [/^fsdp$/, "fsdp", "FSDP: all states sharded, weights gathered anew for backward"],
  [/^fsdp-keep$/, "fsdp-keep", "FSDP: all states sharded, gathered weights kept until backward"],
  [/^hsdp(?:-keep)?(\d+)$/, "hsdpN", "FSDP inside groups of $1 ranks, replicated between them"],
  [/^rc-none$/, "rc-none", "nothing is recomputed"],
  [/^rc-sel$/, "rc-sel", "attention is recomputed in backward"],
  [/^rc-sel-(.+)$/, "rc-sel-...", "the named modules are recomputed in backward: $1"],
  [/^rc-full$/, "rc-full", "every layer is recomputed in backward"],
  [/^rc-block(\d+)$/, "rc-blockN", "$1 layers of each chunk are recomputed in backward"],
  [/^rc-uni(\d+)$/, "rc-uniN", "every layer is recomputed, in groups of $1"],
  [/^off-o(-.*)?$/, "off-o", "optimizer states in host memory"],
  [/^off-og(-.*)?$/, "off-og", "optimizer states and gradients in host memory"],
  [/^off-([waog]+)(-.*)?$/, "off-...", "in host memory: w weights, a activations, o optimizer states, g gradients"],
  [/^tpov$/, "tpov", "exchanges of tensor ranks run beside the products they feed"],
  [/^tpov-halves$/, "tpov-halves", "exchanges of one half of a micro-batch run beside the layer's work on the other (Domino)"],
  [/^nosp$/, "nosp", "without sequence parallelism: norms are whole on every tensor rank"],
  [/^nodpov$/, "nodpov", "gradients are exchanged after backward, not beside it"],
  [/^epdedup$/, "epdedup", "a token is sent once to a node and once to a rank there"],
  [/^epag$/, "epag", "every rank gathers all tokens"],
  [/^ep2h$/, "ep2h", "tokens are exchanged inside nodes first, then between them"],
  [/^epmove$/, "epmove", "experts are sent to the tokens"],
  [/^epov$/, "epov", "expert exchanges run beside another micro-batch"],
  [/^epov-wgrad$/, "epov-wgrad", "expert exchanges run beside another micro-batch and delayed weight gradients"],
  [/^epov-shared$/, "epov-shared", "expert exchanges run beside the shared experts"],
  [/^prefetch(\d+)$/, "prefetchN", "weights of $1 layers are gathered ahead of the one at work"],
  [/^tile(\d+)$/, "tileN", "the optimizer updates $1 numbers at a time"],
];

// [word, what it says] of a word; null for the name of a schedule and what else says itself. `named` leaves its number open.
export function spelled(word, { named = false } = {}) {
  for (const [pattern, name, text] of WORDS) {
    const found = pattern.exec(word);
    if (found) return named ? [name, text.replace(": $1", "").replace("$1", "N")] : [word, text.replace("$1", Number(found[1]) ? Number(found[1]).toLocaleString("en-US") : (found[1] ?? "").replaceAll("-", ", "))];
  }
  return null;
}

// A plan's line, word by word.
export const spelledLine = (title) => title.split(".").map((word) => spelled(word)).filter(Boolean);

// The words in changes such as `rc-none -> rc-full` that are no plain degree, each once.
export function wordsOf(changes) {
  const found = new Map();
  for (const word of changes.join(" ").split(/[\s(),]+/)) {
    const said = /\d$/.test(word) && !/^(rc-|hsdp|tile|interleaved|z\d)/.test(word) ? null : spelled(word, { named: true });
    if (said) found.set(...said);
  }
  return [...found];
}
