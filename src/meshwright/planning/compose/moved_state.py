"""What a change of plan moves: the weights and optimizer states that devices lack, by the link they come over.

Every device holds one interval of a layer's parameters: its tensor rank's part, cut further where states are sharded.
A device of the later plan receives what it holds then and did not hold before, from the nearest device that has it: of
its node, of its group, of the group with the fastest link, or from nobody, where every holder is lost.

    seconds   the longest that any device receives, at its links' speeds; senders share the work
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.ops.counts import trained_in
from meshwright.ops.layers import work_of
from meshwright.shapes import Float, Int
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Worker
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload

KINDS = ("weights", "optimizer", "expert weights", "expert optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFlow:
    """Bytes over one kind of link."""

    link: str
    """Name of the link: `inside nodes of H100`, `H100 - A100-80`."""
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedState:
    """What a change moves."""

    flows: tuple[StateFlow, ...]
    lost_bytes: float
    """Held by no device that is left: a checkpoint has to give it."""
    kept_bytes: float
    """Already where the later plan wants it."""
    time_s: float

    @property
    def moved_bytes(self) -> float:
        """Bytes over all links."""
        return sum(flow.size_bytes for flow in self.flows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """Intervals of one kind of state of a layer, one row per device."""

    device: Int[np.ndarray, "rows"]
    start: Float[np.ndarray, "rows"]
    stop: Float[np.ndarray, "rows"]


def moved_state(
    model: ModelSpec,
    workload: Workload,
    before: ExecutionPlan,
    after: ExecutionPlan,
    cluster: ClusterSpec,
    number_after: Int[np.ndarray, "before"],
) -> MovedState:
    """What moves between two plans.

    Args:
        model: the model of both.
        workload: number formats and optimizer of both.
        before: the plan on the earlier cluster.
        after: the plan on the later cluster.
        cluster: the later one.
        number_after: later number of each earlier device, -1 where it is lost.
    """
    place = _Places(cluster)
    received = np.zeros((cluster.devices, len(cluster.groups) + 2))
    kept = 0.0
    earlier, later = _by_layer(before, model), _by_layer(after, model)
    sizes = _bytes_by_layer(model, workload)
    runs = _runs(earlier, later, sizes)
    for kind in range(len(KINDS)):
        for first, count in runs:
            each = sizes[first][kind] * count
            if not each:
                continue
            had = _renumbered(_holders(before, earlier[first], kind), number_after)
            wants = _holders(after, later[first], kind)
            by_link, own = place.received(had, wants)
            received[wants.device] += each * by_link
            kept += each * float(own.sum())
    return place.summed(received, kept)


def lost_share_bytes(
    model: ModelSpec, workload: Workload, before: ExecutionPlan, number_after: Int[np.ndarray, "before"]
) -> float:
    """Weights and optimizer states that devices held which are gone, or whose nodes are.

    Args:
        model: the model.
        workload: number formats and optimizer.
        before: the plan on the earlier cluster.
        number_after: later number of each earlier device, -1 where it is lost.
    """
    where, sizes = _by_layer(before, model), _bytes_by_layer(model, workload)
    found = 0.0
    for kind in range(len(KINDS)):
        for first, count in _runs(where, where, sizes):
            each = sizes[first][kind] * count
            if each:
                held = _holders(before, where[first], kind)
                found += each * float((held.stop - held.start)[number_after[held.device] < 0].sum())
    return found


Where = tuple[tuple[int, int, int], ...]
"""(pipeline, worker, strategy) of every holder of a layer."""


def _by_layer(plan: ExecutionPlan, model: ModelSpec) -> list[Where]:
    """Holders of each layer, then of the embedding, then of the head."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(model.num_layers + 2)]
    for p, pipeline in enumerate(plan.pipelines):
        for w, worker in enumerate(pipeline.workers):
            for chunk in worker.chunks:
                strategies = _strategy_of_layers(chunk)
                for layer, strategy in strategies:
                    found[layer].append((p, w, strategy))
                edge = strategies[0][1] if strategies else plan.strategy_index(pipeline, worker, chunk)
                for held, index in ((chunk.embedding, -2), (chunk.head, -1)):
                    if held:
                        found[index].append((p, w, edge))
    return [tuple(dict.fromkeys(one)) for one in found]


