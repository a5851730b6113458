"""SMAC3, the real one: its space has our conditions and clauses, its study goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.search.tuners.base import Rules
from meshwright.search.tuners.nearest import on_axes
from meshwright.search.tuners.plan_space import PlanSpace
from meshwright.search.tuners.run import run_study
from meshwright.search.tuners.with_smac import config_space
from tests.search.spaces import SPACES
from tests.search.tuners.toy import BEST, Toy, check_rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ConfigSpace")
configspace = pytest.importorskip("ConfigSpace")
pytest.importorskip("smac")


def test_the_space_says_axes_conditions_and_clauses_in_its_own_words() -> None:
    found = config_space(Toy())
    assert isinstance(found["width"], configspace.OrdinalHyperparameter)
    assert isinstance(found["kind"], configspace.CategoricalHyperparameter)
    assert {condition.child.name for condition in found.conditions} == {"kind", "overlap"}
    assert len(found.forbidden_clauses) == 3


def test_what_configspace_draws_is_legal() -> None:
    for space in (
        Toy(),
        PlanSpace(model=SPACES[2].model, cluster=SPACES[2].cluster, workload=SPACES[2].workload),
    ):
        rules = Rules.of(space)
        for drawn in config_space(space, seed=3).sample_configuration(60):
            point = rules.completed(on_axes(space, dict(drawn)))
            assert not rules.broken(point)
            assert set(drawn) == set(rules.active_axes(point))


@pytest.mark.parametrize("algorithm", ["forest", "random"])
def test_a_study_goes_on_where_it_ended(tmp_path: Path, algorithm: str) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    first = run_study(Toy(), "smac", algorithm=algorithm, trials=12, storage=storage)
    check_rows(Toy(), first.trials, 12)
    both = run_study(Toy(), "smac", algorithm=algorithm, trials=24, storage=storage, resume=True)
    assert both.trials[:12] == first.trials
    check_rows(Toy(), both.trials, 24)
    assert both.best is not None
    assert both.best.outcome.value is not None
    assert both.best.outcome.value <= BEST + 3
