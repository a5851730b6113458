"""What a model and a length of sequences ask of degrees: rules as data.

Each rule is a predicate over columns and, for the row that breaks it, the sentence with value, rule and remedy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.specs.model import ModelSpec
from meshwright.strategies import TENSORS
from meshwright.strategies.base import DegreeRule

OR_MULTIPLE = " or be a multiple of them"
"""Ends the reason of rules whose degree may go beyond the number that it divides."""


def model_rules(model: ModelSpec, seq_len: int, tensor: str = "1d") -> tuple[DegreeRule, ...]:
    """The rules a model and sequence length set, in the order they are reported.

    Args:
        model: the model.
        seq_len: tokens of a sequence.
        tensor: strategy of the tensor groups.

    Returns:
        Rules over columns of degrees.
    """
    strategy = TENSORS[tensor]
    rules = []
    towers = {stream.name for stream in model.streams if stream.tower}
    own = [layer for layer in model.kinds() if layer.stream not in towers]
    kinds = (*own, *((model.mtp_kind,) if model.mtp_layers else ()))
    mixers = [mixer for layer in kinds for mixer in (layer.attention, layer.cross) if mixer is not None]
    for name, heads in dict.fromkeys(units for mixer in mixers for units in mixer.divided):
        rules += [
            DegreeRule(
                "heads",
                lambda d, heads=heads: heads % strategy.head_ranks(d["tp"]) == 0,  # type: ignore[misc]
                f"tp must divide the {heads} {name}",
                f"use a divisor of {heads}",
                "tp",
            ),
            DegreeRule(
                "a2a heads",
                lambda d, heads=heads: np.maximum(heads // strategy.head_ranks(d["tp"]), 1) % d["cp_heads"] == 0,  # type: ignore[misc]
                f"the all-to-all level of cp must divide the {heads} {_short(name)} / tp that a rank holds",
                "lower the a2a degree or use p2p",
                "cp",
            ),
        ]
    for name, kv_heads in dict.fromkeys(units for mixer in mixers for units in mixer.replicated):
        rules.append(
            DegreeRule(
                name,
                lambda d, kv=kv_heads: (kv % (t := strategy.head_ranks(d["tp"])) == 0) | (t % kv == 0),  # type: ignore[misc]
                f"tp must divide the {kv_heads} {name}{OR_MULTIPLE}",
                f"use a divisor or a multiple of {kv_heads}",
                "tp",
            )
        )
    widths = (layer.mlp.tensor_width for layer in kinds)
    for width in dict.fromkeys(width for width in widths if width):
        rules.append(
            DegreeRule(
                "ffn",
                lambda d, width=width: width % strategy.head_ranks(d["tp"]) == 0,  # type: ignore[misc]
                f"tp must divide the feed-forward width {width}",
                f"use a divisor of {width}",
                "tp",
            )
        )
    cuts = [rule for rule in strategy.rules(model, seq_len) if rule.name != "sequence" or not model.pooled]
    rules += [
        *cuts,
        DegreeRule(
            "zigzag",
            lambda d: (d["cp_halves"] == 1) | (seq_len % d["cp"] != 0) | (seq_len % (2 * d["cp"]) == 0),
            f"the zigzag layout cuts the {seq_len} tokens of a sequence into 2 cp equal parts",
            "lower cp, use striped, or pad the sequence",
            "cp",
        ),
        DegreeRule(
            "context",
            lambda d: seq_len % d["cp"] == 0,
            f"cp must divide the {seq_len} tokens of a sequence",
            "lower cp or pad the sequence",
            "cp",
        ),
        DegreeRule(
            "layers",
            lambda d: d["pp"] * d["vpp"] <= model.most_stages,
            f"every one of pp x vpp virtual stages holds at least one of {model.most_stages} layers",
            f"keep pp x vpp at {model.most_stages} or less",
            "pp",
        ),
    ]
    return (*rules, *_encoder_rules(model), *_expert_rules(model))


def _encoder_rules(model: ModelSpec) -> Iterator[DegreeRule]:
    """What the sequences of encoders ask, which context and sequence parallelism cut as they cut the text's."""
    for stream in model.streams:
        if stream.tower or stream.images:
            continue
        length = stream.tokens.length
        yield DegreeRule(
            "encoder",
            lambda d, length=length: length % (d["cp"] * np.where(d["sp"] > 0, d["tp"], 1)) == 0,  # type: ignore[misc]
            f"cp x tp with sequence parallelism cuts the {length} tokens of the {stream.name} into equal parts",
            "lower cp or tp, use nosp, or pad them",
            "cp",
        )


def _short(name: str) -> str:
    """`heads`, where they are those of attention."""
    return name.removeprefix("attention ")


def _expert_rules(model: ModelSpec) -> tuple[DegreeRule, ...]:
    moes = [layer.mlp for layer in model.kinds() if layer.mlp.routed_experts]
    if not moes:
        return (
            DegreeRule(
                "experts",
                lambda d: (d["ep"] == 1) & (d["etp"] == 1),
                f"{model.name} has no experts",
                "leave ep and etp at 1",
                "ep",
            ),
        )
    rules = [
        DegreeRule(
            "folding",
            lambda d: (d["tp"] * d["cp"] * d["dp"]) % (d["ep"] * d["etp"]) == 0,
            "experts are spread over the tp x cp x dp devices of a stage, so ep x etp must divide them",
            "lower ep or etp, or raise dp",
            "ep",
        ),
        DegreeRule(
            "token split",
            lambda d: (d["tp"] == 1) | (d["sp"] == 1),
            "without sequence parallelism tensor ranks would send every token several times",
            "drop nosp",
            "sp",
        ),
    ]
    for count in dict.fromkeys(moe.routed_experts for moe in moes):
        rules.append(
            DegreeRule(
                "experts",
                lambda d, count=count: count % d["ep"] == 0,  # type: ignore[misc]
                f"ep must divide the {count} experts",
                f"use a divisor of {count}",
                "ep",
            )
        )
    for width in dict.fromkeys(moe.expert_width for moe in moes):
        rules.append(
            DegreeRule(
                "expert ffn",
                lambda d, width=width: width % d["etp"] == 0,  # type: ignore[misc]
                f"etp must divide the expert width {width}",
                f"use a divisor of {width}",
                "etp",
            )
        )
    return tuple(rules)
