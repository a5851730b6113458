"""The shape of a model as Megatron-LM options, and the shape that options describe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from meshwright.errors import Problem
from meshwright.formats.megatron.settings import OWN_CONFIG, settings_facts, settings_flags
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerSpec, ModelSpec

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Flags

# Fields of parts that options say, or that have a refusal of their own; what any other holds must be its default.
_SAID: dict[type, tuple[str, ...]] = {
    Attention: (
        *("kind", "heads", "kv_heads", "head_dim", "window", "causal", "qkv_bias", "out_bias", "qk_norm", "gate"),
        *("sinks", "qk_scales"),
    ),
    LatentAttention: ("kind", "heads", "q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim", "causal"),
    DenseMlp: ("kind", "ffn_hidden", "gated", "bias"),
    MoeMlp: (
        *("kind", "experts", "top_k", "ffn_hidden", "gated", "shared_ffn_hidden", "shared_gate", "router_bias", "bias"),
        *("groups", "groups_per_token"),
    ),
    LayerSpec: ("attention", "mlp", "norm", "norms", "parallel_block", "dropout", "residuals", "block_layers", "wide"),
}
_UNSAID = {
    "indexer": "queries attend to all keys, or to a window of them",
    "null_experts": "every expert computes",
    "latent": "experts work in the width of the stream",
    "latent_norms": "latents have norms",
    "residual_blocks": "a part adds to its input, and sees no earlier blocks of layers",
    "relu": "MLPs without a gate have GELU or squared ReLU",
}
"""What options make of a part instead, where there is more to say than that no option says it."""
VOCAB_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this times the tensor ranks, unless `--make-vocab-size-divisible-by` says
another."""


def _refusal(name: str, value: object, why: str, fix: str = "") -> Problem:
    shown = value if value == "given" else repr(value)
    return Problem(what=f"model: {name} is {shown}", why=why, fix=fix, field=f"model.{name}")


def model_flags(model: ModelSpec) -> tuple[Flags, list[str], list[Problem]]:
    """Options for a model's shape, what to know about them, and what no option says."""
    beside = model.beside_decoder
    if beside:
        why = "the GPT model is a stack of causal layers over text"
        return [], [], [_refusal("model", what, why) for what in beside]
    unknown = _unknown_kinds(model)
    if unknown:
        why = "layers are grouped or latent attention with dense or MoE MLPs"
        return [], [], [_refusal("layers", unknown, why)]
    problems = list(_inexpressible(model))
    layer = model.layers().__next__()
    flags: Flags = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden)),
        ("--num-attention-heads", str(_mixer(layer).heads)),
        *_mlp_flags(model),
        *_attention_flags(model, layer),
        ("--normalization", "RMSNorm" if layer.norm == "rmsnorm" else "LayerNorm"),
        *_bias_flags(layer),
    ]
    gated = any(_mlp(kind).gated for kind in model.kinds())
    constants, more = settings_flags(model, gated=gated)
    problems += more
    flags += constants
    if not model.tied_embeddings:
        flags.append(("--untie-embeddings-and-output-weights", ""))
    if not any(kind.dropout for kind in model.kinds()):
        flags += [("--hidden-dropout", "0.0"), ("--attention-dropout", "0.0")]
    flags.append(("--position-embedding-type", "learned_absolute" if model.learned_positions else "rope"))
    flags += _wide_flags(model)
    if model.mtp_layers:
        flags.append(("--mtp-num-layers", str(model.mtp_layers)))
    notes: list[str] = []
    return flags, notes, problems


def _wide_ends(model: ModelSpec) -> tuple[int, int]:
    """How many of the first and of the last layers compute in 16 bits."""
    wide = [layer.wide for layer in model.layers()]
    first, last = (next((n for n, one in enumerate(order) if not one), 0) for order in (wide, wide[::-1]))
    return first, last


def _wide_flags(model: ModelSpec) -> Flags:
    first, last = _wide_ends(model)
    if not first and not last:
        return []
    sides = [(f"--num-layers-at-{side}-in-bf16", str(count)) for side, count in (("start", first), ("end", last))]
    return [("--first-last-layers-bf16", ""), *sides]


def _unknown_kinds(model: ModelSpec) -> list[str]:
    """Kinds of layer parts that have no options."""
    known = (Attention, LatentAttention, DenseMlp, MoeMlp)
    return sorted(
        {part.kind for kind in model.kinds() for part in (kind.attention, kind.mlp) if type(part) not in known}
    )


def _mixer(layer: LayerSpec) -> Attention | LatentAttention:
    """The mixer of a layer whose kinds are known."""
    assert isinstance(layer.attention, (Attention, LatentAttention))
    return layer.attention


def _mlp(layer: LayerSpec) -> DenseMlp | MoeMlp:
    """The MLP of a layer whose kinds are known."""
    assert isinstance(layer.mlp, (DenseMlp, MoeMlp))
    return layer.mlp


