"""Pipelines that hold one copy of the sharded states together: one ZeRO group over unlike devices.

Each pipeline is one stage on devices of one kind and takes its own share of every micro-batch; ranks gather weights and
scatter gradients over all pipelines, so that they do it equally often.

Source: Zhang et al. 2024, Poplar (arXiv 2408.12596), section 3; Guo et al. 2024, Cephalo (arXiv 2411.01075), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.specs.check import Check
from meshwright.specs.strategy import LayerStrategy, Offload


def check_joint_states(
    check: Check, used: Sequence[LayerStrategy], devices: int, chunks: Sequence[int], counts: Sequence[int]
) -> None:
    """Whether the pipelines of a plan can hold states together.

    Args:
        check: gets what is wrong.
        used: strategies of their layers, one or more, some of which say so.
        devices: the number of devices of all pipelines.
        chunks: the chunks of each pipeline, over all its workers.
        counts: micro-batches of each pipeline.
    """
    degrees = sorted({strategy.tp for strategy in used})
    check.that(len(degrees) <= 1, "tp", degrees, "pipelines that hold states together cut matrices alike")
    ranks = devices // degrees[0]
    wrong = sorted({strategy.data.across for strategy in used} - {ranks})
    check.that(not wrong, "data.across", wrong, f"must be the {ranks} data and context ranks of all pipelines together")
    check.that(
        set(chunks) <= {1},
        "chunks",
        list(chunks),
        "pipelines that hold states together must have one stage of one chunk",
    )
    for strategy in used:
        data, expert = strategy.data, strategy.expert
        check.that(expert.ep * expert.etp == 1, "expert", (expert.ep, expert.etp), "with data.across, ep must be 1")
        check.that(
            data.zero > 0 and data.replicate == 1,
            "data",
            (data.zero, data.replicate),
            "with data.across, zero must be 1 or more and replicate 1",
        )
        check.that(
            not data.sends_otherwise, "data", data, "with data.across, gradients and weights are sent as they are"
        )
        check.that(strategy.offload == Offload(), "offload", strategy.offload, "with data.across, nothing is offloaded")
    kinds = {(one.data.zero, one.data.family, one.data.reshard) for one in used}
    check.that(len(kinds) <= 1, "strategies", sorted(kinds), "with data.across, all layers must be sharded one way")
    check.that(
        len(set(counts)) <= 1 or all(one.data.zero == 1 for one in used),
        "pipelines.num_micro_batches",
        list(counts),
        "zero 2 and 3 across pipelines gather and scatter in step: all must have as many micro-batches",
    )
