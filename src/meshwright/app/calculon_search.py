"""The best executions of a Calculon space, proven."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.app.calculon_space import (
    MOST_BATCH,
    MOST_PROCESSORS,
    Check,
    Source,
    choose_space,
    inputs_of,
    read_apps,
    read_systems,
)
from meshwright.calculon.answer import BOUND, TIER1, TIER2, ExecutionAnswer, Goal, Priced
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.search import search
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.sweep import TASK_EXECUTIONS, Design, Found, sweep, why_nothing
from meshwright.errors import InfeasibleError, Problem
from meshwright.search.on_cores import run_on_cores
from meshwright.search.tasks import Runner

if TYPE_CHECKING:
    pass

SCHEMA = "meshwright.calculon-search/1"
LARGE = 1 << 27
"""Spaces with more executions are searched in parts, on all cores."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonSearch(Answer):
    """The answer: the best, the front, the certificate."""

    space: ExecutionSpace
    result: ExecutionAnswer
    capacities_bytes: tuple[float, float]
    nodes: int | None = None
    """Nodes of the Ray cluster that searched, None for this process."""

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-search/1`."""
        space = self.space
        return {
            "schema": SCHEMA,
            "inputs": inputs_of(space.app, space.system, space.num_procs, space.batch, space.axes),
            "capacity": {"tier1_bytes": self.capacities_bytes[0], "tier2_bytes": self.capacities_bytes[1]},
            "search": self.result.certificate.to_dict(),
            "best": [priced_dict(one) for one in self.result.best],
            "pareto": [
                {**priced_dict(one), "objectives": objectives(one, space.num_procs)} for one in self.result.front
            ],
            "timing": {"search_s": self.result.certificate.search_s, "ray_nodes": self.nodes},
        }

    def __repr__(self) -> str:
        best = self.result.best[0]
        return f"CalculonSearch({best.sample_rate:.6g} samples/s, best of {self.result.certificate.space:,})"


def priced_dict(priced: Priced) -> dict[str, Any]:
    """An execution and its statistics as data."""
    return {"execution": asdict(priced.execution), "stats": priced.stats}


def objectives(priced: Priced, num_procs: int) -> dict[str, float | int | None]:
    """What the front is about."""
    return {
        "sample_time_s": 1.0 / priced.sample_rate,
        "tier1_bytes": priced.stats["proc_mem_tier1_cap_req"],
        "tier2_bytes": priced.stats["proc_mem_tier2_cap_req"],
        "num_procs": num_procs,
    }


def calculon_search(
    app: Source | Application,
    system: Source | System,
    *,
    procs: int,
    batch: int,
    dtype: str | None = None,
    space: str = "optimal-execution",
    tp_overlap: bool = True,
    dp_overlap: bool = True,
    top: int = 10,
    pin: str | Iterable[str] = (),
    stop_microbatch: bool = False,
    fixed: bool = False,
    ray: str | None = None,
) -> CalculonSearch:
    """The best executions of an application on a system, over a whole space, with the proof.

    Args:
        app: a library name, a path or the content of Calculon's application file.
        system: the same of its system file.
        procs: processors.
        batch: largest batch; a data degree that does not divide it takes the next lower multiple.
        dtype: float8, float16, bfloat16 or float32; float16 by default, all of the system's in the full space.
        space: `optimal-execution` (Calculon's own) or `full`.
        tp_overlap: tensor-parallel overlap is an axis.
        dp_overlap: data-parallel overlap is an axis.
        top: how many executions.
        pin: keys held to values: `tensor_par=8`, `activation_recompute=none,attn_only`.
        stop_microbatch: leave out micro-batches larger than one with which nothing fits (Calculon's `-m`).
        fixed: with the model's known errors corrected.
        ray: address of a Ray cluster that searches, `auto` or `local`; this process by default.

    Returns:
        The best executions, the front, and the certificate.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name, or Ray missing.
        InfeasibleError: the space is empty, or nothing in it fits; says what excludes it.
    """
    check = Check()
    apps, systems = read_apps(check, [app]), read_systems(check, [system])
    check.whole("--procs", procs, MOST_PROCESSORS)
    check.whole("--batch", batch, MOST_BATCH)
    check.whole("--top", top, 100_000)
    choice = choose_space(
        check, systems, space=space, dtype=dtype, tp_overlap=tp_overlap, dp_overlap=dp_overlap, pin=pin
    )
    check.done()
    held = systems[0]
    asked = ExecutionSpace(apps[0], held, procs, batch, choice.axes(held))
    asked.require_executions()
    nodes = None
    goal = Goal(top=top, stop_microbatch=stop_microbatch, fixed=fixed)
    if ray is not None:
        result, nodes = _on_cluster(asked, goal, ray)
    elif asked.size > LARGE:
        result = _in_parts(asked, goal, run_on_cores, TASK_EXECUTIONS)
    else:
        result = search(asked, goal)
    if not result.best:
        raise nothing_fits(asked, result)
    return CalculonSearch(
        space=asked,
        result=result,
        capacities_bytes=(held.mem1.capacity_bytes, held.mem2.capacity_bytes),
        nodes=nodes,
    )


def _on_cluster(space: ExecutionSpace, goal: Goal, address: str) -> tuple[ExecutionAnswer, int]:
    from meshwright.search.on_ray import OnRay

    with OnRay(address) as runner:
        nodes = runner.nodes()
        return _in_parts(space, goal, runner, min(TASK_EXECUTIONS, space.size // 16 + 1)), nodes


def _in_parts(space: ExecutionSpace, goal: Goal, runner: Runner, executions: int) -> ExecutionAnswer:
    found: Found = next(sweep([Design(number=0, space=space)], goal, runner, executions=executions))
    assert found.result is not None, "the space was found not to be empty"
    return found.result


def nothing_fits(space: ExecutionSpace, result: ExecutionAnswer) -> InfeasibleError:
    """The error of a space whose every execution is excluded."""
    rules = dict(result.certificate.pruned)
    rules.pop(BOUND, None)
    what = f"no execution of {space.app.name or 'the application'} on {space.num_procs} processors is feasible"
    largest = max(rules, key=lambda rule: rules[rule], default="")
    fixes = {
        TIER1: "use more processors, a smaller batch, or let more be offloaded: --space full, or a system with mem2",
        TIER2: "use more processors or a system with a larger second memory tier",
    }
    fix = fixes.get(largest, "use another number of processors, or pin less")
    return InfeasibleError(
        Problem(what=what, why=why_nothing(result.certificate), fix=fix, field="search"), code="MW311"
    )