def _inexpressible(model: ModelSpec) -> Iterator[Problem]:
    """Parts of the shape that no option says."""
    yield from _unlike_layers(model)
    yield from dict.fromkeys(problem for kind in model.kinds() for problem in _inexpressible_layer(kind))
    if model.mtp_layer is not None:
        yield _refusal("mtp_layer", model.mtp_layer.attention.kind, "prediction modules are like the last layer")
    if sum(layer.wide for layer in model.layers()) != sum(_wide_ends(model)):
        yield _refusal("wide", True, "layers in 16 bits are the first and the last ones")
    if model.embedding_norm:
        yield _refusal("embedding_norm", True, "there is no norm after the embedding")
    if model.head_bias:
        yield _refusal("head_bias", True, "the head has no bias")
    if model.final_norm != (norm := model.kinds()[0].norm):
        yield _refusal("final_norm", model.final_norm, f"the final norm is that of the layers, {norm}")
    if model.family == "bloom":
        yield _refusal("family", model.family, "ALiBi positions are not offered", "the nearest is rope")


def _unlike_layers(model: ModelSpec) -> Iterator[Problem]:
    """What layers differ in, and one option says of all of them."""
    kinds = model.kinds()
    for name, values in (
        ("attention", {_without_window(_mixer(kind)) for kind in kinds}),
        ("norm", {kind.norm for kind in kinds}),
        ("dropout", {kind.dropout for kind in kinds}),
        ("experts", {kind.mlp for kind in kinds if isinstance(kind.mlp, MoeMlp)}),
        ("ffn_hidden", {kind.mlp for kind in kinds if isinstance(kind.mlp, DenseMlp)}),
        ("gated", {_mlp(kind).gated for kind in kinds}),
        ("window", {_mixer(kind).window for kind in kinds} - {None}),
    ):
        if len(values) > 1:
            yield _refusal(name, sorted(map(str, values)), "all layers must agree in it")


def _inexpressible_layer(kind: LayerSpec) -> Iterator[Problem]:
    """Parts of one layer that no option says."""
    if kind.residuals > 1:
        yield _refusal("residuals", kind.residuals, "there is one residual stream")
    if kind.parallel_block:
        yield _refusal("parallel_block", True, "attention and MLP run one after the other only")
    if kind.norms != 2 and not kind.parallel_block:
        yield _refusal("norms", kind.norms, "a layer has two norms")
    if not _mixer(kind).causal:
        yield _refusal("causal", False, "the GPT model attends to earlier tokens only")
    if isinstance(kind.mlp, MoeMlp) and _mlp(kind).bias and kind.mlp.shared_ffn_hidden:
        yield _refusal("bias", True, "shared experts have no biases")
    if isinstance(kind.mlp, MoeMlp) and kind.mlp.router_bias != kind.mlp.bias:
        yield _refusal(
            "router_bias", kind.mlp.router_bias, "a router has a bias where the experts have, and only there"
        )
    mixer = _mixer(kind)
    if isinstance(mixer, Attention) and mixer.qk_norm and mixer.qk_scales != "head":
        yield _refusal("qk_scales", mixer.qk_scales, "queries and keys are normed head by head", OWN_CONFIG)
    # What is trained of a layer has refusals of its own.
    for part, shape in ((kind, LayerSpec), (mixer, type(mixer)), (kind.mlp, type(kind.mlp))):
        yield from _unsaid(part, shape)
    if _biases(kind) not in ((False,) * 3, (True, False, False), (True,) * 3):
        yield _refusal("bias", _biases(kind), "biases of (qkv, output, MLP) are all, none or qkv alone")


def _unsaid(part: object, shape: type) -> Iterator[Problem]:
    """Fields of a part's shape that hold something else than their default, and that no option says."""
    for field in fields(shape):
        value = getattr(part, field.name)
        if field.name not in _SAID[shape] and field.default is not MISSING and value != field.default:
            shown = "given" if is_dataclass(value) else value
            yield _refusal(field.name, shown, _UNSAID.get(field.name, "no option says it"), OWN_CONFIG)


def _without_window(attention: Attention | LatentAttention) -> object:
    skip = ("window",)
    return tuple((name, getattr(attention, name)) for name in attention.__slots__ if name not in skip)


def _biases(layer: LayerSpec) -> tuple[bool, bool, bool]:
    attention = _mixer(layer)
    of_attention = (attention.qkv_bias, attention.out_bias) if isinstance(attention, Attention) else (False, False)
    return (*of_attention, _mlp(layer).bias)


def _bias_flags(layer: LayerSpec) -> Flags:
    qkv, _, mlp = _biases(layer)
    flags: Flags = [] if mlp else [("--disable-bias-linear", "")]
    return [*flags, ("--add-qkv-bias", "")] if qkv and not mlp else flags


