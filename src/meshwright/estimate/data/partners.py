"""Who sums gradients with whom: every layer is held once by each pipeline, by workers that may differ in all respects.

Workers of all pipelines that hold the same layers form a ring. Members inside a worker's own domains are counted level
by level, as for a data group; what leaves the group crosses the slowest link between the groups of the ring. A worker
whose layers have different partners sees their mean, weighted by parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meshwright.estimate.data.network import Partners
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.site import Site, Sites
from meshwright.kernels.lines import LevelRates
from meshwright.ops.counts import trained_in
from meshwright.ops.edges import edge_work, edge_works
from meshwright.ops.layers import work_of
from meshwright.shapes import Float, Int
from meshwright.specs.plan import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ring:
    """How one worker sees the holders of some layers."""

    members: tuple[int, ...]
    between: LevelRates | None
    """None where all stand in one group."""
    wider: float


def holders(pipeline: Pipeline, num_layers: int) -> Int[np.ndarray, " held"]:
    """The worker that holds the embedding, each layer, and the head, of the primary copies.

    Args:
        pipeline: the pipeline of a plan.
        num_layers: the number of layers of the model.
    """
    found = np.zeros(num_layers + 2, dtype=np.int64)
    for place, worker in enumerate(pipeline.workers):
        for chunk in worker.chunks:
            if chunk.copy != "primary":
                continue
            for first, last in chunk.layers:
                found[first + 1 : last + 2] = place
            if chunk.embedding:
                found[0] = place
            if chunk.head:
                found[-1] = place
    return found


def weights_of(layout: ModelLayout) -> Float[np.ndarray, " held"]:
    """Parameters that are trained of the embedding, each layer, and the head."""
    model = layout.model
    if model.tuning is not None:
        own = [trained_in(work_of(model, kind, "flash")) for kind in layout.kinds]
        layers = np.diff(layout.kinds_before, axis=0) @ np.array(own, dtype=float)
        head = trained_in(edge_work(model, "head")) * (not model.tied_embeddings)
        return np.concatenate([[sum(trained_in(work) for work in edge_works(model, "embedding"))], layers, [head]])
    kinds = np.array([kind.parameters(model.width(kind)) for kind in layout.kinds], dtype=float)
    layers = np.diff(layout.kinds_before, axis=0) @ kinds
    return np.concatenate([[model.embedding_parameters], layers, [model.head_parameters + model.mtp_parameters]])


def partners_of(
    stages: Sequence[Sequence[Site]],
    held: Sequence[Int[np.ndarray, " held"]],
    weights: Float[np.ndarray, " held"],
    sites: Sites,
) -> list[Partners]:
    """The partners of every worker, pipeline by pipeline.

    Args:
        stages: sites of each pipeline's workers.
        held: `holders` of each pipeline.
        weights: `weights_of` the model.
        sites: links of the cluster.
    """
    rings, which = np.unique(np.stack(held), axis=1, return_inverse=True)
    weight = np.bincount(which.reshape(-1), weights, minlength=rings.shape[1])
    seen: dict[tuple[int, int], list[tuple[_Ring, float]]] = {}
    for ring, share in zip(rings.T.tolist(), weight.tolist(), strict=True):
        places = [stages[pipeline][worker] for pipeline, worker in enumerate(ring)]
        for pipeline, (worker, view) in enumerate(zip(ring, _views(places, sites), strict=True)):
            seen.setdefault((pipeline, worker), []).append((view, max(share, 1.0)))
    return [
        _mean(seen.get((pipeline, worker), []), site, len(stages), sites)
        for pipeline, workers in enumerate(stages)
        for worker, site in enumerate(workers)
    ]


def _views(ring: Sequence[Site], sites: Sites) -> list[_Ring]:
    """The ring as each of its members sees it."""
    narrowest = min(site.devices for site in ring)
    groups = sorted({site.number for site in ring})
    between = None
    if len(groups) > 1:
        around = (*pairwise(groups), *([(groups[-1], groups[0])] if len(groups) > 2 else []))
        between = min((sites.link(*pair) for pair in around), key=_reached)
    domains: Counter[tuple[int, int, int]] = Counter()
    for site in ring:
        for level, domain in enumerate(site.group.domains[:-1]):
            number = site.domain(domain.size)
            if number is not None:
                domains[site.number, level, number] += 1
        domains[site.number, -1, 0] += 1
    views = []
    for site in ring:
        inner = (site.domain(domain.size) for domain in site.group.domains[:-1])
        members = [1 if at is None else domains[site.number, level, at] for level, at in enumerate(inner)]
        members.append(domains[site.number, -1, 0])
        views.append(_Ring(members=tuple(members), between=between, wider=site.devices / narrowest))
    return views


def _reached(rates: LevelRates) -> float:
    return float(rates.bandwidth_bytes_per_s * rates.efficiency)


def _mean(views: Sequence[tuple[_Ring, float]], site: Site, pipelines: int, sites: Sites) -> Partners:
    """Several rings as one: the fewest members near, times of links and parts by their share of the parameters."""
    own = sites.hardware(site.number).rates[-1]
    links = [view.between or own for view, _ in views] or [own]
    shares = [share for _, share in views] or [1.0]
    total = sum(shares)
    s_per_byte = sum(share / _reached(link) for link, share in zip(links, shares, strict=True)) / total
    wider = sum(view.wider * share for view, share in views) / total if views else 1.0
    members = [view.members for view, _ in views] or [(1,) * len(site.group.domains)]
    return Partners(
        members=tuple(np.array([float(min(level))]) for level in zip(*members, strict=True)),
        pipelines=pipelines,
        between=LevelRates(
            bandwidth_bytes_per_s=np.array([1.0 / s_per_byte]),
            efficiency=1.0,
            latency_s=np.array([max(float(link.latency_s) for link in links)]),
            base_latency_s=own.base_latency_s,
        ),
        wider=np.array([wider]),
    )
