"""What a question states of prices and power, in place of what the cluster says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.library.prices import Price, prices_of
from meshwright.specs.cluster import ClusterSpec, NodeGroup


def with_site(cluster: ClusterSpec, job: JobFields) -> tuple[ClusterSpec, list[Assumption]]:
    """The cluster with what a question states of its prices and power, and where the prices are from.

    Args:
        cluster: any groups.
        job: the question.

    Raises:
        InputError: the prices cannot be read.
        UnsupportedError: they are of devices that nobody knows.
    """
    notes: list[Assumption] = []
    if job.prices is not None:
        cluster, notes = with_prices(cluster, prices_of(job.prices))
    return with_power(cluster, job.power, job.pue, job.carbon_intensity), notes


def with_prices(cluster: ClusterSpec, prices: Mapping[str, Price]) -> tuple[ClusterSpec, list[Assumption]]:
    """The cluster with the prices of a file where it states none of its own, and where each is from.

    Args:
        cluster: any groups.
        prices: the prices by the name of the device.
    """
    notes: dict[str, Assumption] = {}

    def group(one: NodeGroup) -> NodeGroup:
        name = one.device.name
        if one.price_per_device_hour is not None or name not in prices:
            return one
        price = prices[name]
        value = f"{price.usd:g} USD per {name} and hour ({price.date}: {price.source})"
        notes[name] = Assumption(name="price", value=value, basis="literature")
        return replace(one, price_per_device_hour=price.usd)

    groups = tuple(map(group, cluster.groups))
    return replace(cluster, groups=groups), list(notes.values())


def with_power(
    cluster: ClusterSpec, power_w: float | None, pue: float | None, carbon_kg_per_kwh: float | None
) -> ClusterSpec:
    """The cluster with what is stated of its power.

    Args:
        cluster: any groups.
        power_w: mean of one device over a step.
        pue: power of the site over that of its devices.
        carbon_kg_per_kwh: the kg of carbon per kWh of its electricity.
    """
    if power_w is not None:
        groups = tuple(replace(group, power_w_per_device=power_w) for group in cluster.groups)
        cluster = replace(cluster, groups=groups)
    if pue is not None:
        cluster = replace(cluster, pue=pue)
    return cluster if carbon_kg_per_kwh is None else replace(cluster, carbon_kg_per_kwh=carbon_kg_per_kwh)