def _strategy_of_layers(chunk: Chunk) -> list[tuple[int, int]]:
    layers = [layer for first, last in chunk.layers for layer in range(first, last + 1)]
    strategies = [run.strategy for run in chunk.runs for _ in range(run.layers)]
    return list(zip(layers, strategies, strict=True))


def _bytes_by_layer(model: ModelSpec, workload: Workload) -> list[tuple[float, ...]]:
    """Bytes of each kind of state of each layer, of the embedding and of the head."""
    recipe = workload.precision
    weight = recipe.bytes_of("weights")
    state = workload.update.each_bytes(recipe.bytes_of("moments"))
    state += recipe.bytes_of("master") if recipe.master else 0.0
    of_kind: dict[LayerSpec, tuple[float, ...]] = {}
    for layer in model.kinds():
        width = model.width(layer)
        experts = layer.mlp.routed_experts * layer.mlp.expert_parameters(width)
        dense = layer.parameters(width) - experts
        # Where not everything is trained, states are those of what is; adapters are small beside what they adapt.
        own = trained_in(work_of(model, layer, "flash")) if model.tuning else dense + experts
        shared = experts / (dense + experts) if dense + experts else 0.0
        of_kind[layer] = (dense * weight, own * (1 - shared) * state, experts * weight, own * shared * state)
    parts: tuple[tuple[int, Literal["embedding", "head"]], ...]
    parts = ((model.embedding_parameters, "embedding"), (model.head_parameters, "head"))
    edges = [
        (n * weight, 0.0 if model.tuning and model.tuning.freezes(part) else n * state, 0.0, 0.0) for n, part in parts
    ]
    return [*(of_kind[layer] for layer in model.layers()), *edges]


def _runs(
    earlier: Sequence[Where], later: Sequence[Where], sizes: Sequence[tuple[float, ...]]
) -> list[tuple[int, int]]:
    """(a layer, how many) with equal holders before and after, and equal bytes."""
    seen: dict[object, list[int]] = {}
    for layer, key in enumerate(zip(earlier, later, sizes, strict=True)):
        seen.setdefault(key, []).append(layer)
    return [(layers[0], len(layers)) for layers in seen.values()]


def _holders(plan: ExecutionPlan, where: Where, kind: int) -> _Held:
    parts = []
    for p, w, index in where:
        worker, strategy = plan.pipelines[p].workers[w], plan.strategies[index]
        before = plan.pipelines[:p] if strategy.data.across else ()
        first = sum(one.num_devices for pipeline in before for one in pipeline.workers) // strategy.tp
        parts.append(_intervals(worker, strategy, kind, first))
    return _Held(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("device", "start", "stop")}
    )


