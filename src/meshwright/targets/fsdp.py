"""What targets share whose data ranks hold whole copies or shards of everything: settings, rules, shardings read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshwright.specs.precision import PRECISIONS, stated
from meshwright.specs.row import PlanRow
from meshwright.targets.sayable import ANY, Rule, Says, only

if TYPE_CHECKING:
    from meshwright.targets.keys import KeyReader

SAYS: dict[str, Says] = {
    "data.family": ANY,
    "data.reshard": ANY,
    "offload.optimizer": only(0.0, 1.0),
    "offload.gradients": only(0.0, 1.0),
    "offload.weights": only(0.0, 1.0),
}
"""What FSDP2 of PyTorch can say of a plan."""
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


STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Sharding strategies of FSDP1, by number from 1."""


def of_strategy(reader: KeyReader, key: str, name: str, dp: int, *, cp: int = 1, nodes: str) -> dict[str, Any]:
    """The sharding of a row by a strategy of FSDP1.

    Args:
        reader: the reader of the file, for what is wrong.
        key: the key that names the strategy.
        name: the name in STRATEGIES.
        dp: data ranks.
        cp: context ranks, which hold shards as data ranks do.
        nodes: the key that says how many nodes there are.
    """
    if name not in STRATEGIES:
        reader.refuse(key, name, f"must be one of {', '.join(STRATEGIES)}", "use FULL_SHARD")
    whole = name == "NO_SHARD"
    replicate = dp if whole else _copies(reader, key, name, dp, nodes) if name in STRATEGIES[3:] else 1
    return sharding(not whole, dp=dp, replicate=replicate, cp=cp, reshard=name != "SHARD_GRAD_OP")


def of_words(reader: KeyReader, words: str, dp: int, *, cp: int = 1, nodes: str) -> dict[str, Any]:
    """What the words of the trainer's `fsdp` shard and offload, as fields of a row.

    Args:
        reader: the reader of the file, for what is wrong.
        words: the words as `full_shard auto_wrap`, in lower case.
        dp: data ranks.
        cp: context ranks.
        nodes: the key that says how many nodes there are.
    """
    said = words.replace(",", " ").split()
    names = [one for one in said if one.upper() in STRATEGIES]
    others = [one for one in said if one not in (*names, "auto_wrap", "size_wrap", "offload", "true")]
    if others:
        reader.refuse("fsdp", words, f"{others[0]} is no word of it", "use full_shard auto_wrap")
    held = of_strategy(reader, "fsdp", names[0].upper() if names else "FULL_SHARD", dp, cp=cp, nodes=nodes)
    sharded = dp * cp > 1
    return {
        **(held if sharded else sharding(False, dp=dp, replicate=dp)),
        "offload": "wog" if "offload" in said and sharded else "",
    }


def _copies(reader: KeyReader, key: str, name: str, dp: int, nodes: str) -> int:
    """Copies of the weights where FSDP1 shards inside a node alone: one on each.

    Source: _init_intra_and_inter_node_groups of torch/distributed/fsdp/_init_utils.py (2.8, 2025).
    """
    machines = reader.degree(nodes) if reader.get(nodes) is not None else None
    if name == "HYBRID_SHARD_ZERO2" and machines != 1:
        why = "weights stay whole between passes while each node has a copy of its own, which no plan says"
        reader.refuse(key, name, why, "use HYBRID_SHARD or SHARD_GRAD_OP")
    elif machines is None:
        why = "each node has a copy of its own, and nothing says how many nodes there are"
        reader.refuse(key, name, why, f"say --set {nodes}=N")
    elif dp % machines:
        reader.refuse(nodes, machines, f"must divide {dp} data ranks", "use equal nodes")
    else:
        return machines
    return 1


def workload(row: PlanRow | None, *, wide: bool, seq_len: object) -> dict[str, Any]:
    """Fields of a workload that AdamW trains.

    Args:
        row: the plan, None where it was not read.
        wide: computed with in fp32, else in bf16.
        seq_len: tokens of a sequence, as the file says it.
    """
    found = {"precision": PRECISIONS["fp32" if wide else "bf16"], "optimizer": "adamw", "seq_len": seq_len}
    return found | ({} if row is None else {"global_batch": row.gbs})
