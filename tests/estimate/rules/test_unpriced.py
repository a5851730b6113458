"""No silent field: whatever a job can state changes its estimate or is refused with a reason and a remedy.

Every field of every record reachable from a plan, workload, cluster and model is set to other legal values, one at a
time, in jobs that use as much as possible; a value that changes nothing in any of them fails.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import meshwright as mw
from meshwright.errors import MeshwrightError, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.cluster import HostSpec, LinkSpec
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.precision import PRECISIONS, stated
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import DataParallel, ExpertParallel, LayerStrategy, Offload, Recompute, TensorPerOperator
from meshwright.specs.tuning import Frozen, Lora, Tuning
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE, LATENT, MIXED, TIED

LABELS = {
    "name",
    "family",
    "source",
    "notes",
    "aliases",
    "vendor",
    "year",
    "generation",
    "date",
    "max_seq_len",  # what the model was trained for: longer sequences are priced and said to be extrapolated
    "tokens",  # of the whole run: days and cost, not the step
    "failures",  # likewise
    "preemptions_per_node_hour",  # likewise
    "node",  # the usual node of a device, read where a cluster does not say its own
    "topology",  # torus: rings on the stated bandwidth, as on a switch; mesh changes the estimate where it is used
    "power_w_per_tflop",  # with the next two the clock of large products, of which only their ratio counts
    "carbon_kg_per_kwh",  # of the site's electricity: carbon of the run, not the step
    "rope_base",  # with those to logit_softcap constants of a model, which targets state and no kernel is slower for
    "rope_share",
    "norm_epsilon",
    "router_bias",
    "router_scale",
    "router_normalised",
    "score_softcap",
    "logit_softcap",
    "zone",  # of a group: names which measured links of profiles join it to another
}
"""Fields that name or explain; what each is for stands beside it where the name does not say it."""


def job(model: Any, gpus: str, row: PlanRow, strategy: LayerStrategy | None = None, **work: Any) -> Job:
    """A job of a row, all its layers under another strategy if one is given."""
    where, settings = resolve_gpus(gpus), {"seq_len": 8192, **work}
    plan = expand(row, model, settings["seq_len"])
    if strategy is not None:
        plan = replace(plan, strategies=(strategy,))
    workload = Workload(global_batch=row.gbs, expert_imbalance=1.2, **settings)
    return Job(model=model, cluster=where, workload=workload, plan=plan)


def normed(model: ModelSpec) -> ModelSpec:
    """The same with norms on queries and keys."""
    (run,) = model.runs
    layers = tuple(replace(one, attention=replace(one.attention, qk_norm=True)) for one in run.layers)
    return replace(model, runs=(replace(run, layers=layers),))


def two_pipelines() -> Job:
    """One on each kind of device, joined by a link."""
    row = PlanRow(tp=8, gbs=4)
    one, where = expand(row, TIED, 8192), resolve_gpus("8xH100,8xA100-80")
    (first,) = one.pipelines
    (worker,) = first.workers
    second = replace(first, workers=(replace(worker, devices=((8, 15),)),))
    plan = ExecutionPlan(strategies=one.strategies, pipelines=(first, second))
    names = (where.groups[0].name, where.groups[1].name)
    where = replace(where, links=(LinkSpec(between=names, bandwidth_bytes_per_s=5e9, latency_s=1e-5),))
    return Job(model=TIED, cluster=where, workload=Workload(seq_len=8192, global_batch=8), plan=plan)


LORA = Lora(rank=16, targets=("q_proj",), base="nf4", layers=((2, 3),), train=("embedding",))
FROZEN = (Frozen(part="embedding"), Frozen(part="mlp", layers=(0, 3)))


def plain_strategy() -> LayerStrategy:
    return PlanRow(dp=2, gbs=2, sharding="z3").strategy()


def hosted(own: Job) -> Job:
    """The same on a host that is stated."""
    host = HostSpec(
        memory_bytes=1e12,
        memory_bytes_per_s=2e11,
        link_bytes_per_s=2e10,
        link_devices=2,
        disk_bytes=4e12,
        disk_read_bytes_per_s=6e9,
        disk_write_bytes_per_s=3e9,
    )
    (group,) = own.cluster.groups
    return replace(own, cluster=replace(own.cluster, groups=(replace(group, host=host),)))


def crowded(own: Job) -> Job:
    """The same with some experts more popular than others."""
    load = ExpertLoad(zipf=1.0).of(own.model)
    return replace(own, workload=replace(own.workload, expert_imbalance=1.0, expert_load=load))


WEIGHTS_IN_FP8 = stated(PRECISIONS["fp8"], {"weight_dtype": "fp8"})


def jobs() -> dict[str, Job]:
    experts = ExpertParallel(ep=2, etp=2, capacity_factor=1.5, overlap_degree=2)
    rich = PlanRow(tp=2, cp=(("p2p", 2),), ep=2, etp=2, pp=2, dp=2, gbs=8, mbs=2).strategy()
    zero3 = replace(rich, expert=experts, data=DataParallel(shard=2, zero=3))
    grouped = replace(rich, recompute=Recompute(kind="grouped", group=2))
    some = replace(rich, recompute=Recompute(kind="selective", modules=("layernorm",)))
    row = PlanRow(tp=2, cp=(("p2p", 2),), ep=2, etp=2, pp=2, dp=2, gbs=8, mbs=2)
    away = replace(zero3, offload=Offload(weights=0.5, activations=0.5, optimizer=0.5, gradients=0.25))
    disks = replace(plain_strategy(), offload=Offload(weights=1.0, optimizer=1.0, tier="nvme"))
    plain = PlanRow(tp=2, pp=2, dp=4, gbs=16)
    return {
        "experts": job(MIXED, "16xH100", row, zero3),
        "experts, whole weights": job(MIXED, "16xH100", row),
        "grouped": job(MIXED, "16xH100", row, grouped),
        "selective": job(MIXED, "16xH100", row, some),
        "selective, latent": job(LATENT, "16xH100", row, some),
        "offloaded": job(MIXED, "16xH100", row, away),
        "on disks": hosted(job(DENSE, "2xH100", PlanRow(dp=2, gbs=2, sharding="z3"), disks)),
        "latent": job(LATENT, "16xA100-80", row),
        "tied": job(TIED, "16xA100-80", plain, attention_kernel="materialised"),
        "fp8": job(DENSE, "16xH200", plain, precision=PRECISIONS["fp8"]),
        "fp8 weights": job(DENSE, "8xB200", PlanRow(tp=8, gbs=8), precision=WEIGHTS_IN_FP8),
        "fp8 weights in two layouts": job(DENSE, "8xH200", PlanRow(tp=8, gbs=8), precision=WEIGHTS_IN_FP8),
        "fp16": job(DENSE, "16xH100", plain, precision=PRECISIONS["fp16"], software="megatron-deepspeed"),
        "fp32": job(DENSE, "16xV100-32", plain, precision=PRECISIONS["fp32"]),
        "across nodes": job(TIED, "4x4xA100-80", replace(plain, dp=8, pp=1, sharding="fsdp-keep")),
        "experts across nodes": job(MIXED, "8x2xH100", PlanRow(ep=8, dp=16, gbs=16)),
        "unequal": job(DENSE, "8xH100", PlanRow(dp=8, gbs=16), sequence_lengths=((512, 0.75), (8192, 0.25))),
        "short": job(DENSE, "1xH100", PlanRow(gbs=1), seq_len=512, software="megatron-lm"),
        "4 bits": job(DENSE, "8xGB300", PlanRow(tp=8, gbs=8), precision=PRECISIONS["nvfp4"]),
        "crowded experts": crowded(job(MIXED, "8xH100", PlanRow(ep=4, dp=8, gbs=8, hot_experts="shadow2"))),
        "experts in fp32": job(MIXED, "8xH100", PlanRow(ep=8, dp=8, gbs=8), precision=PRECISIONS["fp32"]),
        "two pipelines": two_pipelines(),
        "adapters": job(replace(DENSE, tuning=Tuning(lora=LORA)), "2xH100", PlanRow(tp=2, gbs=2)),
        "normed queries": job(normed(DENSE), "2xH100", PlanRow(tp=2, gbs=2)),
        "frozen": job(replace(DENSE, tuning=Tuning(frozen=FROZEN)), "2xH100", PlanRow(tp=2, gbs=2)),
    }


def others(hint: Any, value: Any, name: str) -> Iterator[Any]:
    """Other values that a field of this type may have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from others(arguments[0], value, name)
    elif origin is Literal:
        yield from (word for word in arguments if word != value)
    elif origin in (Union, types.UnionType):
        if value is not None and type(None) in arguments:
            yield None
        kinds = [kind for kind in arguments if kind is not type(None)]
        if not is_dataclass(value):
            yield from others(kinds[0], value, name)
    elif hint is bool:
        yield not value
    elif hint is int:
        yield from ((value or 0) + 1, 2 * (value or 1), *((value // 2,) if value and value % 2 == 0 else ()))
    elif hint is float:
        yield from (0.5 * value, 2.0 * value, 1.25 * value) if value else (0.25, 1e9)
    elif name == "precision":
        yield from (recipe for recipe in PRECISIONS.values() if recipe != value)
    elif "dtype" in name or name in PRECISION_ROLES:
        yield from (dtype for dtype in ("fp32", "bf16", "int8") if dtype != value)
    elif name in WORDS:
        yield from (word for word in WORDS[name] if word != value)
    elif name == "layers" and value and isinstance(value[0], int):
        yield (4, 6)
    elif name == "layers" and value and isinstance(value[0], tuple):
        yield ((4, 6),)
    elif name == "modules":
        yield from ((word,) for word in ("core_attn", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts"))
    elif name in TUPLES:
        yield TUPLES[name]


PRECISION_ROLES = {f.name for f in fields(PRECISIONS["bf16"]) if str(f.type).startswith("str")} - {"name"}
WORDS = {
    "optimizer": ("sgd", "muon"),
    "packing": ("pad", "bins"),
    "software": ("pytorch-compiled", "megatron-deepspeed"),
    "rank_order": ("dp-ep-cp-tp", "tp-ep-cp-dp"),
    "reference": ("table.json",),
    "zone": ("elsewhere",),
    "base": ("int8",),
    "part": ("attention",),
    "family": ("fsdp",),
    "basis": ("extrapolated",),
}
TUPLES = {
    "placement": (1, 0),
    "sequence_lengths": ((4096, 0.5), (8192, 0.5)),
    "shapes": ((1, 4096), (1, 8192)),
    "orders": (("F0.0",),),
    "parameters": (("extra", 1),),
    "targets": ("k_proj", "v_proj"),
    "train": ("head",),
}
OF_ADAPTERS = {
    "Lora.parameters": ("down_proj",),
    "Lora.ranks": (("q_proj", 8),),
    "Lora.skip": ("attention",),
}
"""Tuples that adapters may be stated with, of names that mean something else in other records."""


def changes(record: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path by record and field, value, the whole with that value) of every field of a record and of its parts."""
    hints = get_type_hints(type(record), include_extras=True)
    for item in fields(record):
        if item.name in LABELS:
            continue
        value = getattr(record, item.name)
        here = f"{type(record).__name__}.{item.name}"
        stated = (OF_ADAPTERS[here],) if here in OF_ADAPTERS else others(hints[item.name], value, item.name)
        for other in stated:
            yield here, other, lambda other=other, item=item: replace(record, **{item.name: other})
        parts = value if isinstance(value, tuple) else (value,)
        for index, inner in enumerate(parts):
            if not is_dataclass(inner) or any(inner == before for before in parts[:index]):
                continue
            for found, other, make in changes(inner):
                # All equal parts at once: the other workers' order, the other nodes' device.
                def whole(make: Any = make, inner: Any = inner, item: Any = item, value: Any = value) -> Any:
                    made = make()
                    return replace(
                        record,
                        **{
                            item.name: tuple(made if part == inner else part for part in value)
                            if isinstance(value, tuple)
                            else made
                        },
                    )

                yield found, other, whole
        if value and isinstance(value, tuple) and not is_dataclass(value[0]):
            yield from pairs(record, item.name, value, here)


def pairs(record: Any, name: str, value: tuple[Any, ...], here: str) -> Iterator[tuple[str, Any, Any]]:
    """Tables of numbers by name, such as peaks: each number another one."""
    for index, entry in enumerate(value):
        if isinstance(entry, tuple) and isinstance(entry[-1], float):
            for other in (0.5 * entry[-1], 2 * entry[-1]):
                table = (*value[:index], (*entry[:-1], other), *value[index + 1 :])
                yield here, other, lambda table=table: replace(record, **{name: table})


def matters_each(path: str, value: Any) -> bool:
    """Whether every value must count. Of numbers and formats some may be those of an idle part."""
    words = isinstance(value, str) and not path.endswith(("basis", "dtype", "gathered"))
    return words or isinstance(value, bool)


def silent_fields() -> dict[str, list[str]]:
    """Values by field that neither change the estimate of any job nor are refused."""
    silent: dict[tuple[str, str], set[str]] = defaultdict(set)
    counted: set[tuple[str, str]] = set()
    for own in jobs().values():
        usual = estimate_plan(own.plan, own.model, own.cluster, own.workload)
        for path, value, make in changes(own):
            shown = repr(value)[:60]
            key = (path, shown if matters_each(path, value) else "")
            if key in counted:
                continue
            try:
                other = make()
                same = estimate_plan(other.plan, other.model, other.cluster, other.workload) == usual
            except MeshwrightError:
                same = False
            if same:
                silent[key].add(shown)
            else:
                counted.add(key)
    return {path: sorted(values) for (path, key), values in silent.items() if (path, key) not in counted}


def test_every_field_that_can_be_stated_is_priced_or_refused() -> None:
    assert silent_fields() == {}


def test_all_that_has_no_price_is_refused_together_with_reasons_and_remedies() -> None:
    own = jobs()["experts"]
    strategy = replace(
        own.plan.strategies[0],
        tensor=TensorPerOperator(mesh=(2,), reference="shards.json"),
        expert=ExpertParallel(ep=2, expert_shards=2),
        recompute=Recompute(kind="optimal", reference="table.json"),
    )
    plan = replace(own.plan, strategies=(strategy,))
    with pytest.raises(UnsupportedError) as caught:
        estimate_plan(plan, own.model, own.cluster, own.workload)
    assert caught.value.code == "MW406"
    assert {problem.field.rpartition("].")[2] for problem in caught.value.problems} == {
        "tensor.name",
        "expert.expert_shards",
        "recompute.kind",
        "recompute.reference",
    }
    assert all(problem.why and problem.fix for problem in caught.value.problems)


@pytest.mark.parametrize("sharding", ["z3", "weipipe"])
def test_weights_travel_in_the_ways_of_the_catalogue_alone(sharding: str) -> None:
    own = job(DENSE, "8xH100", PlanRow(dp=8, gbs=16, sharding=sharding))
    (strategy,) = own.plan.strategies
    assert estimate_plan(own.plan, own.model, own.cluster, own.workload).step_time_s > 0
    by_hand = replace(own.plan, strategies=(replace(strategy, data=replace(strategy.data, passing="by hand")),))
    with pytest.raises(UnsupportedError, match=r"data\.passing is 'by hand'") as caught:
        estimate_plan(by_hand, own.model, own.cluster, own.workload)
    assert [problem.fix for problem in caught.value.problems] == ["use one of collective, ring"]


def test_weights_and_gradients_cross_in_the_formats_a_plan_states() -> None:
    """ZeRO++: int8 weights take half as long on the network, int4 gradients an eighth; what is kept stays as it is."""
    own = job(DENSE, "4x8xH100", PlanRow(dp=32, gbs=32, sharding="z3", dp_overlap=False))
    (strategy,) = own.plan.strategies
    formats = {"gather_dtype": "int8", "reduce_dtype": "int4"}
    fewer = replace(own.plan, strategies=(replace(strategy, data=replace(strategy.data, **formats)),))
    usual, quick = (estimate_plan(plan, own.model, own.cluster, own.workload) for plan in (own.plan, fewer))
    # bf16 gathered twice and fp32 scattered once: 8 bytes a parameter, then 2.5, and latencies that stay.
    assert 2.5 / 8 < dict(quick.breakdown_s)["dp"] / dict(usual.breakdown_s)["dp"] < 0.4
    assert dict(quick.stages[0].memory_bytes)["weights"] == dict(usual.stages[0].memory_bytes)["weights"]


def test_forward_only_runs_no_backward_and_keeps_only_weights() -> None:
    own = jobs()["latent"]
    forward = mw.estimate(own.model, own.plan, own.cluster, replace(own.workload, training=False))
    trained = mw.estimate(own.model, own.plan, own.cluster, own.workload)
    assert forward[0].estimate.step_time_s < 0.5 * trained[0].estimate.step_time_s
    assert dict(forward[0].estimate.stages[0].memory_bytes)["gradients"] == 0
