"""Which devices of a mixed cluster to rent: plans on parts of it, by time and price, that of links included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise

from meshwright.planning.compose.costing import SECONDS_PER_HOUR, Counts, Offer, rented
from meshwright.planning.compose.execution_plan import native_plan
from meshwright.planning.compose.pipeline_sets import Blend, whole
from meshwright.planning.compose.sources.native.islands import Part
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.island_search import Candidate, IslandSearch
from meshwright.planning.objectives import Aim
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import GIGA

LOOKED_AT = 200
"""Blends of a part of the cluster whose price is told from their closed form."""
PRICED = 3
"""Of them priced in full, the cheapest and the quickest."""


def rent_islands(run: IslandSearch, aim: Aim, found: Sequence[Candidate]) -> list[Offer[Candidate]]:
    """Plans on parts of the cluster, the best by the aim first.

    Args:
        run: of the question.
        aim: what makes a plan better.
        found: plans on all groups, or on whole ones.
    """
    groups = run.cluster.groups
    most = {group.name: group.devices for group in groups}
    node = {group.name: group.devices_per_node for group in groups}

    def offers_on(counts: Counts) -> list[Offer[Candidate]]:
        parts = [Part(n, counts[group.name]) for n, group in enumerate(groups) if counts[group.name]]
        if len(parts) > 1:
            every = [*_composed(run, parts, aim), *(found if counts == most else ())]
            return [offer_of(run, one) for one in every]
        (part,) = parts
        if part.devices % node[groups[part.group].name]:
            return []
        one = run.alone(part.group, part.devices)
        return [] if one is None else [offer_of(run, one)]

    return rented(most, node, offers_on, aim.rank)


def offer_of(run: IslandSearch, one: Candidate) -> Offer[Candidate]:
    """A plan with what it takes and costs; a price that is not known is 0."""
    used = Counter[str]()
    for stage in one.estimate.stages:
        used[stage.group] += stage.devices
    return Offer(
        plan=one,
        step_time_s=one.step_time_s,
        price_per_step=one.estimate.price_per_step or 0.0,
        peak_memory_bytes=one.estimate.peak_memory_bytes,
        on=" + ".join(f"{count} {name}" for name, count in used.items()),
    )


def _composed(run: IslandSearch, parts: Sequence[Part], aim: Aim) -> list[Candidate]:
    """The quickest, the cheapest, and the cheapest in time of the compositions over these parts, or some of them."""
    blends = run.composer.blends(parts, LOOKED_AT)
    price = {id(blend): _price_per_step(blend, run) for blend in blends}
    cheap = sorted(blends, key=lambda blend: price[id(blend)])
    in_time = [blend for blend in cheap if blend.step_s <= aim.max_step_time_s]
    wanted = [*blends[:PRICED], *cheap[:PRICED], *in_time[:PRICED]]
    found: list[Candidate] = []
    for blend in {id(blend): blend for blend in wanted}.values():
        made = whole(blend, run.workload.global_batch)
        if made is None:
            continue
        one = run.candidate(native_plan(made, run.cluster), made.islands)
        if one is not None:
            found.append(one)
    return found


def _price_per_step(blend: Blend[SplitPipeline], run: IslandSearch) -> float:
    """What a blend costs at the step of its closed form, activations and gradients over priced links included."""
    cluster, workload = run.cluster, run.workload
    hour = sum(
        (cluster.groups[stage.island].price_per_hour or 0.0) * stage.devices
        for pipeline in blend.pipelines
        for stage in pipeline.stages
    )
    once_bytes = workload.seq_len * run.model.hidden * workload.precision.bytes_of("activations")
    paid = 0.0
    for pipeline, share in zip(blend.pipelines, blend.shares, strict=True):
        sent = 2 * share * pipeline.wave * once_bytes
        order = [stage.island for stage in pipeline.stages] * pipeline.chunks
        paid += sent * sum(_price_per_byte(cluster, here, there) for here, there in pairwise(order) if here != there)
    # Gradients go around the groups that hold a layer.
    count = len(blend.islands)
    if len(blend.members) > 1 and count > 1:
        dearest = max(_price_per_byte(cluster, one, other) for one, other in combinations(blend.islands, 2))
        gradient_bytes = run.model.parameters * workload.precision.bytes_of("reduce")
        paid += 2 * (count - 1) / count * gradient_bytes * dearest
    return hour * blend.step_s / SECONDS_PER_HOUR + paid


def _price_per_byte(cluster: ClusterSpec, here: int, there: int) -> float:
    link = cluster.link(cluster.groups[here].name, cluster.groups[there].name)
    return link.price_per_gb / GIGA if link else 0.0
