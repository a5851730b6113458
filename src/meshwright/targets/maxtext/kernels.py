"""What MaxText runs on GPUs and what on TPUs: its kernels, and the devices of a slice.

Sources: maxtext/layers/attention_op.py and moe.py, maxtext/configs/types.py and configs/gpu of maxtext 0.2.5 (2026-11).
"""

from __future__ import annotations

import math

from meshwright.targets.key_texts import Keys
from meshwright.targets.sayable import Plan, Rule, whole_key_value_heads

_SEGMENTS = 32
"""Segments of a packed sequence, as MaxText's own configurations for GPUs say it."""
_SOURCE = "maxtext/layers/attention_op.py of maxtext 0.2.5"


def on_tpus(plan: Plan) -> bool:
    """Whether the plan is of TPUs."""
    return plan.job.cluster.groups[0].device.name.startswith("TPU")


def slice_devices(plan: Plan) -> int:
    """Devices that JAX counts as one slice: those that fast links join, and a whole node where none do."""
    group, devices = plan.job.cluster.groups[0], plan.job.plan.devices
    widest = max((domain.size for domain in group.domains if domain.topology == "torus"), default=1)
    return math.gcd(devices, max(widest, plan.per_node))


def kernel_keys(plan: Plan) -> Keys:
    """Which devices it is, and kernels that are theirs.

    On GPUs MaxText would choose a kernel without windows, sinks and context ranks, and interpret that of experts, which
    is of TPUs.
    """
    if on_tpus(plan):
        return {"hardware": "tpu", **({"attention": "dot_product"} if _materialised(plan) else {})}
    keys: Keys = {"hardware": "gpu", "attention": "cudnn_flash_te", "max_segments_per_seq": _SEGMENTS}
    if _materialised(plan):
        keys = {"hardware": "gpu", "attention": "dot_product"}
    if plan.strategy.cp > 1 and plan.strategy.context[0].kind == "ag":
        keys["packing"] = False  # gathered keys of packed sequences are refused with the first real data
    if plan.model.is_moe:
        keys["megablox"] = False
    return keys


def _materialised(plan: Plan) -> bool:
    return plan.workload.attention_kernel == "materialised"


def _windows(plan: Plan) -> bool:
    return any(getattr(kind.attention, "window", None) for kind in plan.model.kinds())


def _sinks(plan: Plan) -> bool:
    return any(getattr(kind.attention, "sinks", False) for kind in plan.model.kinds())


RULES = (
    whole_key_value_heads("maxtext/layers/attentions.py of maxtext 0.2.5"),
    Rule(
        field="context.kinds",
        holds=lambda plan: plan.strategy.cp == 1 or plan.strategy.context[0].kind == "ag" or not on_tpus(plan),
        why="rings of TPUs take an attention kernel of their own, which no plan says",
        fix="use cp with ag",
        source="maxtext/configs/types.py of maxtext 0.2.5",
    ),
    Rule(
        field="cp",
        holds=lambda plan: (
            plan.strategy.cp == 1 or on_tpus(plan) or _materialised(plan) or not (_windows(plan) or _sinks(plan))
        ),
        why="its attention kernel on GPUs has no windows and no sinks where sequences are cut",
        fix="use cp1",
        source=_SOURCE,
    ),
    Rule(
        field="attention_kernel",
        holds=lambda plan: on_tpus(plan) or _materialised(plan) or plan.model.settings.score_softcap is None,
        why="its attention kernels on GPUs do not cap scores, which the model does",
        fix="use --attention-kernel materialised",
        source=_SOURCE,
    ),
)
