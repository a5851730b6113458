"""Plans drawn for every target: its files read back as the same plan, or it refuses and names what it cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom

import pytest

from meshwright.errors import InputError
from meshwright.fields.job import JobFields
from meshwright.formats.torch_csv import write_actions
from meshwright.launch_files.format import format_of
from meshwright.launch_files.script import script_question
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.question.tuned import trained_counts
from meshwright.schedules import schedule_named
from meshwright.schedules.torch_actions import to_actions
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan, Schedule
from meshwright.specs.tuning import Tuning
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS, readers
from tests.targets.drawn import drawn
from tests.targets.test_round_trip import any_estimate

LEAST = 40
"""Plans of each target that it can run."""


def judged(target: str, random: Random) -> Iterator[tuple[Job, bool]]:
    """Drawn plans that are legal, and whether the target runs them; a refusal says what, and why."""
    while True:
        one = drawn(target, random)
        if one is None:
            continue
        problems = TARGETS[target].problems(one)
        assert all(problem.what and problem.why for problem in problems), one.name
        yield one, not problems


def read_back(target: str, one: Job, folder: Path) -> PlanQuestion:
    """What `check` reads of the files of a plan, of the one among them that is the target's own."""
    files = dict(TARGETS[target].files(one, any_estimate()).files)
    for name, text in files.items():
        (folder / name).write_text(text)
    main = next(name for name in files if name != "plan.json" and _is_of(target, folder / name))
    tuned = one.model.tuning is not None
    asked = JobFields(model=replace(one.model, tuning=None) if tuned else one.model, cluster=one.cluster)
    if target == "run":
        asked = replace(asked, model=None)  # its files say the model
    if target == "galvatron":
        asked = replace(asked, seq_len=one.workload.seq_len)  # options of the script that starts it say it
    question, violations, _, _ = script_question(folder / main, target, asked)
    assert not violations, (one.name, violations)
    assert question is not None
    return question


def _is_of(target: str, path: Path) -> bool:
    try:
        return format_of(path) == target
    except InputError:
        return False


def _alone(plan: ExecutionPlan) -> ExecutionPlan:
    """A plan whose ranks that share states with nobody shard nothing: frameworks have one switch for both."""
    strategies = (
        replace(each, data=replace(each.data, zero=0))
        if each.data.shard * each.cp == 1 and each.data.zero == 1
        else each
        for each in plan.strategies
    )
    return replace(plan, strategies=tuple(strategies))


def same_plan(one: ExecutionPlan, other: ExecutionPlan) -> bool:
    """Whether two plans run alike: but for names of schedules whose orders are equal, and for shards of one rank."""
    one, other = _alone(one), _alone(other)
    if one == other:
        return True
    first, second = one.pipelines[0], other.pipelines[0]
    plain = Schedule(name="1f1b")
    alike = replace(one, pipelines=(replace(first, schedule=plain),))
    if alike != replace(other, pipelines=(replace(second, schedule=plain),)):
        return False
    size = (len(first.workers), first.num_micro_batches, len(first.workers[0].chunks))
    orders = [write_actions(to_actions(schedule_named(each.schedule.token).table(*size))) for each in (first, second)]
    return orders[0] == orders[1]


def _stored_once(tuning: Tuning | None, workload: Workload) -> Tuning | None:
    """Adapters on weights that are stored as the job keeps weights anyway: the word for it says nothing more."""
    if tuning is None or tuning.lora is None or tuning.lora.base != workload.precision.weights:
        return tuning
    return replace(tuning, lora=replace(tuning.lora, base=None))


def compare(target: str, one: Job, folder: Path) -> None:
    """Assert that a plan's files read back as the plan, its workload and its adapters."""
    found = read_back(target, one, folder)
    assert found.plan is not None, (one.name, found.problems)
    assert same_plan(one.plan, found.plan), (one.name, found.row and found.row.format())
    before, after = one.workload, found.inputs.workload
    if {before.optimizer, after.optimizer} == {"adam", "adamw"}:  # frameworks have one class for both
        after = replace(after, optimizer=before.optimizer)
    assert before == after, one.name
    first, second = (_stored_once(tuning, before) for tuning in (one.model.tuning, found.inputs.model.tuning))
    if first != second:  # one module may have several names
        assert first is not None
        assert second is not None
        assert first.lora is not None
        assert second.lora is not None
        assert replace(first.lora, targets=second.lora.targets) == second.lora, one.name
        assert trained_counts(one.model) == trained_counts(found.inputs.model), one.name


@pytest.mark.parametrize("target", readers())
def test_drawn_plans_come_back_or_are_refused(target: str, tmp_path: Path) -> None:
    runs = (one for one, able in judged(target, Random(f"plans of {target}")) if able)
    for number, one in enumerate(islice(runs, LEAST)):
        folder = tmp_path / str(number)
        folder.mkdir()
        compare(target, one, folder)


@pytest.mark.slow
@pytest.mark.parametrize("target", readers())
def test_many_drawn_plans_come_back(target: str, tmp_path: Path) -> None:
    seed = SystemRandom().randrange(10**9)
    runs = (one for one, able in judged(target, Random(seed)) if able)
    for number, one in enumerate(islice(runs, 15 * LEAST)):
        folder = tmp_path / f"{seed}-{number}"
        folder.mkdir()
        compare(target, one, folder)
