"""The strategy of a homogeneous plan's layers as Megatron-LM options, and what no option says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.errors import Problem
from meshwright.formats.megatron.layout import write_layout
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row_of import Homogeneous
from meshwright.specs.strategy import (
    HALF_PRODUCTS,
    DataParallel,
    ExpertParallel,
    LayerStrategy,
    Offload,
    Recompute,
    Tensor1D,
)

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Flags

OFFLOAD_DENSE = "attn_norm qkv_linear core_attn attn_proj mlp_norm"
OFFLOAD_MOE = f"{OFFLOAD_DENSE} expert_fc1 moe_act"
"""Inputs of modules that fine-grained offloading can move to the host."""
STRATEGY_OF_ZERO = {2: "optim_grads", 3: "optim_grads_params"}
ONE_F_ONE_B = ("1f1b", "dapple", "pipedream-flush")


def strategy_refusal(field: str, value: object, why: str, fix: str = "") -> Problem:
    """What part of a plan Megatron-LM cannot do."""
    return Problem(what=f"plan: {field} is {value!r}", why=why, fix=fix, field=field)


def strategy_flags(found: Homogeneous, model: ModelSpec, backend: str) -> tuple[Flags, list[str], list[Problem]]:
    """Options for a homogeneous plan's degrees and settings, notes on them, and what cannot be said.

    Args:
        found: the plan.
        model: the model that is trained.
        backend: the backend of the dispatcher that sends a token once to each node.
    """
    strategy = found.strategy
    problems = [*_tensor_problems(strategy, model), *_context_problems(strategy), *_expert_problems(strategy)]
    problems += _data_problems(found, model)
    problems += _schedule_problems(found)
    problems += _recompute_problems(strategy.recompute)
    problems += _offload_problems(strategy)
    if strategy.optimizer_tile:
        problems.append(
            strategy_refusal("optimizer_tile", strategy.optimizer_tile, "the optimizer updates all at once", "use 0")
        )
    flags = [("--tensor-model-parallel-size", str(strategy.tp))]
    if isinstance(strategy.tensor, Tensor1D) and strategy.tp > 1:
        flags += [("--sequence-parallel", "")] if strategy.tensor.sequence_parallel else []
        flags += [("--tp-comm-overlap", "")] if strategy.tensor.overlap == "ring" else []
    flags += [*_context_flags(strategy), *_pipeline_flags(found, model), *_expert_flags(strategy, model, backend)]
    data_flags, notes = _data_flags(strategy.data)
    flags += data_flags
    flags += _recompute_flags(found)
    if _distributed(strategy) and strategy.data.zero == 0:
        flags.append(("--use-distributed-optimizer", ""))
    offload_flags, offload_notes = _offload_flags(strategy.offload, model)
    return [*flags, *offload_flags], [*notes, *offload_notes], problems


def _tensor_problems(strategy: LayerStrategy, model: ModelSpec) -> Iterator[Problem]:
    tensor = strategy.tensor
    if not isinstance(tensor, Tensor1D):
        yield strategy_refusal("tensor.name", tensor.name, "weights are split in one dimension only", "use 1d")
        return
    if tensor.degree == 1:
        return
    if tensor.overlap == "halves":
        why = "tensor collectives run beside a GEMM, not beside another half of the micro-batch"
        yield strategy_refusal("tensor.overlap", "halves", why, "use tpov, or leave it out")
    if tensor.overlap == "none":
        yield strategy_refusal("tensor.overlap", "none", "backward collectives always run beside a GEMM", "use bulk")
    if tensor.overlap == "ring" and not tensor.sequence_parallel:
        yield strategy_refusal(
            "tensor.overlap", "ring", "overlap needs sequence parallelism", "leave out nosp, or tpov"
        )
    if model.is_moe and not tensor.sequence_parallel:
        why = "experts together with tensor parallelism need sequence parallelism"
        yield strategy_refusal("tensor.sequence_parallel", False, why, "leave out nosp")


COMM_TYPES = {"p2p": "p2p", "a2a": "a2a", "ag": "all_gather"}
"""Kinds of context parallelism and their names here; Transformer Engine, which runs attention, has the underscore."""


def _context_problems(strategy: LayerStrategy) -> Iterator[Problem]:
    kinds = tuple(level.kind for level in strategy.context)
    if len(kinds) > 1 and kinds != ("a2a", "p2p"):
        yield strategy_refusal("context", kinds, "the one combination is a2a inside, p2p around it", "use a2a x p2p")
    for level in strategy.context:
        if level.kind not in COMM_TYPES:
            yield strategy_refusal("context.kind", level.kind, f"it knows {', '.join(COMM_TYPES)}", "use p2p")
        if level.layout != "zigzag" and level.kind != "a2a":
            yield strategy_refusal("context.layout", level.layout, "sequences are cut in zigzag order", "use zigzag")


def _context_flags(strategy: LayerStrategy) -> Flags:
    if not strategy.context:
        return []
    flags: Flags = [("--context-parallel-size", str(strategy.cp))]
    if len(strategy.context) > 1:
        sizes = " ".join(str(level.degree) for level in strategy.context)
        return [*flags, ("--cp-comm-type", "a2a+p2p"), ("--hierarchical-context-parallel-sizes", sizes)]
    kind = strategy.context[0].kind
    return [*flags, ("--cp-comm-type", COMM_TYPES.get(kind, kind))]


OVERLAPS = {
    "shared": ("--moe-shared-expert-overlap",),
    "paired": ("--overlap-moe-expert-parallel-comm",),
    "paired-wgrad": ("--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"),
}
"""What runs beside the exchange of tokens, and the switches that say it."""


_DISPATCHER_TYPES = {"alltoall": "alltoall", "allgather": "allgather", "deduplicated": "flex"}
"""`--moe-token-dispatcher-type` of the dispatchers that Megatron-LM has."""


def _expert_problems(strategy: LayerStrategy) -> Iterator[Problem]:
    neutral = ExpertParallel()
    for name, fix in (
        ("overlap_degree", "use 1"),
        ("expert_shards", "use 1, and z3 to shard experts over their data ranks"),
        ("shadowed", "use 0"),
        ("placement", "leave the experts in order"),
        ("placed_by_load", "leave the experts in order"),
        ("drop_duplicates", "sequence parallelism already leaves no duplicates"),
        ("stash_collectives", "recompute the layers without their experts"),
        ("prioritised", "leave it out"),
        ("locality", "leave it out"),
    ):
        value = getattr(strategy.expert, name)
        if value != getattr(neutral, name):
            yield strategy_refusal(f"expert.{name}", value, "no option says this", fix)
    if strategy.expert.dispatcher not in _DISPATCHER_TYPES:
        why = "tokens are exchanged by alltoall, allgather or a deduplicating dispatcher"
        yield strategy_refusal("expert.dispatcher", strategy.expert.dispatcher, why, "use deduplicated, or alltoall")
    overlap, dispatcher = strategy.expert.overlap, strategy.expert.dispatcher
    if overlap == "shared" and dispatcher != "alltoall":
        why = "shared experts run beside the exchange of the alltoall dispatcher alone"
        yield strategy_refusal("expert.overlap", overlap, why, "use alltoall, or paired")
    if overlap.startswith("paired") and dispatcher == "allgather":
        why = "exchanges run beside another micro-batch with the alltoall and flex dispatchers"
        yield strategy_refusal("expert.overlap", overlap, why, "use deduplicated, or alltoall")


def flex_backend(cluster: ClusterSpec) -> str:
    """Backend that sends a token once to each node: DeepEP's, and HybridEP's in NVL72, for which DeepEP has none.

    Source: megatron/bridge/training/flex_dispatcher_backend.py of megatron-bridge 0.3.1 (2026-11).
    """
    return "hybridep" if any(group.device.name.startswith("GB") for group in cluster.groups) else "deepep"


def _expert_flags(strategy: LayerStrategy, model: ModelSpec, backend: str) -> Flags:
    expert = strategy.expert
    if not model.is_moe:
        return []
    flags: Flags = [
        ("--expert-model-parallel-size", str(expert.ep)),
        ("--expert-tensor-parallel-size", str(expert.etp)),
    ]
    if (said := _DISPATCHER_TYPES.get(expert.dispatcher)) is not None:
        flags.append(("--moe-token-dispatcher-type", said))
        flags += [("--moe-flex-dispatcher-backend", backend)] if said == "flex" else []
    flags += [(flag, "") for flag in OVERLAPS.get(expert.overlap, ())]
    if expert.capacity_factor is not None:
        flags.append(("--moe-expert-capacity-factor", repr(expert.capacity_factor)))
    return flags


_AS_THEY_ARE: tuple[tuple[str, str, str], ...] = (
    ("averaging", "replicas are kept equal every step", "use synchronous"),
    ("compression", "gradients are summed as they are", ""),
    ("gather_dtype", "weights cross the network as they are kept", ""),
    ("reduce_dtype", "gradients cross as the precision says", "say it there"),
    ("passing", "weights are gathered and gradients scattered by collectives", "use collective"),
    ("prefetch", "weights are gathered as it says itself", "leave it out"),
    ("secondary_shard", "there is no second copy of the weights", "use hsdp"),
)
"""Fields of data parallelism that it knows one value of, why, and what to do about another."""


def _data_problems(found: Homogeneous, model: ModelSpec) -> Iterator[Problem]:
    data, expert, plain = found.strategy.data, found.strategy.expert, DataParallel()
    for name, why, fix in _AS_THEY_ARE:
        if (value := getattr(data, name)) != getattr(plain, name):
            yield strategy_refusal(f"data.{name}", value, why, fix)
    if data.zero == 0 and data.shard > 1:
        yield strategy_refusal("data.shard", data.shard, "nothing is sharded at zero 0", "use zero 1")
    if data.zero > 0 and data.replicate > 1:
        whole = found.strategy.devices // (expert.ep * expert.etp) if model.is_moe else data.replicate
        if whole % data.replicate:
            why = f"experts have {whole} data ranks, which {data.replicate} instances do not divide"
            yield strategy_refusal("data.replicate", data.replicate, why)
    if _is_kept(data):
        yield from _torch_fsdp_problems(found, model)


def _torch_fsdp_problems(found: Homogeneous, model: ModelSpec) -> Iterator[Problem]:
    """What torch FSDP, which alone keeps gathered weights, cannot do of a plan."""
    data, needs = found.strategy.data, "keeping gathered weights needs torch FSDP, which needs"
    if found.pp > 1:
        yield strategy_refusal("data.reshard", False, f"{needs} pp 1", "use z2")
    if found.strategy.expert.ep > 1:
        yield strategy_refusal("data.reshard", False, f"{needs} ep 1", "use z2")
    if model.tied_embeddings:
        yield strategy_refusal("data.reshard", False, "torch FSDP needs an untied embedding and head", "use z2")
    if data.replicate > 1:
        why = "torch FSDP shards over all data ranks here"
        yield strategy_refusal("data.replicate", data.replicate, why, "use hsdp")
    if not data.overlap:
        why = "torch FSDP always overlaps its collectives"
        yield strategy_refusal("data.overlap", False, why, "leave out nodpov")


def _is_kept(data: DataParallel) -> bool:
    return data.zero == 3 and not data.reshard


def _data_flags(data: DataParallel) -> tuple[Flags, list[str]]:
    notes: list[str] = []
    flags: Flags = []
    if _is_kept(data):
        flags = [("--use-torch-fsdp2", ""), ("--torch-fsdp2-no-reshard-after-forward", "")]
        return [*flags, ("--no-gradient-accumulation-fusion", ""), ("--ckpt-format", "torch_dist")], notes
    if data.zero >= 1:
        flags.append(("--use-distributed-optimizer", ""))
    if data.zero >= 2:
        flags += [
            ("--use-megatron-fsdp", ""),
            ("--data-parallel-sharding-strategy", STRATEGY_OF_ZERO[data.zero]),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
        if data.family == "zero":
            # The copy of its own is what ZeRO differs by; said so that it is read back.
            flags.append(("--megatron-fsdp-main-params-dtype", "fp32"))
        else:
            notes.append(
                "Megatron-FSDP keeps 16-bit weight shards beside the fp32 ones: "
                "2 bytes per parameter and shard more than planned"
            )
    if data.zero >= 1 and data.replicate > 1:
        flags.append(("--num-distributed-optimizer-instances", str(data.replicate)))
        if data.zero >= 2:
            flags.append(("--outer-dp-sharding-strategy", "no_shard"))
    if data.overlap:
        flags.append(("--overlap-grad-reduce", ""))
        if data.zero >= 1:
            flags.append(("--overlap-param-gather", ""))
    return flags, notes


def _schedule_problems(found: Homogeneous) -> Iterator[Problem]:
    pipeline, pp, vpp = found.pipeline, found.pp, found.vpp
    schedule = pipeline.schedule
    wanted = "interleaved" if vpp > 1 else "1f1b"
    if schedule.orders:
        yield strategy_refusal(
            "schedule.orders", schedule.name, "a custom order of tasks cannot be given", f"use {wanted}"
        )
    elif schedule.name not in (("interleaved",) if vpp > 1 else ONE_F_ONE_B):
        yield strategy_refusal("schedule", schedule.name, f"with vpp {vpp} Megatron-LM runs {wanted}", f"use {wanted}")
    else:
        for worker, held in enumerate(found.held):
            loop = tuple((chunk * pp + worker, "primary") for chunk in range(vpp))
            if held != loop:
                field = f"pipelines[0].workers[{worker}].chunks"
                yield strategy_refusal(field, held, f"{wanted} with {vpp} chunks a worker places {loop} here")
    group = pp
    for name, value in schedule.parameters:
        if name == "group" and vpp > 1 and isinstance(value, int):
            group = value
        elif (name, value) != ("warmup", "pa"):
            yield strategy_refusal(f"schedule.parameters.{name}", value, "no option says this", "leave it out")
    if pipeline.shapes:
        yield strategy_refusal("shapes", pipeline.shapes[:3], "micro-batches are all equal", "use one micro-batch size")
    m = pipeline.num_micro_batches
    if vpp > 1:
        if pp == 1:
            yield strategy_refusal("vpp", vpp, "chunks are interleaved over at least two stages", "use vpp 1")
        elif m < group or 0 < m % group < pp or group < pp:
            why = f"interleaving runs groups of {group} micro-batches; the last may not be shorter than pp {pp}"
            yield strategy_refusal("num_micro_batches", m, why, f"use a multiple of {max(group, pp)}")


def _pipeline_flags(found: Homogeneous, model: ModelSpec) -> Flags:
    flags: Flags = [("--pipeline-model-parallel-size", str(found.pp))]
    even = len(set(found.layers)) == 1
    if not even:
        flags.append(("--pipeline-model-parallel-layout", write_layout(found.layers, model.mtp_layers)))
    elif found.vpp > 1:
        flags.append(("--num-virtual-stages-per-pipeline-rank", str(found.vpp)))
    group = dict(found.pipeline.schedule.parameters).get("group")
    if group is not None and found.vpp > 1:
        flags.append(("--microbatch-group-size-per-virtual-pipeline-stage", str(group)))
    return flags


def _recompute_problems(recompute: Recompute) -> Iterator[Problem]:
    if recompute.kind == "optimal":
        why = "recompute follows modules or whole layers, no table"
        yield strategy_refusal("recompute.kind", "optimal", why, "use selective with the modules that cost most memory")
    if recompute.kind == "selective" and not recompute.modules:
        yield strategy_refusal(
            "recompute.modules", (), "selective recompute needs at least one module", "name core_attn"
        )
    if HALF_PRODUCTS in recompute.modules:
        why = "modules are repeated whole, not every second product"
        yield strategy_refusal("recompute.modules", recompute.modules, why, "use rc-sel-mlp")


def _recompute_flags(found: Homogeneous) -> Flags:
    recompute = found.strategy.recompute
    if found.block:
        kind, method, count = "full", "block", found.block
    elif recompute.kind in ("full", "grouped"):
        kind, method, count = "full", "uniform", recompute.group
    elif recompute.kind == "selective":
        modules = " ".join(recompute.modules)
        return [("--recompute-granularity", "selective"), ("--recompute-modules", modules)]
    else:
        return []
    return [
        ("--recompute-granularity", kind),
        ("--recompute-method", method),
        ("--recompute-num-layers", str(count)),
    ]


def _distributed(strategy: LayerStrategy) -> bool:
    """Whether the distributed optimizer steps: it shards states, and offloads those that a rank shares with nobody."""
    return strategy.data.zero >= 1 or (strategy.dp * strategy.cp == 1 and strategy.offload.optimizer > 0)


def _offload_problems(strategy: LayerStrategy) -> Iterator[Problem]:
    offload = strategy.offload
    if offload.weights:
        yield strategy_refusal("offload.weights", offload.weights, "weights stay on the device", "shard them with z3")
    if offload.tier != "host" and (offload.activations or offload.optimizer or offload.weights):
        yield strategy_refusal("offload.tier", offload.tier, "states go to host memory only", "use host")
    if offload.gradients:
        why = "gradients stay on the device until the optimizer's step"
        yield strategy_refusal("offload.gradients", offload.gradients, why, "offload the optimizer alone (off-o)")
    if offload.delayed_update:
        yield strategy_refusal("offload.delayed_update", True, "the optimizer's step is not delayed", "leave it out")
    if offload.optimizer and not _distributed(strategy):
        why = "offloading the optimizer needs the distributed optimizer"
        yield strategy_refusal("offload.optimizer", offload.optimizer, why, "shard its states with z1")


def _offload_flags(offload: Offload, model: ModelSpec) -> tuple[Flags, list[str]]:
    flags: Flags = []
    notes = []
    if offload.optimizer:
        flags += [
            ("--optimizer-cpu-offload", ""),
            ("--optimizer-offload-fraction", repr(float(offload.optimizer))),
            ("--use-precision-aware-optimizer", ""),
        ]
    if offload.activations:
        modules = OFFLOAD_MOE if model.is_moe else OFFLOAD_DENSE
        flags += [
            ("--fine-grained-activation-offloading", ""),
            ("--offload-modules", modules),
            ("--activation-offload-fraction", repr(float(offload.activations))),
        ]
        notes.append(f"activations that can be offloaded are the inputs of {modules}; others stay on the device")
    return flags, notes
