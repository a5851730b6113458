"""The Calculon space of the tuners is the one that the exact search covers."""

from __future__ import annotations

import random

import pytest

from meshwright.calculon.answer import SearchGoal
from meshwright.calculon.axes import full, optimal_execution
from meshwright.calculon.reading import read_application, read_system
from meshwright.calculon.search import search
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.tuning import TunedExecutions
from meshwright.search.tuners.base import Rules


def calculon_space(
    procs: int = 4, batch: int = 4, preset=optimal_execution, *, name: str = "gpt3-13B", **pins: tuple
) -> TunedExecutions:
    app, system = read_application(name), read_system("a100_80g")
    axes = preset(system)
    for key, values in pins.items():
        axes = axes.pin(key, values)
    return TunedExecutions(space=ExecutionSpace(app, system, procs, batch, axes))


@pytest.mark.parametrize(
    "space",
    [
        calculon_space(2, 2),
        calculon_space(1, 2),
        calculon_space(2, 2, full),
        calculon_space(4, 2, optimizer_sharding=(True,), weight_offload=(False,)),
        calculon_space(8, 2, tensor_par_overlap=("ring", "pipe"), data_par=(2,)),
        calculon_space(2, 3, full, microbatch_size=(1, 3), weight_offload=(False,)),
        calculon_space(8, 4, seq_par_ag_redo=(True,), pipeline_par_net=(1,), pipeline_par=(2, 4)),
    ],
    ids=lambda space: f"{space.space.axes.name} {space.space.num_procs} {dict(space.space.axes.pins)}",
)
def test_axes_and_rules_leave_exactly_the_executions_that_the_space_counts(space: TunedExecutions) -> None:
    rules, generator = Rules.of(space), random.Random(2)
    points = list(rules.points())
    assert len(points) == space.size
    some = generator.sample(points, min(200, len(points)))
    assert len({space.execution(point) for point in some}) == len(some)
    for _ in range(20):
        assert not rules.broken(space.sample(generator))


def test_the_published_space_has_its_published_size_and_few_rules() -> None:
    system = read_system("a100_80g")
    space = TunedExecutions(
        space=ExecutionSpace(read_application("gpt3-175B"), system, 512, 512, optimal_execution(system))
    )
    assert space.size == 6_582_816
    assert len(space.forbidden) < 100
    whole = TunedExecutions(space=ExecutionSpace(read_application("gpt3-175B"), system, 512, 512, full(system)))
    assert whole.size > 10**8
    assert len(whole.forbidden) < 400


def test_no_trial_is_better_than_the_exact_optimum_and_a_rejection_says_why() -> None:
    space, generator = calculon_space(64, 8, name="gpt3-175B", tensor_par=(4, 8)), random.Random(1)
    best = space.optimum()
    assert best is not None
    outcomes = [space.evaluate(space.sample(generator)) for _ in range(24)]
    good = [outcome for outcome in outcomes if outcome.status == "ok"]
    assert good
    assert all((outcome.value or 0.0) >= best.value * (1 - 1e-12) and not outcome.reason for outcome in good)
    memory = [outcome for outcome in outcomes if "memory tier" in outcome.reason]
    networks = [outcome for outcome in outcomes if "_net is" in outcome.reason]
    assert len(good) + len(memory) + len(networks) == len(outcomes)
    assert memory
    assert networks
    assert all(outcome.excess > 0 and outcome.value is not None for outcome in memory)
    assert all(outcome.value is None for outcome in networks)


def test_a_trial_is_priced_as_the_model_prices_it() -> None:
    space = calculon_space(8, 8)
    best = space.optimum()
    assert best is not None
    found = search(space.space, SearchGoal(top=1, front=False)).best[0]
    point = space.point(found.execution)
    assert space.execution(point) == found.execution
    outcome = space.evaluate(point)
    assert outcome.name == best.name
    assert outcome.value == pytest.approx(1.0 / found.sample_rate, rel=1e-12)
