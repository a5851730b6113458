"""What Megatron-LM's options say of a model's shape, in words to compare with a model's own."""

from __future__ import annotations

import re
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.megatron.deepspeed import pyramid
from meshwright.formats.megatron.options import Values
from meshwright.formats.megatron.settings import read_constants
from meshwright.specs.model import MOST_LAYERS


def read_pattern(text: str, layers: int) -> list[bool] | None:
    """One entry a layer of `([0]*3+[1]*58)`, or of N: every N-th layer; None where it is neither."""
    plain = re.sub(r"\s+", "", text)
    if re.fullmatch(r"\d{1,6}", plain):
        every = int(plain)
        # Megatron-LM's layer i has experts where i mod N = 0, counting from 0.
        return [index % every == 0 for index in range(layers)] if every else None
    factor = re.fullmatch(r"\((.+)\)\*(\d{1,5})", plain)
    body, repeats = (factor[1], int(factor[2])) if factor else (plain.removeprefix("("), 1)
    body = body.removesuffix(")")
    found: list[bool] = []
    for term in body.split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?", term)
        if not match:
            return None
        found += [entry == "1" for entry in match[1].split(",")] * int(match[2] or 1)
    found *= repeats
    return found if len(found) == layers else None


def read_facts(values: Values) -> tuple[dict[str, Any], list[Problem]]:
    """What options say of the model's shape, defaults filled in where the size of the model is given."""
    layers, hidden, heads = (values.whole(flag) for flag in ("--num-layers", "--hidden-size", "--num-attention-heads"))
    sizes = {"--num-layers", "--hidden-size", "--num-attention-heads"}
    if sizes & values.hidden.keys():
        return read_vocabulary(values), []
    if not (layers > 0 and hidden > 0 and heads > 0):
        missing = [flag for flag in ("--num-layers", "--hidden-size", "--num-attention-heads") if not values.has(flag)]
        why = f"the model's shape is not said without {', '.join(missing)}" if missing else "sizes are at least 1"
        return {}, [Problem(what="no model in the options", why=why)] if not missing else []
    if layers > MOST_LAYERS:
        what, why = f"--num-layers is {layers:,}", f"at most {MOST_LAYERS:,} are planned"
        return {}, [Problem(what=what, why=why, fix="say how many it has", field="--num-layers")]
    gated = values.has("--swiglu") or values.has("--quick-geglu")
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    linear = not values.has("--disable-bias-linear")
    facts: dict[str, Any] = {
        "num_layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": values.whole("--ffn-hidden-size", usual),
        "norm": "rmsnorm" if values.text("--normalization", "LayerNorm") == "RMSNorm" else "layernorm",
        "gated": gated,
        "biases": (linear or values.has("--add-qkv-bias"), linear, linear),
        "tied_embeddings": not values.has("--untie-embeddings-and-output-weights"),
        "mtp_layers": values.whole("--mtp-num-layers"),
        "dropout": values.number("--hidden-dropout", 0.1) > 0 or values.number("--attention-dropout", 0.1) > 0,
        "learned_positions": values.text("--position-embedding-type", "learned_absolute") == "learned_absolute"
        and not values.has("--use-rotary-position-embeddings"),
        **read_constants(values),
        **read_vocabulary(values),
    }
    facts["max_positions"] = values.whole("--max-position-embeddings") or values.whole("--seq-length", 1024)
    problems: list[Problem] = []
    if values.has("--num-experts"):
        facts |= {
            "experts": values.whole("--num-experts"),
            "top_k": values.whole("--moe-router-topk", 2),
            "expert_ffn_hidden": values.whole("--moe-ffn-hidden-size", facts["ffn_hidden"]),
            "shared_ffn_hidden": values.whole("--moe-shared-expert-intermediate-size"),
            "router_groups": (values.whole("--moe-router-num-groups"), values.whole("--moe-router-group-topk")),
            "shared_gate": values.has("--moe-shared-expert-gate"),
            "residual": False,
            "moe_layers": _layer_pattern(values, "--moe-layer-freq", layers, problems) or [True] * layers,
        } | (pyramid(values) if values.has("--deepspeed") else {})
        if facts.get("residual"):
            facts["shared_ffn_hidden"] = facts["expert_ffn_hidden"]
        if all(facts["moe_layers"]):
            facts["ffn_hidden"] = facts["expert_ffn_hidden"]  # no layer has the width that is stated
    if values.has("--multi-latent-attention"):
        return facts | {
            "q_rank": values.whole("--q-lora-rank") or None,
            "kv_rank": values.whole("--kv-lora-rank", 32),
            "nope_dim": values.whole("--qk-head-dim", 128),
            "rope_dim": values.whole("--qk-pos-emb-head-dim", 64),
            "value_dim": values.whole("--v-head-dim", 128),
        }, problems
    grouped = values.has("--group-query-attention") or _shared(values, problems)
    return facts | {
        "kv_heads": values.whole("--num-query-groups", 1) if grouped else heads,
        "head_dim": values.whole("--kv-channels", hidden // heads),
        "qk_norm": values.has("--qk-layernorm"),
        "output_gate": values.has("--attention-output-gate"),
        "sinks": values.text("--softmax-type") == "learnable",
        "windows": _windows(values, layers, problems),
    }, problems


def _shared(values: Values, problems: list[Problem]) -> bool:
    """Whether all heads share one key and value, as BigCode's fork says it.

    Source: --attention-head-type of megatron/arguments.py, bigcode-project/Megatron-LM (2023).
    """
    flag = "--attention-head-type"
    kind = values.text(flag, "multihead") if values.has(flag) else "multihead"
    if kind not in ("multihead", "multiquery"):
        problems.append(Problem(what=f"{flag} is {kind}", why="must be multihead or multiquery", field=flag))
    return kind == "multiquery"


def read_vocabulary(values: Values) -> dict[str, Any]:
    """What options say of the vocabulary, whether they say the sizes or not."""
    said = next((flag for flag in ("--vocab-size", "--padded-vocab-size") if values.has(flag)), None)
    vocab = {} if said is None else {"vocab": values.whole(said)}
    place = "--tokenizer-model"  # what is not known of it is no question: only the vocabulary counts
    return vocab | {
        "tokenizer": (values.text("--tokenizer-type"), "" if place in values.hidden else values.text(place))
    }


def _layer_pattern(values: Values, flag: str, layers: int, problems: list[Problem]) -> list[bool] | None:
    if not values.has(flag):
        return None
    pattern = read_pattern(values.text(flag), layers)
    if pattern is None:
        why = f"must be a number, or one 0 or 1 for each of the {layers} layers such as ([0]*3+[1]*{layers - 3})"
        problems.append(Problem(what=f"{flag} is {values.text(flag)!r}", why=why, field=flag))
    return pattern


def _windows(values: Values, layers: int, problems: list[Problem]) -> list[int | None]:
    flag = "--window-size"
    if not values.has(flag):
        return [None] * layers
    match = re.fullmatch(r"\(?(\d{1,9}),0\)?", values.text(flag).replace(" ", ""))
    if not match:
        why = "must be the keys before the query and 0 after it, such as 127,0"
        problems.append(Problem(what=f"{flag} is {values.text(flag)!r}", why=why, field=flag))
        return [None] * layers
    width = int(match[1]) + 1
    skip = values.text("--window-attn-skip-freq")
    if skip.isdecimal() and len(skip) < 7 and int(skip):
        # Every N-th layer, counting from 1, attends to everything.
        return [None if number % int(skip) == 0 else width for number in range(1, layers + 1)]
    pattern = _layer_pattern(values, "--window-attn-skip-freq", layers, problems) or [True] * layers
    return [width if held else None for held in pattern]
