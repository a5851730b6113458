"""What a parallelizer in a process of its own is asked and answers, as JSON that any language can read.

    request   {schema: "meshwright.slice/1", model, slice, island, workload, micro_batch}
    answer    {plans: [{strategy: "tp4.dp2.z1", forward_s, backward_s, sync_s, state_bytes, activation_bytes}, ...]}

Numbers are SI. A strategy is the one-line form of a plan without pipeline: its degrees multiply to the devices used.
Where layers differ, `runs: [{layers: 3, strategy: "tp4.dp2"}, ...]` stands in place of `strategy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import NonNegativeFloat, PositiveInt, ValidationError, model_validator

from meshwright.errors import InputError, MeshwrightError
from meshwright.formats.problems import TableProblems, Text, key, problems_of
from meshwright.specs.cluster import Island
from meshwright.specs.plan import StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.workload import Workload

SCHEMA = "meshwright.slice/1"
MOST_PLANS = 10_000


class _Run(TableProblems):
    layers: PositiveInt = key("4", required=True)
    strategy: Text = key('"tp4.dp2.z1"', required=True)


class _Plan(TableProblems):
    strategy: Text | None = key('"tp4.dp2.z1"')
    runs: list[_Run] | None = key('[{"layers": 4, "strategy": "tp4.dp2.z1"}]', min_length=1)
    forward_s: NonNegativeFloat = key("0.01", required=True)
    backward_s: NonNegativeFloat = key("0.02", required=True)
    sync_s: NonNegativeFloat = key("0.0", default=0.0)
    state_bytes: NonNegativeFloat = key("1e10", required=True)
    activation_bytes: NonNegativeFloat = key("1e9", required=True)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.strategy is None) == (self.runs is None):
            raise ValueError("must hold either strategy or runs")
        return self


class _Answer(TableProblems):
    plans: list[_Plan] = key("[]", required=True, max_length=MOST_PLANS)


def request(part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> dict[str, Any]:
    """The question as data; arguments as `Parallelizer.plan`."""
    model, group, recipe = part.model, island.group, workload.precision
    device = group.device
    return {
        "schema": SCHEMA,
        "model": {"name": model.name, "hidden": model.hidden, "vocab": model.vocab, "layers": model.num_layers},
        "slice": {
            "layers": part.num_layers,
            "runs": [{"count": count, **layer.describe(model.hidden)} for layer, count in part.layers],
            "embedding": part.embedding,
            "head": part.head,
            "embedding_parameters": model.embedding_parameters if part.embedding else 0,
            "head_parameters": model.head_parameters if part.head else 0,
        },
        "island": {
            "device": device.name,
            "devices": island.devices,
            "devices_per_node": group.devices_per_node,
            "memory_bytes": device.memory_bytes,
            "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
            "peak_flop_per_s": dict(device.peak_flop_per_s),
            "gemm_fraction": device.efficiency.gemm_fraction,
            "domains": [
                {
                    "name": domain.name,
                    "size": domain.size,
                    "bandwidth_bytes_per_s": domain.bandwidth_bytes_per_s,
                    "efficiency": domain.efficiency,
                    "latency_s": domain.latency_s,
                }
                for domain in group.domains
            ],
        },
        "workload": {
            "seq_len": workload.seq_len,
            "global_batch": workload.global_batch,
            "optimizer": workload.optimizer,
            "compute": recipe.compute,
            "weights": recipe.weights,
            "gradients": recipe.gradients,
            "master": recipe.master,
            "moments": recipe.moments,
        },
        "micro_batch": micro_batch,
    }


def partial_plans(answer: Mapping[str, Any], part: ModelSlice, island: Island, micro_batch: int) -> list[PartialPlan]:
    """The partial plans of an answer.

    Args:
        answer: the answer as data.
        part: the slice that was asked for.
        island: the devices that were given.
        micro_batch: sequences that were asked for.

    Raises:
        InputError: keys or values that cannot be; all problems together.
    """
    try:
        read = _Answer.model_validate(answer)
    except ValidationError as error:
        raise InputError(problems_of(error, _Answer), code="MW217") from None
    return [_partial(plan, part, island, micro_batch) for plan in read.plans]


def _partial(plan: _Plan, part: ModelSlice, island: Island, micro_batch: int) -> PartialPlan:
    held = [(run.layers, run.strategy) for run in plan.runs or ()]
    if plan.strategy is not None:
        held = [(part.num_layers, plan.strategy)]
    rows = {text: _row(text, island, micro_batch) for _, text in held}
    number = {text: index for index, text in enumerate(rows)}
    return PartialPlan(
        devices=rows[held[0][1]].devices,
        micro_batch=micro_batch,
        forward_s=plan.forward_s,
        backward_s=plan.backward_s,
        sync_s=plan.sync_s,
        state_bytes=plan.state_bytes,
        activation_bytes=plan.activation_bytes,
        strategies=tuple(row.strategy() for row in rows.values()),
        runs=tuple(StrategyRun(layers=layers, strategy=number[text]) for layers, text in held if layers),
    )


def _row(text: str, island: Island, micro_batch: int) -> PlanRow:
    try:
        return parse_row(text, devices=island.devices, global_batch=micro_batch, schedules=())
    except MeshwrightError as error:
        raise InputError(error.problems, code="MW217") from None
