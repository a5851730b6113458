"""Optimizers of runs by the names of plans, and what they run with; JAX is not started for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.errors import Problem
from meshwright.schedules import schedule_named
from meshwright.specs.model import ModelSpec
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.optimizers.kfac import Kfac as PlannedKfac
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS

if TYPE_CHECKING:
    from meshwright.zoo.training import Adam

RUNS = ("adam", "adamw", "kfac", "pipefisher")
"""Names of optimizers that run."""


def optimizer_of(text: str) -> Adam:
    """The optimizer of a run.

    Args:
        text: one of `RUNS`, with settings behind a colon.
    """
    from meshwright.zoo.training import ADAM

    planned = optimizer_named(text)
    if not isinstance(planned, PlannedKfac):
        return ADAM
    from meshwright.zoo.kfac import Kfac

    return Kfac(every=planned.every, behind=planned.fills)


def optimizer_problems(text: str, row: PlanRow | None, spec: ModelSpec | None, dtype: str) -> Iterator[Problem]:
    """What does not run with an optimizer.

    Args:
        text: the name of the optimizer, with settings behind a colon.
        row: the plan; None for one that no row says.
        spec: the model; None for the perceptron.
        dtype: the format of products.

    Raises:
        UnsupportedError: no optimizer has this name.
        InputError: it has no such setting.
    """
    planned, field = optimizer_named(text), "optimizer"
    if planned.name not in RUNS or planned.layerwise:
        what, why = f"optimizer {text} does not run here", f"a run updates with {', '.join(RUNS[:-1])} or {RUNS[-1]}"
        yield Problem(what=what, why=why, fix=f"{RUNS[0]}, or estimate the plan", field=field)
    if not isinstance(planned, PlannedKfac):
        return
    if spec is None or spec.is_moe:
        name = "the perceptron" if spec is None else spec.name
        why = "factors are made of the matrices of dense decoder layers"
        what = f"optimizer {planned.name} with {name} does not run here"
        yield Problem(what=what, why=why, fix="use a dense model such as llama-tiny, or adam", field=field)
    if dtype not in ("fp32", "fp64"):
        what = f"optimizer {planned.name} in {dtype} does not run here"
        why = "factors are summed in the format of products"
        yield Problem(what=what, why=why, fix="use fp32, or adam", field="dtype")
    for word, why in _words_beside(row):
        what = f"optimizer {planned.name} with {word} does not run here"
        yield Problem(what=what, why=why, fix="leave it out, or adam", field=field)


def _words_beside(row: PlanRow | None) -> Iterator[tuple[str, str]]:
    """Words of a plan with which no factors are made, and why."""
    if row is None:
        yield "a plan of unlike stages or pipelines", "factors are summed in one pipeline of equal stages"
        return
    for name, degree in (("tp", row.tp), ("cp", row.cp_degree), ("ep", row.ep)):
        if degree > 1:
            yield f"{name}{degree}", "a factor is made of all rows and columns of a product, on one rank"
    schedule = schedule_named(row.schedule)
    if SHARDINGS[row.sharding].travels:
        yield row.sharding_word, "factors do not travel with the weights"
    for word in (*row.data_words, *([f"off-{row.offload}"] if row.offload else [])):
        yield word, "factors are summed with whole gradients, on devices"
    if not schedule.flushes or schedule.averages:
        yield row.schedule, "factors are those of one set of weights"
