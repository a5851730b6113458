"""What a step of a pipeline set costs before it is priced in full."""

from __future__ import annotations

from itertools import combinations, pairwise

from meshwright.ops.counts import trained_parameters
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.objectives import Aim
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.units import GIGA, HOUR_S


def price_per_step(
    one: PipelineSet[SplitPipeline], model: ModelSpec, cluster: ClusterSpec, workload: Workload, aim: Aim
) -> float:
    """What a step counts in the unit of the objective at the seconds of its closed form, such as USD.

    Activations and gradients over priced links are included where the objective pays for them.

    Args:
        one: the pipeline set.
        model: that is trained.
        cluster: with the price of its devices and links.
        workload: the step.
        aim: whose objective counts.
    """
    hour = sum(
        (aim.by.per_hour(cluster.groups[stage.island]) or 0.0) * stage.devices
        for pipeline in one.pipelines
        for stage in pipeline.stages
    )
    if not aim.by.paid_links:
        return hour * one.step_s / HOUR_S
    passed = workload.seq_len * model.boundary_width(workload.seq_len)
    once_bytes = passed * workload.precision.bytes_of("activations")
    paid = 0.0
    for pipeline, share in zip(one.pipelines, one.shares, strict=True):
        sent = 2 * share * pipeline.wave * once_bytes
        order = [stage.island for stage in pipeline.stages] * pipeline.chunks
        paid += sent * sum(_price_per_byte(cluster, here, there) for here, there in pairwise(order) if here != there)
    # Gradients go around the groups that hold a layer.
    count = len(one.islands)
    if len(one.pipelines) > 1 and count > 1:
        dearest = max(_price_per_byte(cluster, here, there) for here, there in combinations(one.islands, 2))
        gradient_bytes = trained_parameters(model) * workload.precision.bytes_of("reduce")
        paid += 2 * (count - 1) / count * gradient_bytes * dearest
    return hour * one.step_s / HOUR_S + paid


def _price_per_byte(cluster: ClusterSpec, here: int, there: int) -> float:
    link = cluster.link(cluster.groups[here].name, cluster.groups[there].name)
    return link.price_per_gb / GIGA if link else 0.0