def _mlp_flags(model: ModelSpec) -> Flags:
    kinds = model.kinds()
    dense = next((kind.mlp for kind in kinds if isinstance(kind.mlp, DenseMlp)), None)
    moe = next((kind.mlp for kind in kinds if isinstance(kind.mlp, MoeMlp)), None)
    width = dense.ffn_hidden if dense else moe.ffn_hidden if moe else 0
    flags: Flags = [("--ffn-hidden-size", str(width))]
    if moe is None:
        return flags
    pattern = [isinstance(layer.mlp, MoeMlp) for layer in model.layers()]
    flags += [
        ("--num-experts", str(moe.experts)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-ffn-hidden-size", str(moe.ffn_hidden)),
        ("--moe-grouped-gemm", ""),
    ]
    if moe.groups:
        flags += [("--moe-router-num-groups", str(moe.groups)), ("--moe-router-group-topk", str(moe.groups_per_token))]
    if not all(pattern):
        flags.append(("--moe-layer-freq", _write_pattern(pattern)))
    if moe.shared_ffn_hidden:
        flags.append(("--moe-shared-expert-intermediate-size", str(moe.shared_ffn_hidden)))
    if moe.shared_gate:
        flags.append(("--moe-shared-expert-gate", ""))
    return flags


def _attention_flags(model: ModelSpec, layer: LayerSpec) -> Flags:
    attention = _mixer(layer)
    if isinstance(attention, LatentAttention):
        flags: Flags = [("--multi-latent-attention", "")]
        if attention.q_rank is not None:
            flags.append(("--q-lora-rank", str(attention.q_rank)))
        if model.hidden % attention.heads:
            # Latent attention has no use for it, but where it is left out the hidden size is divided by the heads.
            flags.append(("--kv-channels", str(attention.value_dim)))
        return [
            *flags,
            ("--kv-lora-rank", str(attention.kv_rank)),
            ("--qk-head-dim", str(attention.nope_dim)),
            ("--qk-pos-emb-head-dim", str(attention.rope_dim)),
            ("--v-head-dim", str(attention.value_dim)),
            # The latents always have norms, and the options know only this switch for them.
            ("--qk-layernorm", ""),
        ]
    flags = [("--kv-channels", str(attention.head_dim))]
    if attention.kv_heads < attention.heads:
        flags += [("--group-query-attention", ""), ("--num-query-groups", str(attention.kv_heads))]
    if attention.qk_norm:
        flags.append(("--qk-layernorm", ""))
    if attention.gate:
        flags.append(("--attention-output-gate", ""))
    if attention.sinks:
        flags.append(("--softmax-type", "learnable"))
    windows = [_mixer(each).window for each in model.layers()]
    width = next((window for window in windows if window is not None), None)
    if width is not None:
        # Megatron-LM counts the keys before the query, we count the query's own too.
        flags.append(("--window-size", f"{width - 1},0"))
        if None in windows:
            flags.append(("--window-attn-skip-freq", _write_pattern([window is not None for window in windows])))
    return flags


def _write_pattern(pattern: list[bool]) -> str:
    """`([0]*3+[1]*58)`: one entry a layer; its shortest period repeated."""
    length = len(pattern)
    for size in range(1, length + 1):
        if length % size == 0 and pattern[:size] * (length // size) == pattern:
            period, repeats = pattern[:size], length // size
            break
    runs: list[tuple[int, int]] = []
    for value in period:
        if runs and runs[-1][0] == value:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((int(value), 1))
    text = "+".join(f"[{value}]*{count}" if count > 1 else f"[{value}]" for value, count in runs)
    return f"({text})*{repeats}" if repeats > 1 else f"({text})"


def model_facts(model: ModelSpec) -> dict[str, Any]:
    """The shape of a model in the words that `read_facts` uses, to be compared with options."""
    layer = next(model.layers())
    facts: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden": model.hidden,
        "norm": layer.norm,
        "tied_embeddings": model.tied_embeddings,
        "mtp_layers": model.mtp_layers,
        "dropout": any(kind.dropout for kind in model.kinds()),
        "learned_positions": bool(model.learned_positions),
        "vocab": model.vocab,
        **settings_facts(model),
    }
    if _unknown_kinds(model):
        return facts
    attention = _mixer(layer)
    dense = next((kind.mlp for kind in model.kinds() if isinstance(kind.mlp, DenseMlp)), None)
    moe = next((kind.mlp for kind in model.kinds() if isinstance(kind.mlp, MoeMlp)), None)
    facts |= {"heads": attention.heads, "gated": _mlp(layer).gated, "biases": _biases(layer)}
    if dense or moe:
        facts["ffn_hidden"] = dense.ffn_hidden if dense else moe.ffn_hidden if moe else 0
    if moe:
        counts = [each.mlp.experts for each in model.layers() if isinstance(each.mlp, MoeMlp)]
        facts |= {
            "experts": counts if len({*counts}) > 1 else moe.experts,
            "residual": moe.residual,
            "top_k": moe.top_k,
            "expert_ffn_hidden": moe.ffn_hidden,
            "shared_ffn_hidden": moe.shared_ffn_hidden,
            "router_groups": moe.router_groups,
            "moe_layers": [isinstance(each.mlp, MoeMlp) for each in model.layers()],
        }
    if isinstance(attention, LatentAttention):
        names = ("q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")
        return facts | {name: getattr(attention, name) for name in names}
    return facts | {
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "qk_norm": attention.qk_norm,
        "windows": [_mixer(each).window for each in model.layers()],
    }
