"""Which layers to recompute: chosen per layer, not per plan, by dynamic programming on every worker.

The pipeline gets no slower when a worker gets quicker, so every worker on its own spends as little time on recomputing
as its memory allows. On one worker this is a knapsack: each layer takes one option (time, bytes); states that another
one beats in both are dropped, so the answer is exact. With several chunks per worker, each chunk is counted at its own
peak, which may ask for a little more recompute than needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.items import FULL, NONE, SELECTIVE, Item, ItemCosts, item_costs
from meshwright.estimate.layout import ModelLayout, expand
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plan, strategy_columns
from meshwright.estimate.result import StepEstimate
from meshwright.library.software import software
from meshwright.schedules import schedule_named
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.plan import ExecutionPlan, StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy, Recompute
from meshwright.specs.workload import Workload

NORMS = Recompute(kind="selective", modules=("core_attn", "layernorm"))
DENSE = Recompute(kind="selective", modules=("core_attn", "layernorm", "mlp"))
EXPERTS = Recompute(kind="selective", modules=("core_attn", "layernorm", "moe_act"))


def options_of(layer: LayerSpec) -> tuple[Recompute, ...]:
    """What a layer may recompute, from nothing to all of it."""
    return (NONE, SELECTIVE, NORMS, EXPERTS if layer.mlp.routed_experts else DENSE, FULL)


@dataclass(frozen=True, slots=True)
class RecomputeOption:
    """One layer's option."""

    recompute: Recompute
    time_s: float
    kept_bytes: float
    """Summed over what is in flight at the worker's peak."""
    transient_bytes: float = 0.0
    """Working memory of its backward."""


@dataclass(frozen=True, slots=True)
class _State:
    time_s: float
    kept_bytes: float
    picked: tuple[int, ...]


def cheapest_choices(layers: list[tuple[RecomputeOption, ...]], budget_bytes: float) -> tuple[int, ...] | None:
    """The option of each layer that costs the least time within a budget of bytes.

    Args:
        layers: options of each layer.
        budget_bytes: for all together.

    Returns:
        Index of each layer's option, None if not even the smallest fit.
    """
    least_left = [0.0]
    for options in reversed(layers):
        least_left.append(least_left[-1] + min(option.kept_bytes for option in options))
    least_left.reverse()
    states = [_State(0.0, 0.0, ())]
    for number, options in enumerate(layers):
        room = budget_bytes - least_left[number + 1]
        grown = [
            _State(state.time_s + option.time_s, state.kept_bytes + option.kept_bytes, (*state.picked, index))
            for state in states
            for index, option in enumerate(options)
            if state.kept_bytes + option.kept_bytes <= room
        ]
        states = _undominated(grown)
        if not states:
            return None
    return states[0].picked


