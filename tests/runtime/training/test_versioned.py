"""Plans without a flush end where one device ends that gives every stage the weights the papers say, in 64 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import outcome, parity_of, run_alone, run_parallel
from meshwright.runtime.train import Steps, train
from meshwright.runtime.training.versioned import VersionedTraining
from meshwright.schedules import known_names, schedule_named
from meshwright.schedules.plan_rows import stages_of
from meshwright.specs.row_text import parse_row
from meshwright.zoo.catalogue import spec_named

LENGTH = 8


def versioned(plan: str, model: str = "llama-tiny", **changes: object) -> VersionedTraining:
    row = parse_row(plan, devices=8, global_batch=0, schedules=known_names())
    spec = spec_named(model, layers=None if model == "mlp-tiny" else row.pp * row.vpp)
    layers = 8 if spec is None else spec.num_layers
    whole, rest = divmod(layers, stages_of(row))
    stages = tuple(whole + (stage < rest) for stage in range(stages_of(row)))
    row = replace(row, schedule=schedule_named(row.schedule).token)
    return VersionedTraining(row=row, stage_layers=stages, spec=spec, seq_len=LENGTH, **changes)


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ("pp4.dp2.2bw.mbs1.gbs8", "mlp-tiny"),
        ("pp2.dp2.tp2.2bw.mbs1.gbs8", "llama-tiny"),
        ("pp2.dp2.z1.pipedream.mbs1.gbs6", "llama-tiny"),
        ("pp2.dp1.vpp2.ftpipe-0_1_1_0.mbs1.gbs4", "llama-tiny"),
        ("pp2.dp2.vpp2.ftpipe-0_1_0.mbs1.gbs8", "llama-tiny"),
        ("pp2.dp2.ep2.2bw.mbs2.gbs8", "moe-tiny"),
    ],
)
def test_stages_run_on_the_versions_that_one_device_gives_them(plan: str, model: str) -> None:
    with jax_precision("fp64"):
        training = versioned(plan, model)
        alone = run_alone(training, 3)
        found = parity_of(run_parallel(training, jax.devices(), 3), alone, "fp64")
        assert found.holds, (found.loss, found.gradient, found.weight)
        assert len(set(found.losses)) == 3


def test_older_weights_give_other_losses_than_the_newest() -> None:
    """What would pass if versions were not kept: one step at a time, which drains the pipeline in between."""
    with jax_precision("fp64"):
        training = versioned("pp4.dp2.2bw.mbs1.gbs8", "mlp-tiny")
        alone, state = training.alone(), training.initial()
        first, losses, _ = alone(state, training.batches(0, 2))
        apart, one, _ = alone(state, training.batch(0))
        _, other, _ = alone(apart, training.batch(1))
        assert losses[0] == one[0]
        assert abs(losses[1] - other[0]) > 1e-4 * abs(other[0])
        # W(2) = W(1) - rate * gradient(W(0)): the second step's loss is that of the first step's weights.
        plain = training.plain_model().loss(state["weights"], training.batch(1), jax.random.key(0))
        assert float(losses[1]) == pytest.approx(float(plain), rel=1e-12)
        assert int(first["step"]) == 2


def test_versions_are_those_of_the_papers() -> None:
    seen = versioned("pp4.dp2.pipedream.mbs1.gbs12").versions(2)
    # Narayanan et al. 2019: stage k of p lacks the last p - 1 - k updates; one update behind each of 12 micro-batches.
    assert seen.tolist() == [[max(0, unit - (3 - stage)) for unit in range(12)] for stage in range(4)]
    seen = versioned("pp4.dp2.2bw.mbs1.gbs8").versions(3)
    # Narayanan et al. 2021: micro-batch i of m per update uses version max(i // m - 1, 0) on every stage.
    assert seen.tolist() == [[max(unit // 4 - 1, 0) for unit in range(12)]] * 4


@pytest.mark.parametrize(("plan", "updates"), [("pp2.dp4.2bw.mbs1.gbs16", 2), ("pp2.dp4.pipedream.mbs1.gbs16", 8)])
def test_data_ranks_reduce_once_an_update_as_priced(plan: str, updates: int) -> None:
    training = versioned(plan)
    state = training.initial()
    compiled = training.step(jax.devices()).lower(state, training.batches(0, 2))
    found = compiled.collectives()
    reduced = [one for name, one in found.items() if name.startswith("gradients")]
    bytes_of_weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state["weights"]))
    # A ring all-reduce sends 2 (d - 1) / d of the gradients from each rank.
    assert sum(one.sent_bytes for one in reduced) == pytest.approx(updates * 2 * 3 / 4 * bytes_of_weights, rel=0.01)
    assert [one.of_arrays for one in reduced] == [{"all-reduce": updates}] * 2
    assert "all-reduce" not in {kind for name, one in found.items() if name[0] in "FB" for kind in one.of_arrays}


def test_calls_end_at_checkpoints_and_go_on_from_them(tmp_path: object) -> None:
    training = versioned("pp4.dp2.pipedream.mbs1.gbs8", "mlp-tiny")
    asked = Steps(count=5, folder=tmp_path, every=3)
    assert [asked.before_save(number, 32) for number in (0, 3)] == [3, 2]

    def run(steps: Steps) -> Iterator[float]:
        losses: list[float] = []
        train(training, jax.devices(), steps, on_step=lambda number, loss, *_: losses.append(loss)).step.close()
        yield from losses

    first = [*run(replace(asked, count=3)), *run(asked)]
    with jax_precision("fp32"):
        state, expected = training.initial(), []
        for number, count in ((0, 3), (3, 2)):
            state, losses, _ = training.alone()(state, training.batches(number, count))
            expected += np.ravel(losses).tolist()
    assert first == pytest.approx(expected, rel=1e-5)


def test_one_call_runs_as_many_steps_as_its_lists_hold() -> None:
    training = versioned("pp2.dp1.2bw.mbs1.gbs2", "mlp-tiny")
    assert training.most_steps_at_once == 64
    sizes = []

    def step(state: object, batch: dict[str, np.ndarray]) -> tuple[object, np.ndarray, dict[str, float]]:
        sizes.append(len(batch["x"]))
        return state, np.zeros(len(batch["x"]) // 2), {}

    outcome(training, step, 70)
    assert sizes == [128, 12]


@pytest.mark.parametrize(
    ("plan", "model", "changes", "said"),
    [
        ("pp2.dp1.2bw.mbs1.gbs2", "gpt-tiny", {}, "share the embedding"),
        ("pp2.dp1.2bw.mbs1.gbs2", "llama-tiny", {"compute": "float16"}, "overflow in one stage"),
    ],
)
def test_what_needs_all_stages_is_refused(plan: str, model: str, changes: dict[str, str], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        versioned(plan, model, **changes)
