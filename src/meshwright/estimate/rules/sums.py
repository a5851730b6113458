"""What data ranks may send in place of whole gradients and weights: compressions, averages and second copies."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.specs.shardings import sharding_of
from meshwright.specs.strategy import COLLECTIVE, LayerStrategy
from meshwright.specs.workload import Workload
from meshwright.strategies.compression import chosen, nearest_words


def sum_problems(strategy: LayerStrategy, layers: int) -> Iterator[Problem]:
    """What a strategy says of its sums and does not fit together.

    Args:
        strategy: the strategy of layers.
        layers: layers of the model.
    """
    yield from _of_compression(strategy)
    yield from _of_averages(strategy)
    yield from _of_second_copy(strategy)
    yield from _of_prefetch(strategy, layers)


def sums_of_job(strategy: LayerStrategy, workload: Workload, pipelines: int) -> Iterator[Problem]:
    """What a strategy says of its sums and this job cannot have.

    Args:
        strategy: the strategy of layers.
        workload: the workload with the optimizer.
        pipelines: the number of pipelines of the plan.
    """
    data = strategy.data
    found = chosen(data.compression) if data.compression else None
    if found and found.kind.optimizer and workload.optimizer != found.kind.optimizer:
        yield Problem(
            what=f"gc-{data.compression} with {workload.optimizer}",
            why=f"it sends momenta of {found.kind.optimizer}",
            fix=f"use --optimizer {found.kind.optimizer}, or gc-powersgd4",
            field="data.compression",
        )
    if pipelines > 1 and (data.compression or data.averaging != "synchronous"):
        said = f"gc-{data.compression}" if data.compression else _averaged(strategy)
        yield Problem(
            what=f"{said} with {pipelines} pipelines",
            why="pipelines of unlike devices sum whole gradients between them every step",
            fix="leave it out, or use one pipeline",
            field="data",
        )


def _of_compression(strategy: LayerStrategy) -> Iterator[Problem]:
    data = strategy.data
    if not data.compression:
        return
    word, field = f"gc-{data.compression}", "data.compression"
    found = chosen(data.compression)
    if found is None:
        fix = f"use {nearest_words(data.compression)}"
        yield Problem(what=f"{word} is unknown", why="no compression has this name", fix=fix, field=field)
        return
    kind = found.kind
    if not 1 <= found.setting <= kind.most:
        near = min(max(found.setting, 1), kind.most)
        why = f"the number is {kind.setting}, 1 to {kind.most:,}"
        yield Problem(what=f"{word} says {found.setting}", why=why, fix=f"use gc-{kind.name}{near}", field=field)
    if data.zero:
        yield Problem(
            what=f"{word} with {sharding_of(strategy.data).name}",
            why="a rank that holds a shard has neither the whole gradient nor its whole compression error",
            fix="use z0, or smaller formats on the network (qg-int4)",
            field=field,
        )
    elif strategy.cp * strategy.dp == 1:
        why = "with one data rank no gradients are summed"
        yield Problem(what=f"{word} on one data rank", why=why, fix="leave it out, or use dp2 or more", field=field)
    if data.reduce_dtype:
        why = "what is sent is in the format of the compression"
        yield Problem(what=f"{word} with qg-{data.reduce_dtype}", why=why, fix="leave one of them out", field=field)
    if data.averaging != "synchronous":
        why = "replicas that are averaged now and then send no gradients"
        yield Problem(what=f"{word} with {_averaged(strategy)}", why=why, fix="leave one of them out", field=field)


def _of_averages(strategy: LayerStrategy) -> Iterator[Problem]:
    data, field = strategy.data, "data.averaging"
    if data.averaging in ("synchronous", "elastic"):
        if data.averaging_steps != 1:
            yield Problem(
                what=f"averaging_steps is {data.averaging_steps} with {data.averaging} sums",
                why="gradients are summed every step",
                fix="use 1, or averaging local or diloco",
                field="data.averaging_steps",
            )
        return
    said = _averaged(strategy)
    replicas = strategy.cp * strategy.dp if data.zero == 0 else data.replicate
    if replicas < 2:
        yield Problem(
            what=f"{said} with {sharding_of(strategy.data).name}",
            why="there is one copy of the weights, and nothing to average it with",
            fix="use z0, or groups of ranks that each hold a copy: hsdp8",
            field=field,
        )
    elif strategy.cp > 1 and data.zero == 0:
        yield Problem(
            what=f"{said} with cp {strategy.cp}",
            why="context ranks of a sequence need the same weights, and with z0 each rank is a replica",
            fix=f"use hsdp{strategy.cp} or a larger group",
            field=field,
        )
    if data.averaging == "local" and data.averaging_steps < 2:
        why, fix = "gradient sums already keep replicas equal after every step", "use local2, or leave it out"
        yield Problem(what="local1 averages every step", why=why, fix=fix, field=field)
    if strategy.expert.ep > 1:
        yield Problem(
            what=f"{said} with ep {strategy.expert.ep}",
            why="tokens go to experts of other replicas, whose weights have drifted",
            fix="use ep1, or leave it out",
            field=field,
        )


def _of_prefetch(strategy: LayerStrategy, layers: int) -> Iterator[Problem]:
    data, field = strategy.data, "data.prefetch"
    if data.prefetch == 1:
        return
    word = f"prefetch{data.prefetch}"
    if data.zero < 3 or not data.reshard or data.passing != COLLECTIVE:
        why = "weights are not gathered layer by layer"
        fix = "use z3, fsdp or hsdp, or leave it out"
        yield Problem(what=f"{word} with {sharding_of(data).name}", why=why, fix=fix, field=field)
    elif strategy.offload.weights:
        why = "weights come from the host with the next layer"
        yield Problem(what=f"{word} with offloaded weights", why=why, fix="leave one of them out", field=field)
    elif data.prefetch > max(layers, 2):
        why = f"no more than the {layers} layers of the model can be gathered ahead"
        yield Problem(what=word, why=why, fix="use prefetch2, or z2, which keeps weights whole", field=field)


def _of_second_copy(strategy: LayerStrategy) -> Iterator[Problem]:
    data, ranks = strategy.data, strategy.data.secondary_shard
    if not ranks:
        return
    field, shards = "data.secondary_shard", strategy.cp * strategy.dp // data.replicate
    if data.zero < 3 or not data.reshard:
        yield Problem(
            what=f"hpz{ranks} with {sharding_of(strategy.data).name}",
            why="weights are not gathered a second time for backward",
            fix="use z3 or fsdp, or leave it out",
            field=field,
        )
    elif not 1 < ranks < shards or shards % ranks:
        legal = [size for size in range(2, shards) if shards % size == 0]
        near = min(legal, key=lambda size: (abs(size - ranks), size), default=0)
        yield Problem(
            what=f"hpz{ranks} with {shards} shards",
            why="the second copy is on several ranks, a proper divisor of those of the first",
            fix=f"use hpz{near}" if near else "leave it out",
            field=field,
        )


def _averaged(strategy: LayerStrategy) -> str:
    return f"{strategy.data.averaging}{strategy.data.averaging_steps}"
