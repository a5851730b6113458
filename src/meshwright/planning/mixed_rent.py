"""What the devices of a plan over measured profiles cost, and the plans on parts of a cluster."""

from __future__ import annotations

from dataclasses import replace

from meshwright.planning.compose.costing import SECONDS_PER_HOUR, Counts, Offer, rented
from meshwright.planning.compose.sources.profiles.search import Composed, Composer
from meshwright.planning.compose.sources.profiles.shares import shares
from meshwright.planning.compose.sources.profiles.traffic import composition_traffic
from meshwright.planning.objectives import Aim
from meshwright.specs.cluster import ClusterSpec


def priced_cluster(cluster: ClusterSpec, price: float | None) -> ClusterSpec:
    """The cluster with one price of a device and hour, where one is given for all."""
    if price is None:
        return cluster
    return replace(cluster, groups=tuple(replace(group, price_per_device_hour=price) for group in cluster.groups))


def composed_offer(composer: Composer, composed: Composed, cluster: ClusterSpec) -> Offer[Composed]:
    """A composition with its price: of the devices in use and of what crosses priced links; 0 where one is not known.

    Args:
        composer: that made it.
        composed: the composition.
        cluster: its groups are the composer's kinds.
    """
    composition, costs = composed.composition, composer.costs
    used = {group.name: composition.devices(group.name) for group in cluster.groups}
    rates = [group.price_per_hour for group in cluster.groups]
    price = 0.0
    if None not in rates:
        hour = sum((group.price_per_hour or 0.0) * used[group.name] for group in cluster.groups)
        counts = shares(composition, composed.time, composer.pricer)
        sent = composition_traffic(costs, composition, counts, cluster)
        price = hour * composed.time.step_time_s / SECONDS_PER_HOUR + sum(link.price_per_step for link in sent)
    stages = [
        bytes_
        for part in composition.parts
        if (pace := composer.pricer.pace(part.shape)) is not None
        for bytes_ in pace.stage_bytes
    ]
    return Offer(
        plan=composed,
        step_time_s=composed.time.step_time_s,
        price_per_step=price,
        peak_memory_bytes=max(stages),
        on=" + ".join(f"{count} {name}" for name, count in used.items() if count),
    )


def rented_part(composer: Composer, cluster: ClusterSpec, aim: Aim, quickest: Offer[Composed]) -> list[Offer[Composed]]:
    """Compositions on parts of the cluster, the best by the aim first.

    Args:
        composer: of the job.
        cluster: its groups are the composer's kinds.
        aim: what makes one better.
        quickest: of the whole cluster.
    """
    kinds = composer.costs.kinds.values()

    def offers_on(counts: Counts) -> list[Offer[Composed]]:
        composed = composer.best(counts)
        return [] if composed is None else [composed_offer(composer, composed, cluster)]

    node = {kind.name: kind.devices_per_node for kind in kinds}
    offers = rented({kind.name: kind.count for kind in kinds}, node, offers_on, aim.rank)
    return sorted([quickest, *offers], key=aim.rank)
