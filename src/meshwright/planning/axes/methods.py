"""What `--methods` opens: every value of the axes that a search keeps narrow unless they are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshwright.errors import Problem, nearest
from meshwright.planning.axes.offload import AUTO, read_offload
from meshwright.schedules import PLAN_SCHEDULES, schedule_named
from meshwright.schedules.parameters import tried_of
from meshwright.search.axes import AXES, DEGREE_OF, WAY_AXES
from meshwright.search.space import Space
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

ALL = "all"
"""Every axis of `OPENED`."""


def _exact_schedules() -> tuple[str, ...]:
    """Every schedule whose step is the gradient of its batch, with the settings that a search tries."""
    exact = (schedule_named(name) for name in PLAN_SCHEDULES)
    return tuple(tried.token for schedule in exact if schedule.exact_semantics for tried in tried_of(schedule))


def _words(axis: str) -> Callable[[], tuple[str, ...]]:
    return lambda: AXES[axis].values()


OPENED: dict[str, Callable[[], tuple[str, ...]]] = {
    "schedule": _exact_schedules,
    "dispatcher": _words("dispatcher"),
    "ep_overlap": _words("ep_overlap"),
    "hot_experts": _words("hot_experts"),
    "ep_order": _words("ep_order"),
    "offload": lambda: read_offload(AUTO),
    "tensor": _words("tensor"),
    "tp_overlap": _words("tp_overlap"),
    "cp_kind": _words("cp_kind"),
    "sharding": _words("sharding"),
    "prefetch": _words("prefetch"),
}
"""Axes that a search does not go through as a whole by default, and all that `--methods` tries of each."""


def opened_axes(methods: str | Iterable[str] | None, model: ModelSpec, workload: Workload) -> tuple[str, ...]:
    """Axes that `--methods` opens, in the order of `OPENED`; of all those that say something of this model.

    Args:
        methods: names of axes, in one text with commas or several; `all` for every one; None for none.
        model: the model; without experts no axis of experts is opened.
        workload: nothing is done about hot experts where it states no load of them.
    """
    named = _named(methods)
    axes = tuple(axis for axis in OPENED if axis in named or ALL in named)
    return tuple(axis for axis in axes if not _idle(axis, model, workload))


def idle_problems(methods: str | Iterable[str] | None, model: ModelSpec, workload: Workload) -> list[Problem]:
    """Axes that are named and say nothing of this model.

    Args:
        methods: the methods as given.
        model: the model of the plans.
        workload: the workload of the plans.
    """
    said = [(axis, _idle(axis, model, workload)) for axis in OPENED if axis in _named(methods)]
    return [Problem(what=f"methods {axis!r}", why=idle[0], fix=idle[1], field="methods") for axis, idle in said if idle]


def _idle(axis: str, model: ModelSpec, workload: Workload) -> tuple[str, str] | None:
    """Why an axis makes no difference, and what to do; None where it may."""
    if axis == "tp_overlap" and model.is_moe:
        return f"experts of {model.name} take the tokens of whole micro-batches (no halves)", f"leave {axis} out"
    if axis not in WAY_AXES:
        return None
    if not any(layer.mlp.routed_experts for layer in model.kinds()):
        return f"{model.name} has no experts", f"leave {axis} out"
    if axis == "hot_experts" and workload.expert_load is None:
        return "no expert is hot where no load of them is stated", "state one: --expert-load zipf:1.2"
    return None


def searched_of(space: Space) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Values that a search goes through of each axis that was opened, and whether these are all of them.

    A target leaves some values out, and an axis whose degree is held to 1 has its plain value alone.

    Args:
        space: the space as it is searched.
    """
    found = {}
    for axis in space.opened:
        values, degree = space.pinned(axis) or (), DEGREE_OF.get(axis)
        alone = degree is not None and set(map(int, map(str, space.pinned(degree) or (0,)))) == {1}
        left = AXES[axis].values()[:1] if alone else tuple(map(str, values))
        found[axis] = left, not alone and set(left) >= set(OPENED[axis]())
    return found


def method_problems(methods: str | Iterable[str] | None) -> list[Problem]:
    """Names that `--methods` does not know, and none at all.

    Args:
        methods: the methods as given.
    """
    if methods is None:
        return []
    found, named = [], _named(methods)
    for name in named or [""]:
        if name == ALL or name in OPENED:
            continue
        close = nearest(name[:40], [*OPENED, ALL])
        fix = f"did you mean {' or '.join(close)}?" if close else f"say {', '.join((ALL, *OPENED))}"
        wide = "a search goes through all values of it anyway" if name in AXES else "no axis of this name can be opened"
        why = wide if name else "it names no axis"
        found.append(Problem(what=f"methods {name[:40]!r}", why=why, fix=fix, field="methods"))
    return found


def _named(methods: str | Iterable[str] | None) -> list[str]:
    texts = [] if methods is None else [methods] if isinstance(methods, str) else list(methods)
    return [part.strip().lower().replace("-", "_") for text in texts for part in str(text).split(",") if part.strip()]
