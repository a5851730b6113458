"""What a step of a pipeline set costs before it is priced in full."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from meshwright.estimate.data.partners import weights_of
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.traffic import summed_between
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.objectives import Aim
from meshwright.shapes import Int
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.units import GIGA, HOUR_S


def price_per_step(
    one: PipelineSet[SplitPipeline], model: ModelSpec, cluster: ClusterSpec, workload: Workload, aim: Aim
) -> float:
    """What a step counts in the unit of the objective at the seconds of its closed form, such as USD.

    Activations and gradients over priced links are included where the objective pays for them. Sums of a table that
    both ends of a pipeline share are left out.

    Args:
        one: the pipeline set.
        model: the model that is trained.
        cluster: the cluster with the price of its devices and links.
        workload: the step.
        aim: the aim whose objective counts.
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
        sent = 2 * share * pipeline.global_micro_batch * once_bytes
        order = [stage.island for stage in pipeline.stages] * pipeline.chunks
        paid += sent * sum(_price_per_byte(cluster, here, there) for here, there in pairwise(order) if here != there)
    if workload.training:
        each_bytes = workload.precision.bytes_of("reduce")
        summed = summed_between(
            [_groups_of_layers(pipeline) for pipeline in one.pipelines],
            weights_of(ModelLayout.of(model, workload.seq_len)),
        )
        paid += sum(each_bytes * count * _price_per_byte(cluster, *edge) for edge, count in summed.items())
    return hour * one.step_s / HOUR_S + paid


def _groups_of_layers(pipeline: SplitPipeline) -> Int[np.ndarray, " held"]:
    """Groups that hold the embedding, each layer and the head."""
    return np.array([stage.island for stage in pipeline.stages])[np.pad(pipeline.stage_of_layer, 1, mode="edge")]


def _price_per_byte(cluster: ClusterSpec, here: int, there: int) -> float:
    link = cluster.link(cluster.groups[here].name, cluster.groups[there].name)
    return link.price_per_gb / GIGA if link else 0.0
