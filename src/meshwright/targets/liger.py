"""Logits and loss in pieces by Liger, whose fused head the trainer of the transformers library switches on.

Source: liger-kernel 0.8.2 (August 2026), github.com/linkedin/Liger-Kernel: ops/fused_linear_cross_entropy.py (pieces of
tokens so many that the logits of one are about as large as the head's input), transformers/monkey_patch.py (classes).
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.targets.sayable import Plan

FAMILIES = frozenset(
    (
        *("deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3", "gemma4", "glm4", "gpt_oss"),
        *("hunyuan_dense", "hunyuan_moe", "llama", "llama4", "ministral", "mistral", "mixtral", "nemotron"),
        *("olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "smollm3"),
    )
)
"""Families whose classes it gives a fused head; that of Granite it leaves as it is."""


def pieces(tokens: int, hidden: int, vocab: int) -> int:
    """Pieces of the tokens of a micro-batch: ceil(T / 2^ceil(log2(ceil(T / ceil(V / h))))).

    Args:
        tokens: T, of a micro-batch on one rank.
        hidden: h, of the model.
        vocab: V, of the model.
    """
    each = -(-tokens // -(-vocab // hidden))
    return -(-tokens // (1 << (each - 1).bit_length()))


def problems(plan: Plan) -> Iterator[Problem]:
    """Pieces of the loss that it does not make: of another number, or of a model or division that it does not know.

    Args:
        plan: the plan with logits in pieces.
    """
    tiles, field = plan.workload.loss_tiles, "loss_tiles"
    what = f"plan: loss tiles is {tiles}"
    if plan.model.family not in FAMILIES:
        why = f"Liger, which makes them, has no fused head for the class {plan.model.family}"
        yield Problem(what=what, why=why, fix="leave out --loss-tiles", field=field)
        return
    if plan.strategy.tp > 1:
        why = "Liger makes them of the whole vocabulary, which tensor ranks share"
        yield Problem(what=what, why=why, fix="use tp1, or leave out --loss-tiles", field=field)
        return
    tokens = max(1, plan.found.pipeline.micro_batch * plan.workload.seq_len // plan.strategy.cp)
    made = pieces(tokens, plan.model.hidden, plan.model.vocab)
    if made != tiles:
        why = f"Liger makes {made} of the tokens of a micro-batch"
        yield Problem(what=what, why=why, fix=f"use --loss-tiles {made}", field=field)
