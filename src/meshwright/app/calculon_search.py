"""The best executions of a Calculon space, proven."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from meshwright.app.answer import Answer
from meshwright.app.requests.calculon import CalculonSearchRequest
from meshwright.calculon.answer import BOUND, TIER1, TIER2, ExecutionAnswer, Goal, Priced
from meshwright.calculon.choice import MOST_BEST, Check, inputs_of, read_space
from meshwright.calculon.search import search
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.sweep import TASK_EXECUTIONS, Design, Found, sweep, why_nothing
from meshwright.errors import InfeasibleError, Problem
from meshwright.search.on_cores import run_on_cores
from meshwright.search.tasks import Runner

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
            "inputs": inputs_of(space),
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


def calculon_search(request: CalculonSearchRequest) -> CalculonSearch:
    """The best executions of an application on a system, over a whole space, with the proof.

    Args:
        request: application, system and space, and how it is searched.

    Returns:
        The best executions, the front, and the certificate.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name, or Ray missing.
        InfeasibleError: the space is empty, or nothing in it fits; says what excludes it.
    """
    options = request.search
    check = Check()
    check.whole("--top", options.top, MOST_BEST)
    space, _ = read_space(request.space, check)
    space.require_executions()
    nodes = None
    goal = Goal(top=options.top, stop_microbatch=options.stop_microbatch, fixed=request.space.options.fixed)
    if options.ray is not None:
        result, nodes = _on_cluster(space, goal, options.ray)
    elif space.size > LARGE:
        result = _in_parts(space, goal, run_on_cores, TASK_EXECUTIONS)
    else:
        result = search(space, goal)
    if not result.best:
        raise nothing_fits(space, result)
    system = space.system
    return CalculonSearch(
        space=space,
        result=result,
        capacities_bytes=(system.mem1.capacity_bytes, system.mem2.capacity_bytes),
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
