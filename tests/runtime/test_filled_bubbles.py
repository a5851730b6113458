"""K-FAC under pipelines: one device's update, inverses where workers wait, and nothing more between stages."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.compiler.instructions import Op, StepProgram
from meshwright.estimate.layout import ModelLayout
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.training.run import Training
from meshwright.schedules import known_names
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.optimizers.base import Matrix
from meshwright.specs.row_text import parse_row
from meshwright.zoo.optimizers import optimizer_of
from meshwright.zoo.tiny import TINY

LENGTH = 8


def training(model: str, plan: str, optimizer: str) -> Training:
    row = parse_row(plan, devices=8, global_batch=0, schedules=known_names())
    layers = ModelLayout.of(TINY[model], LENGTH).split_of(row)
    return Training(spec=TINY[model], row=row, stage_layers=layers, seq_len=LENGTH, updates_by=optimizer_of(optimizer))


@cache
def program(plan: str, optimizer: str) -> StepProgram:
    own = training("llama-tiny", plan, optimizer)
    step = own.step(jax.devices())
    return step.lower(*jax.eval_shape(lambda: (own.initial(), own.batch(0)))).program


def summed_bytes(optimizer: str) -> int:
    """Bytes of all sums over two data ranks in a step, of both stages."""
    own = training("llama-tiny", "pp2.dp2.1f1b.mbs1.gbs4", optimizer)
    step = own.step(jax.devices())
    found = step.lower(*jax.eval_shape(lambda: (own.initial(), own.batch(0)))).collectives()
    return sum(one.result_bytes.get("all-reduce", 0) for one in found.values())


@pytest.mark.parametrize(
    ("model", "plan", "optimizer", "dtype", "steps"),
    [
        ("llama-tiny", "pp4.dp2.z1.zb-h1.mbs1.gbs16", "pipefisher:every=2", "fp64", 3),
        ("gpt-tiny", "pp2.dp1.1f1b.mbs2.gbs8", "pipefisher:every=1", "fp32", 5),
    ],
)
def test_k_fac_ends_where_one_device_ends(model: str, plan: str, optimizer: str, dtype: str, steps: int) -> None:
    with jax_precision(dtype):
        own = training(model, plan, optimizer)
        state = own.initial()
        found = parity_of(run_parallel(own, jax.devices(), steps, state), run_alone(own, steps, state), dtype)
    assert found.holds, (found.loss, found.gradient, found.weight)
    assert {one.tensor.partition(".")[0] for one in found.compared} == {"weights", "factors"}


def test_inverses_run_between_micro_batches_and_those_of_this_steps_factors_behind_them() -> None:
    plan = "pp4.dp1.1f1b.mbs1.gbs8"
    for mesh, own in enumerate(program(plan, "pipefisher").lists):
        labels = [one.label for one in own if one.op is Op.RUN]
        (place,) = [at for at, label in enumerate(labels) if label.startswith("ahead")]
        assert place < labels.index(f"B{mesh}.0")
    behind = [one.label for own in program(plan, "kfac").lists for one in own]
    assert not any(label.startswith("ahead") for label in behind)


def test_stages_send_each_other_activations_and_their_gradients_alone() -> None:
    plan = "pp4.dp1.1f1b.mbs1.gbs8"
    spec, micro_batches, cuts = TINY["llama-tiny"], 8, 3

    def sent(found: StepProgram) -> list[tuple[str, Any]]:
        return [
            (one.label, [found.buffers[place].bytes for place in one.reads])
            for own in found.lists
            for one in own
            if one.op is Op.SEND
        ]

    filled = sent(program(plan, "pipefisher"))
    assert filled == sent(program(plan, "adam"))
    of_tasks = sum(max(sizes) for label, sizes in filled if label.startswith("SEND"))
    assert of_tasks == pytest.approx(2 * micro_batches * cuts * LENGTH * spec.hidden * 4, rel=0.01)


def test_data_ranks_sum_as_many_bytes_of_factors_as_are_priced() -> None:
    own = training("llama-tiny", "pp2.dp2.1f1b.mbs1.gbs4", "kfac:every=1")
    factors = own.initial()["moments"]["factors"]
    sides = [(len(one.inputs), len(one.outputs)) for layer in factors for one in layer.values()]
    priced = sum(
        float(np.asarray(optimizer_named("kfac:every=1").statistics_bytes(matrix(rows, columns))))
        for rows, columns in sides
    )
    assert summed_bytes("kfac:every=1") - summed_bytes("adam") == pytest.approx(priced, rel=0.01)


def matrix(rows: int, columns: int) -> Matrix:
    return Matrix(rows=np.array(rows), columns=np.array(columns), whole_rows=rows, whole_columns=columns)