def _intervals(worker: Worker, strategy: LayerStrategy, kind: int, first: int = 0) -> _Held:
    """What each device of a worker holds of a layer: tensor or expert part, cut by the ranks that shard it.

    Where pipelines hold states together, these are the ranks of all, `first` of them in pipelines before.
    """
    device = np.concatenate([np.arange(first, last + 1) for first, last in worker.devices])
    rank = np.arange(len(device))
    data = strategy.data
    experts, optimizer = kind >= 2, kind % 2 == 1
    parts = strategy.expert.ep * strategy.expert.etp if experts else strategy.tp
    sharded = data.zero >= 1 if optimizer else data.zero == 3
    ranks = len(device) // parts
    shards = min(ranks, data.shard * strategy.cp) if sharded and not experts else (ranks if sharded else 1)
    if sharded and data.across:
        shards = data.across
    width = 1.0 / (parts * shards)
    start = (rank % parts) / parts + ((first + rank // parts) % shards) * width
    return _Held(device=device, start=start, stop=start + width)


def _renumbered(held: _Held, number_after: Int[np.ndarray, "before"]) -> _Held:
    number = number_after[held.device]
    left = number >= 0
    return _Held(device=number[left], start=held.start[left], stop=held.stop[left])


class _Places:
    """Where the later cluster's devices are, and how quick their links are."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        groups = cluster.groups
        self.group = np.repeat(np.arange(len(groups)), [group.devices for group in groups])
        per_node = np.concatenate([np.arange(group.devices) // group.devices_per_node for group in groups])
        first = np.concatenate([[0], np.cumsum([group.nodes for group in groups])])
        self.node = per_node + first[self.group]
        self.group_of_node = np.repeat(np.arange(len(groups)), [group.nodes for group in groups])
        self.speed = np.array([[self._speed(a, b) for b in range(len(groups))] for a in range(len(groups))])
        inner = [group.domains[0] for group in groups]
        self.inner_speed = np.array([domain.bandwidth_bytes_per_s * domain.efficiency for domain in inner])

    def _speed(self, a: int, b: int) -> float:
        """Bytes per second and device from one group to another, or between nodes of one."""
        groups = self.cluster.groups
        if a == b:
            outer = groups[a].domains[-1]
            return outer.bandwidth_bytes_per_s * outer.efficiency
        names = {groups[a].name, groups[b].name}
        return next(link.bandwidth_bytes_per_s for link in self.cluster.links if set(link.between) == names)

    def received(self, had: _Held, wants: _Held) -> tuple[Float[np.ndarray, "rows links"], Float[np.ndarray, "rows"]]:
        """Share of a layer's state that each device receives over each link, and what it has already.

        Returns:
            links: inside the node, from each group, from nobody.
        """
        bounds = np.unique(np.round(np.concatenate([had.start, had.stop, wants.start, wants.stop]), 12))
        width = np.diff(bounds)
        nodes, groups = len(self.group_of_node), len(self.cluster.groups)
        of_node = self._covered(self.node[had.device], had, bounds, nodes)
        of_group = self._covered(self.group[had.device], had, bounds, groups)
        links = np.zeros((nodes, groups + 2, len(width)), dtype=bool)
        links[:, 0] = of_node
        open_ = ~of_node
        for node in range(nodes):
            own = int(self.group_of_node[node])
            order = sorted(range(groups), key=lambda g: (g != own, -self.speed[own, g]))
            for group in order:
                links[node, 1 + group] = open_[node] & of_group[group]
                open_[node] &= ~of_group[group]
        links[:, -1] = open_
        before = np.zeros((nodes, groups + 2, len(bounds)))
        np.cumsum(links * width, axis=2, out=before[:, :, 1:])
        first, last = (np.searchsorted(bounds, np.round(ends, 12)) for ends in (wants.start, wants.stop))
        node = self.node[wants.device]
        by_link = before[node, :, last] - before[node, :, first]
        held_start, held_stop = np.zeros(self.cluster.devices), np.zeros(self.cluster.devices)
        held_start[had.device], held_stop[had.device] = had.start, had.stop
        low = np.maximum(held_start[wants.device], wants.start)
        own_share = np.maximum(np.minimum(held_stop[wants.device], wants.stop) - low, 0.0)
        by_link[:, 0] -= own_share
        return np.maximum(by_link, 0.0), own_share

    @staticmethod
    def _covered(
        owner: Int[np.ndarray, "rows"], held: _Held, bounds: Float[np.ndarray, "bounds"], owners: int
    ) -> np.ndarray:
        """Which owners hold which cells between the bounds."""
        steps = np.zeros((owners, len(bounds)), dtype=np.int64)
        np.add.at(steps, (owner, np.searchsorted(bounds, np.round(held.start, 12))), 1)
        np.add.at(steps, (owner, np.searchsorted(bounds, np.round(held.stop, 12))), -1)
        return np.cumsum(steps, axis=1)[:, :-1] > 0

    def summed(self, received: Float[np.ndarray, "devices links"], kept: float) -> MovedState:
        """Bytes by link, and the longest that a device receives."""
        names = [group.name for group in self.cluster.groups]
        flows: dict[str, float] = {}
        for g, name in enumerate(names):
            mine = received[self.group == g].sum(axis=0)
            flows[f"inside nodes of {name}"] = float(mine[0])
            for h in range(len(names)):
                link = f"between nodes of {name}" if g == h else " - ".join(names[i] for i in sorted((g, h)))
                flows[link] = flows.get(link, 0.0) + float(mine[1 + h])
        times = received[:, 0] / self.inner_speed[self.group]
        times = times + (received[:, 1:-1] / self.speed[self.group]).sum(axis=1)
        return MovedState(
            flows=tuple(StateFlow(link=link, size_bytes=size) for link, size in flows.items() if size > 0.5),
            lost_bytes=float(received[:, -1].sum()),
            kept_bytes=kept,
            time_s=float(times.max(initial=0.0)),
        )
