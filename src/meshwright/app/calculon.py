"""`calculon estimate`, `search` and `what-if`: one execution, the best of a space, and what each number is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from meshwright.app.answer import Answer
from meshwright.app.requests.calculon import CalculonSearchRequest, CalculonWhatIfRequest
from meshwright.calculon.answer import BOUND, TIER1, TIER2, ExecutionAnswer, PricedExecution, SearchGoal
from meshwright.calculon.choice import MOST_BEST, inputs_of, read_space
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, Execution, System
from meshwright.calculon.model import price
from meshwright.calculon.reading import Source, read_application, read_execution, read_system
from meshwright.calculon.rejections import rejection
from meshwright.calculon.search import search
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.sweep import TASK_EXECUTIONS, Design, DesignResult, sweep, why_nothing
from meshwright.calculon.whatif import WhatIf, what_if
from meshwright.errors import InfeasibleError
from meshwright.fields.check import InputCheck
from meshwright.fields.limits import nothing_in_time
from meshwright.search.on_cores import run_on_cores
from meshwright.search.tasks import Runner

ESTIMATE_SCHEMA = "meshwright.calculon-estimate/1"
SEARCH_SCHEMA = "meshwright.calculon-search/1"
WHAT_IF_SCHEMA = "meshwright.calculon-what-if/1"
REJECTED = "MW303"
LARGE = 1 << 27
"""Spaces with more executions are searched in parts, on all cores."""


Value = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonEstimate(Answer):
    """One accepted execution."""

    app: Application
    system: System
    execution: Execution
    stats: Mapping[str, Value]
    """Calculon's 96 statistics by name."""
    layers: tuple[Mapping[str, Any], ...] | None
    """The block layer by layer, where asked for."""
    fixed: bool

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-estimate/1`."""
        found: dict[str, Any] = {
            "schema": ESTIMATE_SCHEMA,
            "app": self.app.name or None,
            "system": self.system.name or None,
            "execution": asdict(self.execution),
            "fixed": self.fixed,
            "stats": dict(self.stats),
        }
        if self.layers is not None:
            found["layers"] = [dict(layer) for layer in self.layers]
        return found

    def __repr__(self) -> str:
        return (
            f"CalculonEstimate({self.stats['sample_rate']:.6g} samples/s, {self.stats['total_time']:.6g} s per batch)"
        )


def calculon_estimate(
    app: Source | Application,
    execution: Source | Execution,
    system: Source | System,
    *,
    layers: bool = False,
    fixed: bool = False,
) -> CalculonEstimate:
    """One execution of an application on a system.

    Args:
        app: a library name, a path or the content of Calculon's application file.
        execution: a path or the content of its execution file.
        system: a library name, a path or the content of its system file.
        layers: whether to give the block layer by layer, too.
        fixed: whether the model's known errors are corrected.

    Returns:
        The 96 statistics.

    Raises:
        InputError: malformed input, all problems of the three files together.
        UnsupportedError: an unknown application or system, and nothing else is wrong.
        InfeasibleError: a rejected execution; says which field breaks which rule.
    """
    check = InputCheck()
    one = check.attempt(partial(read_application, app))
    how = check.attempt(partial(read_execution, execution))
    where = check.attempt(partial(read_system, system))
    check.done()
    priced = price(one, where, ExecutionColumns.from_executions([how]), fixed=fixed)
    if not priced.ok[0]:
        raise InfeasibleError(rejection(priced, 0, one, where, how), code=REJECTED)
    listed = None
    if layers:
        from meshwright.calculon.layer_list import layer_list

        listed = tuple(layer_list(one, where, how, fixed=fixed))
    return CalculonEstimate(app=one, system=where, execution=how, stats=priced.stats(0), layers=listed, fixed=fixed)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonSearch(Answer):
    """The answer: the best, the front, the certificate."""

    space: ExecutionSpace
    result: ExecutionAnswer
    capacities_bytes: tuple[float, float]
    nodes: int | None = None
    """Nodes of the Ray cluster that searched, None for this process."""

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-search/1`."""
        space = self.space
        return {
            "schema": SEARCH_SCHEMA,
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


def priced_dict(priced: PricedExecution) -> dict[str, Any]:
    """An execution and its statistics as data."""
    return {"execution": asdict(priced.execution), "stats": priced.stats}


def objectives(priced: PricedExecution, num_procs: int) -> dict[str, float | int | None]:
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
    check = InputCheck()
    check.whole("--top", options.top, MOST_BEST)
    space, _ = read_space(request.space, check)
    space.require_executions()
    nodes = None
    goal = SearchGoal(top=options.top, stop_microbatch=options.stop_microbatch, fixed=request.space.options.fixed)
    if options.ray is not None:
        result, nodes = _on_cluster(space, goal, options.ray)
    elif space.size > LARGE:
        result = _in_parts(space, goal, run_on_cores, TASK_EXECUTIONS)
    else:
        result = search(space, goal)
    if not result.best and result.certificate.stopped:
        raise nothing_in_time(result.certificate.stopped, "an execution")
    if not result.best:
        raise nothing_fits(space, result)
    system = space.system
    return CalculonSearch(
        space=space,
        result=result,
        capacities_bytes=(system.mem1.capacity_bytes, system.mem2.capacity_bytes),
        nodes=nodes,
    )


def _on_cluster(space: ExecutionSpace, goal: SearchGoal, address: str) -> tuple[ExecutionAnswer, int]:
    from meshwright.search.on_ray import OnRay

    with OnRay(address) as runner:
        nodes = runner.nodes()
        return _in_parts(space, goal, runner, min(TASK_EXECUTIONS, space.size // 16 + 1)), nodes


def _in_parts(space: ExecutionSpace, goal: SearchGoal, runner: Runner, executions: int) -> ExecutionAnswer:
    found: DesignResult = next(sweep([Design(number=0, space=space)], goal, runner, executions=executions))
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
    return InfeasibleError(what=what, why=why_nothing(result.certificate), fix=fix, field="search", code="MW311")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonWhatIf(Answer):
    """Sensitivities of an optimum, the largest first."""

    space: ExecutionSpace
    factors: tuple[float, ...]
    answer: WhatIf

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-what-if/1`."""
        space = self.space
        best = self.answer.base.best[0]
        return {
            "schema": WHAT_IF_SCHEMA,
            "inputs": {
                **inputs_of(space),
                "factors": list(self.factors),
            },
            "base": {
                "sample_rate": best.sample_rate,
                "total_time_s": best.stats["total_time"],
                "execution": asdict(best.execution),
                "search": self.answer.base.certificate.to_dict(),
            },
            "numbers": [
                {
                    "name": number.name,
                    "value": number.value,
                    "unit": number.unit,
                    "spread_sample_rate": number.spread,
                    "changes": [
                        {
                            "factor": change.factor,
                            "sample_rate": change.best.sample_rate if change.best else None,
                            "repriced_sample_rate": change.repriced_rate,
                            "moved": list(change.moved),
                            "execution": asdict(change.best.execution) if change.best else None,
                        }
                        for change in number.changes
                    ],
                }
                for number in self.answer.numbers
            ],
        }

    def __repr__(self) -> str:
        first = self.answer.numbers[0]
        return f"CalculonWhatIf({first.name} matters most, by {first.spread:.4g} samples/s)"

    def svg(self) -> str:
        """The tornado plot."""
        from meshwright.report.tornado import tornado_svg

        return tornado_svg(self.to_dict())


def calculon_what_if(
    request: CalculonWhatIfRequest, *, progress: Callable[[int, int], None] | None = None
) -> CalculonWhatIf:
    """How the best sample rate changes with each number of the system, searched anew for every change.

    Args:
        request: application, system and space; each number is multiplied by each of its factors.
        progress: called with the searches done and the searches in all.

    Returns:
        The numbers, that with the largest effect first.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name.
        InfeasibleError: the space is empty, or nothing in it fits.
    """
    check = InputCheck()
    factors = tuple(dict.fromkeys(request.factors))
    for factor in factors:
        if not 1e-6 <= factor <= 1e6 or factor == 1:
            why = "a factor must be a number above 0 and not 1"
            check.problem(f"--factors holds {factor:g}", why, "for example --factors 0.5,2", "--factors")
    if not factors:
        check.problem("--factors is empty", "at least one factor is needed", "for example --factors 0.5,2", "--factors")
    space, choice = read_space(request.space, check)
    answer = what_if(space, choice.axes, factors=factors, fixed=request.space.options.fixed, progress=progress)
    if not answer.base.best:
        raise nothing_fits(space, answer.base)
    return CalculonWhatIf(space=space, factors=factors, answer=answer)
