"""What `--pin`, `--forbid`, `--schedule` and `--target` say, as the axes of a search space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from meshwright.errors import InputError, Problem
from meshwright.estimate.rules.degrees import model_rules
from meshwright.planning.axes.words import (
    COUNTED,
    entries_of,
    note_blank,
    read_entry,
    schedules_of,
)
from meshwright.schedules import DEFAULT_SCHEDULES, PLAN_SCHEDULES, SCHEDULES, Schedule, schedule_named
from meshwright.search.axes import AXES, DEGREE_OF, beyond_neutral
from meshwright.search.shardings import keeps_order
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs.dispatchers import ALLTOALL, DISPATCHERS
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS, searched_shardings
from meshwright.specs.strategy import STRIPED
from meshwright.specs.workload import Workload


def space_of(
    model: ModelSpec,
    workload: Workload,
    devices: int,
    *,
    pin: str | Iterable[str] = (),
    forbid: str | Iterable[str] = (),
    schedule: str | Iterable[str] | None = None,
    offload: str | None = None,
    methods: str | Iterable[str] | None = None,
) -> Space:
    """The search space that is left.

    Args:
        model: decides which degrees can be legal.
        workload: the batch and sequence, which decide it too.
        devices: the number of devices of the cluster.
        pin: axes fixed to a value, `tp=8`, or to several, `tp=4,8`; tokens of the one-line form too.
        forbid: an axis, `vpp`, which then stays at its plain value, or single values, `pp=4`, `fsdp`.
        offload: what is kept away from the devices, as `planning.axes.offload` reads it.
        schedule: names that may be used; `all` for every one; those of `DEFAULT_SCHEDULES` by default.
        methods: axes that are opened to all their values where nothing else is said of them; `all` for every one.

    Returns:
        The space.

    Raises:
        InputError: unknown axes and values, and pins no legal plan can have, all together.
    """
    left = _AxesLeft()
    for entry in entries_of(pin):
        left.pin(entry)
    if schedule is not None:
        left.use_schedules(schedule)
    if offload is not None:
        left.keep_away(offload)
    opened = () if methods is None else left.open(methods, model, workload)
    if "schedule" in left.pins and not left.problems:
        left.pins["schedule"] += _fitted(map(str, left.pins["schedule"]), model, workload, devices)
    for entry in entries_of(forbid):
        left.forbid(entry, lambda axis: _every_value(axis, model, workload, devices))
    problems = left.problems or list(_impossible(left.pins, model, workload, devices))
    if problems:
        raise InputError(problems, code="MW205")
    return Space(pins=tuple(left.pins.items()), opened=opened)


class _AxesLeft:
    """Values of axes that are left, as one word after another takes some away, and what is wrong with the words."""

    def __init__(self) -> None:
        self.pins: dict[str, tuple[object, ...]] = {}
        self.problems: list[Problem] = []

    def keep(self, axis: str, values: Iterable[object], said: str) -> None:
        """Leave these values of an axis alone."""
        kept = tuple(value for value in values if axis not in self.pins or value in self.pins[axis])
        if not kept:
            why = f"{axis} is fixed to {_listed(self.pins.get(axis, ()))} already"
            what = f"{said} leaves no value of {axis}"
            self.problems.append(Problem(what=what, why=why, fix="drop one of the two", field=axis))
        self.pins[axis] = kept

    def pin(self, entry: str) -> None:
        axis, values = read_entry(entry, "pin", self.problems)
        if axis and values:
            self.keep(axis, values, f"pin {entry!r}")
        elif axis:
            fix = f"say {axis}={'8' if axis in COUNTED else AXES[axis].values()[-1]}"
            why = "a pin fixes an axis to values"
            self.problems.append(Problem(what=f"pin {entry!r} has no value", why=why, fix=fix))

    def forbid(self, entry: str, every_value: Callable[[str], Sequence[object]]) -> None:
        axis, values = read_entry(entry, "forbid", self.problems)
        if axis and not values and AXES[axis].neutral is None:
            fix = f"say {axis}={AXES[axis].values()[-1]}"
            self.problems.append(Problem(what=f"forbid {entry!r} has no value", why="a plan needs one", fix=fix))
        elif axis:
            named = self.pins.get(axis, ()) if axis in ("schedule", "sharding") else ()
            others = [value for value in named or every_value(axis) if value not in values]
            self.keep(axis, others if values else [AXES[axis].neutral], f"forbid {entry!r}")

    def use_schedules(self, schedule: str | Iterable[str]) -> None:
        if names := schedules_of(schedule, self.problems, tries=True):
            self.keep("schedule", names, f"schedule {_listed(names)}")

    def keep_away(self, offload: str) -> None:
        from meshwright.planning.axes.offload import read_offload

        try:
            self.keep("offload", read_offload(offload), f"offload {offload!r}")
        except InputError as error:
            self.problems += error.problems

    def open(self, methods: str | Iterable[str], model: ModelSpec, workload: Workload) -> tuple[str, ...]:
        """Leave all values of the axes of methods that nothing else is said of; these axes."""
        from meshwright.planning.axes.methods import OPENED, idle_problems, method_problems, opened_axes

        self.problems += method_problems(methods) + idle_problems(methods, model, workload)
        opened = tuple(axis for axis in opened_axes(methods, model, workload) if axis not in self.pins)
        self.pins |= {axis: OPENED[axis]() for axis in opened}
        return opened


def _fitted(names: Iterable[str], model: ModelSpec, workload: Workload, devices: int) -> tuple[str, ...]:
    """Schedules named without settings, with settings that suit the layers of a model."""
    found: list[str] = []
    for schedule in map(schedule_named, names):
        if type(schedule).fitted is Schedule.fitted or schedule.token != schedule.name:
            continue
        from meshwright.estimate.layout import ModelLayout  # few schedules ask for the layers

        layout = ModelLayout.of(model, workload.seq_len)
        weights, _, ahead = layout.chain()
        for workers in divisors(devices):
            fitted = schedule.fitted(weights, workers, first_extra=ahead, last_extra=layout.tail_flop)
            found += [one.token for one in fitted]
    return tuple(found)


def inexact(schedules: Iterable[str]) -> tuple[str, ...]:
    """A warning about each of these schedules that does not compute the exact gradient of a step."""
    found = {name: schedule_named(name) for name in schedules}
    return tuple(
        f"{name} is not exact: "
        + (
            f"{one.chains} replicas train on samples of their own and are averaged behind each step"
            if one.averages and one.chains > 1
            else "a step is not the gradient of its batch at one version of the weights"
        )
        for name, one in found.items()
        if not one.exact_semantics
    )


def check_axes(
    *,
    pin: str | Iterable[str] = (),
    forbid: str | Iterable[str] = (),
    schedule: str | Iterable[str] | None = None,
    offload: str | None = None,
    methods: str | Iterable[str] | None = None,
) -> None:
    """Refuse unknown axes, values and schedules, whatever the model and the cluster are.

    Raises:
        InputError: all of them together.
    """
    problems: list[Problem] = []
    for verb, said in (("pin", pin), ("forbid", forbid)):
        note_blank(verb, said, problems)
        for entry in entries_of(said):
            read_entry(entry, verb, problems)
    if schedule is not None:
        schedules_of(schedule, problems)
    if offload is not None:
        from meshwright.planning.axes.offload import read_offload

        try:
            read_offload(offload)
        except InputError as error:
            problems += error.problems
    if methods is not None:
        from meshwright.planning.axes.methods import method_problems

        problems += method_problems(methods)
    if problems:
        raise InputError(problems, code="MW205")


def target_rule(target: str | None) -> Callable[[Job], tuple[Problem, ...]] | None:
    """What a target refuses of a job; None without a target.

    Raises:
        UnsupportedError: for a target nobody taught us.
    """
    if target is None:
        return None
    from meshwright.planning.for_target import refusals_in_search

    return refusals_in_search(target)


def schedule_names(named: str | Iterable[str], *, refused: bool = False) -> list[str]:
    """Names of schedules, aliases resolved.

    Args:
        named: names, in one text with commas or several; `all` for every one.
        refused: whether schedules that plans cannot run may be among them.

    Raises:
        InputError: unknown names, all together.
    """
    problems: list[Problem] = []
    names = schedules_of(named, problems, tuple(SCHEDULES) if refused else PLAN_SCHEDULES)
    if problems:
        raise InputError(problems, code="MW205")
    return names


def _every_value(axis: str, model: ModelSpec, workload: Workload, devices: int) -> list[object]:
    """All values an axis could take in any plan, so that one can be taken out."""
    if axis == "schedule":
        return list(DEFAULT_SCHEDULES)
    if axis == "sharding":
        return list(searched_shardings())
    if not AXES[axis].counted:
        return list(AXES[axis].values())
    if axis == "vpp":
        return list(range(1, model.most_stages + 1))
    return list(divisors(workload.global_batch if axis == "mbs" else devices))


def _impossible(
    pins: dict[str, tuple[object, ...]], model: ModelSpec, workload: Workload, devices: int
) -> list[Problem]:
    """Pins that no legal plan has whatever the other axes are."""
    problems = [*_unordered(pins), *_of_no_gathers(pins), *_of_no_group(pins, model, devices)]
    problems += _of_no_halves(pins, model, workload)
    tensors = [str(name) for name in pins.get("tensor", ("1d",))]
    # Of several strategies one that can have it is enough.
    each = [_impossible_for(name, pins, model, workload, devices) for name in tensors]
    problems += [] if not all(each) else each[0]
    least = {axis: min((int(str(v)) for v in pins.get(axis, ())), default=1) for axis in ("tp", "cp", "pp", "dp")}
    product = math.prod(least.values())
    if not problems:
        parts = " x ".join(f"{axis}{degree}" for axis, degree in least.items() if axis in pins)
        single = all(len(pins.get(axis, (1,))) == 1 for axis in least)
        if (
            product > devices
            or (single and devices % product)
            or (single and len(least) == 4 and _all_held(pins, product, devices))
        ):
            why = f"tp x cp x pp x dp must use the {devices} devices"
            problems.append(Problem(what=f"{parts} = {product}", why=why, fix="free one of these axes", field="pin"))
    return problems


def _unordered(pins: dict[str, tuple[object, ...]]) -> Iterator[Problem]:
    """Exchanges that are held to go before gradients, or beside compute, where no value of another axis leaves any."""
    first, beside = pins.get("ep_order") == ("first",), pins.get("ep_overlap", ())
    held = [("ep_order=first", "ep_order=shared")] * first
    if beside and "none" not in beside:
        held.append((f"ep_overlap={_listed(beside)}", "ep_overlap=none"))
    named = [str(name) for name in pins.get("dispatcher", ())]
    if named and not any(DISPATCHERS[name].exchanges for name in named if name in DISPATCHERS):
        for what, instead in held:
            yield Problem(
                what=f"{what} with dispatcher={_listed(named)}",
                why="tokens are not exchanged",
                fix=f"use dispatcher={ALLTOALL}, or {instead}",
                field=what.partition("=")[0],
            )
    shardings = [str(name) for name in pins.get("sharding", ())]
    if first and shardings and not any(keeps_order(name) for name in shardings):
        yield Problem(
            what=f"ep_order=first with sharding={_listed(shardings)}",
            why="weights are gathered and gradients scattered layer by layer, in no order with exchanges",
            fix="use sharding=z0, z1 or z2, or ep_order=shared",
            field="ep_order",
        )


def _of_no_halves(pins: dict[str, tuple[object, ...]], model: ModelSpec, workload: Workload) -> Iterator[Problem]:
    """Halves of micro-batches that a plan is held to, where no plan has any."""
    if pins.get("tp_overlap") != ("halves",):
        return
    batches = pins.get("mbs", (workload.global_batch,))
    if model.is_moe:
        why = f"experts of {model.name} take the tokens of whole micro-batches"
    elif all(int(str(mbs)) % 2 for mbs in batches):
        why = f"a micro-batch is cut into halves of whole sequences, mbs is {_listed(batches)}"
        if "mbs" not in pins:
            why = f"a micro-batch is cut into halves of whole sequences, and no divisor of {batches[0]} is even"
    else:
        return
    yield Problem(what="tp_overlap=halves", why=why, fix="use tp_overlap=ring", field="tp_overlap")


def _of_no_gathers(pins: dict[str, tuple[object, ...]]) -> Iterator[Problem]:
    """A depth of prefetching that a plan is held to, where no plan gathers weights layer by layer."""
    shardings = [str(name) for name in pins.get("sharding", ())]
    held = beyond_neutral("prefetch", pins.get("prefetch")) and shardings
    if held and not any(SHARDINGS[name].gathers_layers for name in shardings):
        yield Problem(
            what=f"prefetch={_listed(pins['prefetch'])} with sharding={_listed(shardings)}",
            why="weights are not gathered layer by layer",
            fix="use sharding=fsdp, z3 or hsdp, or prefetch=1",
            field="prefetch",
        )


def _of_no_group(pins: dict[str, tuple[object, ...]], model: ModelSpec, devices: int) -> Iterator[Problem]:
    """Ways of the ranks of a group to work together that a plan is held to, where no plan has such a group."""
    alone = {
        "tp": "with tp=1 no layer is split over ranks",
        "cp": "with cp=1 no sequence is split over ranks",
        "ep": "with ep=1 all experts are on every rank",
    }
    experts = any(layer.mlp.routed_experts for layer in model.kinds())
    for axis, degree in DEGREE_OF.items():
        if not beyond_neutral(axis, pins.get(axis)):
            continue
        why, fix = alone[degree], f"leave {axis} out, or use {degree}=2 or more"
        if degree == "ep" and not experts:
            why, fix = f"{model.name} has no experts", f"leave {axis} out"
        elif devices == 1:
            why, fix = "one device has no others to work with", f"leave {axis} out"
        elif pins.get(degree) != (1,):
            continue
        yield Problem(what=f"{axis}={_listed(pins[axis])}", why=why, fix=fix, field=axis)


def _impossible_for(
    tensor: str, pins: dict[str, tuple[object, ...]], model: ModelSpec, workload: Workload, devices: int
) -> list[Problem]:
    """Pins that no legal plan of a tensor strategy has."""
    problems: list[Problem] = []
    for axis in COUNTED:
        found = [_alone(axis, int(str(value)), tensor, model, workload, devices) for value in pins.get(axis, ())]
        if found and all(found):
            problems += [problem for problem in found if problem][:2]
    if tensor != "1d" and not problems and pins.get("tp") != (1,) and devices > 1:
        wide = [tp for tp in divisors(devices) if tp > 1 and tp in pins.get("tp", (tp,))]
        found = [_alone("tp", tp, tensor, model, workload, devices) for tp in wide]
        if all(found):
            reasons = "; ".join(list(dict.fromkeys(problem.why for problem in found if problem))[:2])
            what, why = f"tensor={tensor}", reasons or f"no tensor degree divides {devices} devices"
            problems.append(Problem(what=what, why=why, fix="use tensor=1d", field="tensor"))
    return problems


def _all_held(pins: dict[str, tuple[object, ...]], product: int, devices: int) -> bool:
    return all(axis in pins for axis in ("tp", "cp", "pp", "dp")) and product != devices


def _alone(axis: str, value: int, tensor: str, model: ModelSpec, workload: Workload, devices: int) -> Problem | None:
    """Why no plan can have this value of an axis, or None."""
    if axis in ("tp", "cp", "pp", "dp") and devices % value:
        close = sorted(divisors(devices), key=lambda d: (abs(d - value), d))[:2]
        fix = f"use {axis}={' or '.join(map(str, sorted(close)))}"
        return Problem(what=f"{axis}={value}", why=f"{axis} must divide the {devices} devices", fix=fix, field=axis)
    if axis in ("dp", "mbs") and workload.global_batch % value:
        why = f"{axis} must divide the global batch of {workload.global_batch} sequences"
        return Problem(what=f"{axis}={value}", why=why, fix=f"use a divisor of {workload.global_batch}", field=axis)
    if axis in ("dp", "mbs"):
        return None
    # Stripes ask for nothing but equal parts of a sequence: another kind is legal nowhere else.
    row = PlanRow(cp=((STRIPED, value),)) if axis == "cp" else replace(PlanRow(mbs=value), **{axis: value})  # type: ignore[arg-type]
    from meshwright.estimate.rules.legality import row_degrees  # most axes are free

    degrees = row_degrees(row)
    for rule in model_rules(model, workload.seq_len, tensor):
        # How experts fold over a stage's devices depends on the other degrees.
        if rule.name != "folding" and not bool(rule.holds(degrees)[0]):
            return Problem(what=f"{axis}={value}", why=rule.why, fix=rule.fix, field=axis)
    return None


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "nothing"
