"""AvgPipe's replicas end where one device ends that trains each apart and pulls it to the reference, in 64 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.app.requests.run import ExecutionFields
from meshwright.app.runs.inputs import run_inputs
from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.train import Steps, train
from meshwright.runtime.training.averaged import AveragedTraining
from tests.runtime.test_versions import batch, initial, step


def averaged(plan: str, model: str = "mlp-tiny", layers: int | None = None) -> AveragedTraining:
    options = ExecutionFields(model=model, plan=plan, layers=layers, seq_len=16, dtype="fp64")
    made = run_inputs(options).training(options)
    assert isinstance(made, AveragedTraining)
    return made


@pytest.mark.parametrize(
    ("model", "layers", "plan"),
    [
        ("mlp-tiny", None, "pp4.dp2.avgpipe-extra2-pipelines4.mbs1.gbs16"),
        ("llama-tiny", 2, "pp2.dp2.tp2.z1.avgpipe-pipelines2.mbs1.gbs8"),
    ],
)
def test_replicas_end_where_one_device_ends(model: str, layers: int | None, plan: str) -> None:
    with jax_precision("fp64"):
        training = averaged(plan, model, layers)
        found = parity_of(run_parallel(training, jax.devices(), 3), run_alone(training, 3), "fp64")
        assert found.holds, (found.loss, found.gradient, found.weight)
        assert len(set(found.losses)) == 3


def test_replicas_go_their_share_of_the_way_to_a_reference_that_moves_by_their_mean() -> None:
    with jax_precision("fp64"):
        training = averaged("pp4.dp2.avgpipe-pipelines4.mbs1.gbs16")
        of_one = training.of_one.alone()
        state, done = training.initial(), training.step(jax.devices())
        try:
            for number in range(2):
                batch = training.batch(number)
                parts = [jax.tree.map(lambda leaf: leaf[first : first + 4], batch) for first in range(0, 16, 4)]  # noqa: B023
                after = [of_one(one, part)[0]["weights"] for one, part in zip(state["replicas"], parts, strict=True)]
                before = [one["weights"] for one in state["replicas"]]
                ways = [jax.tree.map(np.subtract, *pair) for pair in zip(after, before, strict=True)]
                moved = jax.tree.map(lambda old, *each: old + sum(each) / 4, state["weights"], *ways)
                state = jax.tree.map(np.asarray, done(state, batch)[0])
                assert _near(state["weights"], moved)
                for one, own in zip(state["replicas"], after, strict=True):
                    assert _near(one["weights"], jax.tree.map(lambda new, to: 0.75 * new + 0.25 * to, own, moved))
        finally:
            done.close()
        first, second = (jax.tree.map(np.asarray, one["weights"]) for one in state["replicas"][:2])
        assert not _near(first, second)


def test_each_replica_sends_what_its_pipeline_does() -> None:
    with jax_precision("fp64"):
        training = averaged("pp4.dp2.avgpipe-pipelines2.mbs1.gbs16")
        sent = []
        for one in (
            training,
            training.of_one,
            replace(training.of_one, row=replace(training.of_one.row, schedule="1f1b")),
        ):
            state, batch = one.initial(), one.batch(0)
            done: Any = one.step(jax.devices())
            collectives = done.lower(state, batch).collectives()
            sent.append(sum(found.sent_bytes for name, found in collectives.items() if name.startswith("gradients")))
        weights = sum(leaf.nbytes for leaf in jax.tree.leaves(training.initial()["weights"]))
        # A ring of two data ranks sends half of the gradients twice.
        assert sent == pytest.approx([weights] * 3, rel=0.01)


def test_a_run_goes_on_from_a_checkpoint_of_replicas(tmp_path: object) -> None:
    with jax_precision("fp64"):
        training = averaged("pp4.dp2.avgpipe-pipelines2.mbs1.gbs16")
        losses: list[float] = []
        for count in (2, 4):
            asked = Steps(count=count, folder=tmp_path, every=2)
            train(training, jax.devices(), asked, on_step=lambda _, loss, *__: losses.append(loss)).step.close()
        assert losses == pytest.approx(run_alone(training, 4).losses, rel=1e-12)


def test_replicas_need_states_of_their_own_in_this_process() -> None:
    own = mw.LocalPipeline(num_stages=4, num_micro_batches=16, schedule="avgpipe-pipelines2")
    with pytest.raises(UnsupportedError, match="each replica of the model has its own"):
        mw.parallelize(step, method=own)(initial(), batch())
    with pytest.raises(UnsupportedError, match="pulled together in this process"):
        mw.verify("mlp-tiny", "pp4.dp2.avgpipe-pipelines2.mbs1.gbs16", backend="processes")
    with pytest.raises(UnsupportedError, match="leave --trace out"):
        mw.run("mlp-tiny", "pp4.dp2.avgpipe-pipelines2.mbs1.gbs16", trace="never.json")


def _near(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs)
