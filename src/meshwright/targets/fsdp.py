"""What targets share whose data ranks hold whole copies or shards of everything: settings, rules, shardings read."""

from __future__ import annotations

from typing import Any

from meshwright.specs.precision import PRECISIONS, stated
from meshwright.specs.row import PlanRow
from meshwright.targets.sayable import ANY, Rule, Says, only

SAYS: dict[str, Says] = {
    "data.family": ANY,
    "data.reshard": ANY,
    "offload.optimizer": only(0.0, 1.0),
    "offload.gradients": only(0.0, 1.0),
    "offload.weights": only(0.0, 1.0),
}
"""Of FSDP2 of PyTorch."""
IN_16_BITS = stated(
    PRECISIONS["bf16"], {"grad_dtype": "bf16", "reduce_dtype": "fp32", "moment_dtype": "bf16", "main_copy": "none"}
)
"""Weights held in 16 bits, which the optimizer updates as they are, with moments of their format."""
ALL_IN_16_BITS = stated(
    PRECISIONS["bf16"], {"grad_dtype": "bf16", "reduce_dtype": "bf16", "moment_dtype": "bf16", "main_copy": "none"}
)
"""Weights, gradients, moments and messages in bf16: copies of weights that are loaded so, which no engine shards."""
OFFLOAD_POLICY = "torch.distributed.fsdp.CPUOffloadPolicy of PyTorch 2.13"


def main_copy(source: str, why: str = "FSDP2 keeps the fp32 shard as the main copy of the weights") -> Rule:
    """Shards of everything are those of FSDP, which keeps no 16-bit copy beside them."""
    return Rule(
        field="data.family",
        holds=lambda plan: plan.sharded == (plan.strategy.data.family == "fsdp"),
        why=why,
        fix="use fsdp",
        source=source,
    )


def context_shards(source: str, why: str) -> Rule:
    """Context parallelism needs shards of everything."""
    return Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or plan.sharded,
        why=why,
        fix="use fsdp",
        source=source,
    )


def offloads_together(
    source: str = OFFLOAD_POLICY, why: str = "FSDP2 offloads weights, gradients and optimizer states together"
) -> Rule:
    """Weights, gradients and optimizer states are all on the host, or none."""
    return Rule(
        field="offload.optimizer",
        holds=lambda plan: (
            len({plan.strategy.offload.optimizer, plan.strategy.offload.gradients, plan.strategy.offload.weights}) == 1
        ),
        why=why,
        fix="use off-wog, or none",
        source=source,
    )


def offloads_shards(
    source: str, why: str = "only FSDP2 offloads", fix: str = "use fsdp", *, alone: bool = False
) -> Rule:
    """Weights are offloaded where everything is sharded; `alone` also on one device, which has nothing to shard."""
    return Rule(
        field="offload.weights",
        holds=lambda plan: plan.strategy.offload.weights == 0 or plan.sharded or (alone and plan.job.plan.devices == 1),
        why=why,
        fix=fix,
        source=source,
    )


def one_group(source: str, why: str, fix: str) -> Rule:
    """States are sharded over all data ranks."""
    return Rule(
        field="data.replicate",
        holds=lambda plan: plan.strategy.data.zero == 0 or plan.strategy.data.replicate == 1,
        why=why,
        fix=fix,
        source=source,
    )


def sharding(sharded: bool, *, dp: int, replicate: int, cp: int = 1, reshard: bool = True) -> dict[str, Any]:
    """The sharding of a row, and the ranks of one copy where there are several.

    Args:
        sharded: everything is sharded, else nothing is.
        dp: data ranks.
        replicate: copies of the weights.
        cp: context ranks, which hold shards as data ranks do.
        reshard: gathered weights are freed after the forward.
    """
    hybrid = sharded and 1 < replicate < dp * cp
    kept = "fsdp" if reshard else "fsdp-keep"
    return {
        "sharding": "hsdp" if hybrid else kept if sharded else "z0",
        "shard_group": dp // replicate * cp if hybrid else 0,
    }


def workload(row: PlanRow | None, *, wide: bool, seq_len: object) -> dict[str, Any]:
    """Fields of a workload that AdamW trains.

    Args:
        row: the plan, None where it was not read.
        wide: computed with in fp32, else in bf16.
        seq_len: tokens of a sequence, as the file says it.
    """
    found = {"precision": PRECISIONS["fp32" if wide else "bf16"], "optimizer": "adamw", "seq_len": seq_len}
    return found | ({} if row is None else {"global_batch": row.gbs})