def _undominated(states: list[_State]) -> list[_State]:
    """States no other one beats in time and bytes, quickest first."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda s: (s.time_s, s.kept_bytes)):
        if not kept or state.kept_bytes < kept[-1].kept_bytes * (1.0 - 1e-12):
            kept.append(state)
    return kept


def refine_recompute(
    row: PlanRow, model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> tuple[ExecutionPlan, StepEstimate] | None:
    """The plan of a row with the recompute of every layer chosen anew.

    Args:
        row: degrees; its own recompute is replaced.
        model: the model.
        cluster: one group of equal nodes.
        workload: the step.

    Returns:
        Plan and estimate; None if no choice fits, or if the row needs no recompute at all.
    """
    bare = replace(row, recompute="none", recompute_layers=0)
    plan = expand(bare, model, workload.seq_len)
    estimate = estimate_plan(plan, model, cluster, workload)
    if estimate.fits == "yes":
        return None
    costs, items = _costs(bare, model, cluster, workload)
    lost = software(workload.software, workload.calibration).fragmentation
    limit_bytes = cluster.groups[0].device.memory_bytes * (1.0 - TIGHT_SHARE)
    strategies: list[LayerStrategy] = []
    workers = []
    pipeline = plan.pipelines[0]
    layers = list(model.layers())
    in_flight = schedule_named(row.schedule).in_flight(row.pp, row.micro_batches, row.vpp)
    for worker, stage, vectors in zip(pipeline.workers, estimate.stages, in_flight, strict=True):
        alive = vectors.max(axis=0)
        held = [(slot, layer) for slot, chunk in enumerate(worker.chunks) for layer in _layers(chunk.layers)]
        table = [
            tuple(
                _choice(option, layers[layer], costs, items, int(alive[slot])) for option in options_of(layers[layer])
            )
            for slot, layer in held
        ]
        edges = {"embedding": any(c.embedding for c in worker.chunks), "head": any(c.head for c in worker.chunks)}
        edge_bytes = max(
            (float(costs.transient_bytes[0, items[Item(part)]]) for part, here in edges.items() if here), default=0.0
        )
        picked = _cheapest_with_room(table, dict(stage.memory_bytes), limit_bytes, edge_bytes, lost)
        if picked is None:
            return None
        chosen = {
            layer: table[i][option].recompute for i, ((_, layer), option) in enumerate(zip(held, picked, strict=True))
        }
        chunks = []
        for chunk in worker.chunks:
            runs: list[StrategyRun] = []
            for layer in _layers(chunk.layers):
                strategy = replace(bare.strategy(), recompute=chosen[layer])
                if strategy not in strategies:
                    strategies.append(strategy)
                index = strategies.index(strategy)
                if runs and runs[-1].strategy == index:
                    runs[-1] = StrategyRun(layers=runs[-1].layers + 1, strategy=index)
                else:
                    runs.append(StrategyRun(layers=1, strategy=index))
            chunks.append(replace(chunk, runs=tuple(runs)))
        workers.append(replace(worker, chunks=tuple(chunks)))
    refined = ExecutionPlan(strategies=tuple(strategies), pipelines=(replace(pipeline, workers=tuple(workers)),))
    return refined, estimate_plan(refined, model, cluster, workload)


def _layers(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [layer for first, last in ranges for layer in range(first, last + 1)]


def _costs(
    row: PlanRow, model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> tuple[ItemCosts, dict[Item, int]]:
    """Costs of every layer kind under every option, one row."""
    kinds = ModelLayout.of(model, workload.seq_len).kinds
    items = (
        *(Item("layer", kind, option) for kind in kinds for option in options_of(kind)),
        Item("embedding"),
        Item("head"),
    )
    columns = strategy_columns([row.strategy()], row.mbs, workload)
    hardware = hardware_of(cluster.groups[0], workload)
    return item_costs(items, columns, model, hardware, workload), {item: i for i, item in enumerate(items)}


def _choice(
    option: Recompute, layer: LayerSpec, costs: ItemCosts, items: dict[Item, int], alive: int
) -> RecomputeOption:
    index = items[Item("layer", layer, option)]
    time_s = float(costs.forward_s[0, index] + costs.backward_s[0, index])
    kept_bytes, transient_bytes = float(costs.kept_bytes[0, index]), float(costs.transient_bytes[0, index])
    return RecomputeOption(option, time_s, alive * kept_bytes, transient_bytes)


def _cheapest_with_room(
    table: list[tuple[RecomputeOption, ...]],
    memory: dict[str, float],
    limit_bytes: float,
    edge_bytes: float,
    lost: float,
) -> tuple[int, ...] | None:
    """The cheapest choices of a worker, tried for every size its working memory may have.

    Args:
        table: options of each layer; the first is no recompute, as in `memory`.
        memory: bytes by kind of the worker without recompute.
        limit_bytes: of the device.
        edge_bytes: working memory of the embedding or head, if the worker holds one.
        lost: to fragmentation, over what is allocated.
    """
    states = memory["weights"] + memory["gradients"] + memory["optimizer"]
    other = memory["activations"] - sum(options[0].kept_bytes for options in table)
    context = memory["overhead"] - lost * (states + memory["activations"] + memory["transient"])
    room = (limit_bytes - memory["comm_buffers"] - context) / (1.0 + lost) - states - other
    least = max(edge_bytes, max(options[0].transient_bytes for options in table))
    gathered = memory["transient"] - least
    best: tuple[float, tuple[int, ...]] | None = None
    for size in sorted({max(option.transient_bytes, least) for options in table for option in options}):
        allowed = [
            [index for index, option in enumerate(options) if option.transient_bytes <= size] for options in table
        ]
        narrowed = [tuple(options[i] for i in here) for options, here in zip(table, allowed, strict=True)]
        picked = cheapest_choices(narrowed, room - size - gathered)
        if picked is not None:
            indices = tuple(here[i] for here, i in zip(allowed, picked, strict=True))
            time_s = sum(options[i].time_s for options, i in zip(table, indices, strict=True))
            if best is None or time_s < best[0]:
                best = (time_s, indices)
    return None if best is None else best[1]
