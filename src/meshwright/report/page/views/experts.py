"""How tokens spread over the experts of a layer and over the ranks that hold them; a live page edits it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.estimate.pricer import micro_batch_of
from meshwright.estimate.rows import strategy_columns
from meshwright.kernels.expert_load import Shares, dropped_share, rank_shares
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.job import Job
from meshwright.specs.strategy import LayerStrategy
from meshwright.strategies.columns import StrategyColumns
from meshwright.strategies.crowding import crowding_of


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Load of every expert and every expert rank over the mean, and how full the fullest rank is.

    Args:
        plan: the plan whose experts they are.
        source: the answer.
    """
    job = plan.job
    if not isinstance(job, Job) or not job.model.is_moe:
        return {"absent": "no layer of this model has experts"}
    layer = max((layer.mlp for layer in job.model.kinds()), key=lambda mlp: mlp.routed_experts)
    stated = job.workload.expert_load
    load = None if stated is None else stated.over(layer.routed_experts)
    shares = _shown_shares(load, layer.routed_experts)
    top_k = layer.visited_experts
    ways: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, pipeline in enumerate(job.plan.pipelines):
        for stage, worker in enumerate(pipeline.workers):
            if not any(chunk.runs for chunk in worker.chunks):
                continue
            strategy = job.plan.strategies[job.plan.strategy_index(pipeline, worker)]
            sequences = micro_batch_of(job.plan, pipeline, strategy)
            columns = strategy_columns([strategy], sequences, job.workload).of_experts(layer.routed_experts)
            own = _way(strategy, columns, load, top_k, shares)
            key = tuple(map(str, own.values()))
            ways.setdefault(key, own | {"stages": []})["stages"].append([number, stage])
    return {
        "experts": layer.routed_experts,
        "top_k": top_k,
        "stated": {
            "zipf": None if load is None else load.zipf,
            "layers": 0 if load is None else len(load.counts),
            "factor": None if load is not None else job.workload.expert_imbalance,
        },
        "load": (shares[0] * layer.routed_experts).round(6).tolist(),
        "ways": list(ways.values()),
    }


def file_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any] | None:
    """The same for a file; None for a model without experts."""
    data = view_data(plan, source)
    return None if "absent" in data else data


def _shown_shares(load: ExpertLoad | None, experts: int) -> Shares:
    """Shares of one layer: the mean of those counted, one of those drawn, equal where only the fullest is stated."""
    if load is None:
        return np.full((1, experts), 1.0 / experts)
    shares = crowding_of(load).shares
    return shares[:1] if load.zipf is not None else shares.mean(axis=0, keepdims=True)


def _way(
    strategy: LayerStrategy, columns: StrategyColumns, load: ExpertLoad | None, top_k: float, shares: Shares
) -> dict[str, Any]:
    """What one strategy makes of a load."""
    expert = strategy.expert
    arriving, computed = (float(np.max(full)) for full in columns.fullest_ranks(top_k))
    held = rank_shares(shares, expert.ep, shadowed=expert.shadowed, placed=expert.placed_by_load)[1][0]
    capacity = expert.capacity_factor
    return {
        "ep": expert.ep,
        "dispatcher": expert.dispatcher,
        "shadowed": expert.shadowed,
        "placed": expert.placed_by_load,
        "capacity": capacity,
        "arriving": arriving,
        "computed": computed,
        "dropped": None if capacity is None or load is None else dropped_share(crowding_of(load).shares, capacity),
        "ranks": (held * expert.ep).round(6).tolist(),
    }
