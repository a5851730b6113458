"""What `--pin`, `--forbid`, `--schedule` and `--target` say, as the axes of a search space."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from meshwright.errors import InputError, MeshwrightError, Problem, nearest
from meshwright.estimate.legality import model_rules, row_degrees
from meshwright.estimate.stages import refusal
from meshwright.schedules import DEFAULT_SCHEDULES, PLAN_SCHEDULES, SCHEDULES, known_names, schedule_named
from meshwright.schedules.parameters import tried_of
from meshwright.search.axes import AXES, is_recompute
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload

COUNTED = tuple(axis.name for axis in AXES.values() if axis.counted)
_OTHER_NAMES = {other: axis.name for axis in AXES.values() for other in axis.other_names}


def axis_called(name: str) -> str | None:
    """The axis of a name, or of a name that other programs use for it; None where there is none.

    Args:
        name: as an option or a key, such as `--tensor-parallel-size`.
    """
    plain = name.strip("-").replace("-", "_").lower()
    return plain if plain in AXES else _OTHER_NAMES.get(plain)


def _tokens() -> dict[str, tuple[str, str]]:
    """Tokens of the one-line form that state one axis, with its value."""
    return {
        token: (axis.name, word)
        for axis in AXES.values()
        if axis.token
        for word in axis.values()
        if (token := axis.token(word))
    }


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
        workload: likewise, by its batch and sequence.
        devices: of the cluster.
        pin: axes fixed to a value, `tp=8`, or to several, `tp=4,8`; tokens of the one-line form too.
        forbid: an axis, `vpp`, which then stays at its plain value, or single values, `pp=4`, `fsdp`.
        offload: what is kept away from the devices, as `planning.offload` reads it.
        schedule: names that may be used; `all` for every one; those of `DEFAULT_SCHEDULES` by default.
        methods: axes that are opened to all their values where nothing else is said of them; `all` for every one.

    Returns:
        The space.

    Raises:
        InputError: unknown axes and values, and pins no legal plan can have, all together.
    """
    problems: list[Problem] = []
    pins: dict[str, tuple[object, ...]] = {}

    def hold(axis: str, values: Sequence[object], said: str) -> None:
        left = tuple(value for value in values if axis not in pins or value in pins[axis])
        if not left:
            why = f"{axis} is fixed to {_listed(pins.get(axis, ()))} already"
            problems.append(
                Problem(what=f"{said} leaves no value of {axis}", why=why, fix="drop one of the two", field=axis)
            )
        pins[axis] = left

    for entry in _entries(pin):
        axis, values = _read(entry, "pin", problems)
        if axis and not values:
            fix = f"say {axis}={'8' if axis in COUNTED else AXES[axis].values()[-1]}"
            problems.append(Problem(what=f"pin {entry!r} has no value", why="a pin fixes an axis to values", fix=fix))
        elif axis:
            hold(axis, values, f"pin {entry!r}")
    if schedule is not None:
        names = _schedules(schedule, problems, tries=True)
        if names:
            hold("schedule", names, f"schedule {_listed(names)}")
    if offload is not None:
        from meshwright.planning.offload import read_offload

        try:
            hold("offload", read_offload(offload), f"offload {offload!r}")
        except InputError as error:
            problems += error.problems
    opened: tuple[str, ...] = ()
    if methods is not None:
        from meshwright.planning.methods import OPENED, idle_problems, method_problems, opened_axes

        problems += method_problems(methods) + idle_problems(methods, model, workload)
        opened = tuple(axis for axis in opened_axes(methods, model, workload) if axis not in pins)
        pins |= {axis: OPENED[axis]() for axis in opened}
    for entry in _entries(forbid):
        axis, values = _read(entry, "forbid", problems)
        if axis and not values and AXES[axis].neutral is None:
            problems.append(
                Problem(
                    what=f"forbid {entry!r} has no value",
                    why="a plan needs one",
                    fix=f"say {axis}={AXES[axis].values()[-1]}",
                )
            )
        elif axis:
            every = list(pins.get(axis, ())) if axis == "schedule" else []
            every = every or _every_value(axis, model, workload, devices)
            kept = [v for v in every if v not in values] if values else [AXES[axis].neutral]
            hold(axis, kept, f"forbid {entry!r}")
    if not problems:
        problems += _impossible(pins, model, workload, devices)
    if problems:
        raise InputError(problems, code="MW205")
    return Space(pins=tuple(pins.items()), opened=opened)


def inexact(schedules: Iterable[str]) -> tuple[str, ...]:
    """A warning about each of these schedules that does not compute the exact gradient of a step."""
    names = [name for name in dict.fromkeys(schedules) if not schedule_named(name).exact_semantics]
    return tuple(
        f"{name} is not exact: a step is not the gradient of its batch at one version of the weights" for name in names
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
        _blank(verb, said, problems)
        for entry in _entries(said):
            _read(entry, verb, problems)
    if schedule is not None:
        _schedules(schedule, problems)
    if offload is not None:
        from meshwright.planning.offload import read_offload

        try:
            read_offload(offload)
        except InputError as error:
            problems += error.problems
    if methods is not None:
        from meshwright.planning.methods import method_problems

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


def _blank(verb: str, said: str | Iterable[str], problems: list[Problem]) -> None:
    """Note a text that names no axis: a variable of a script that is not set."""
    if any(not str(text).strip(" ,") for text in ([said] if isinstance(said, str) else said)):
        what, fix = f"{verb} is empty", "leave it out, or say tp=8" if verb == "pin" else "leave it out, or say pp"
        problems.append(Problem(what=what, why="it names no axis", fix=fix, field=verb))


def _entries(said: str | Iterable[str]) -> list[str]:
    """`tp=4,8,sharding=z1` as `tp=4,8` and `sharding=z1`: what is no value of the entry before starts a new one."""
    found: list[str] = []
    for text in [said] if isinstance(said, str) else said:
        for part in (part.strip() for part in str(text).split(",")):
            axis = found[-1].partition("=")[0] if found and "=" in found[-1] else ""
            axis = _OTHER_NAMES.get(axis, axis)
            value = (
                part.isdigit()
                if axis in COUNTED
                else (axis in AXES and _value(axis, part) is not None) or _schedule(axis, part)
            )
            if value:
                found[-1] += f",{part}"
            elif part:
                found.append(part)
    return found


def _read(entry: str, verb: str, problems: list[Problem]) -> tuple[str, tuple[object, ...]]:
    """Axis and values of one entry; an empty axis where it is not understood."""
    name, equals, rest = entry.partition("=")
    name = name.strip().lower().replace("-", "_") if equals else entry.strip()
    axis = _OTHER_NAMES.get(name, name)
    if not equals and axis not in AXES:
        return _read_token(entry, verb, problems)
    if axis not in AXES:
        problems.append(_unknown(entry, name, verb))
        return "", ()
    values: list[object] = []
    for text in (part.strip() for part in rest.split(",") if part.strip()):
        value = _value(axis, text)
        if value is None:
            problems.append(_wrong_value(axis, text, verb))
            return "", ()
        values.append(value)
    return axis, tuple(values)


def _read_token(entry: str, verb: str, problems: list[Problem]) -> tuple[str, tuple[object, ...]]:
    if found := _tokens().get(entry):
        return found[0], (found[1],)
    if _schedule("schedule", entry):
        return "schedule", (_value("schedule", entry),)
    if entry.startswith("rc-") and (word := _value("recompute", entry)):
        return "recompute", (word,)
    match = re.fullmatch(r"([a-z]+)([0-9]{1,9})", entry)
    if match and match[1] in COUNTED and int(match[2]) >= 1:
        return match[1], (int(match[2]),)
    problems.append(_unknown(entry, entry, verb))
    return "", ()


def _value(axis: str, text: str) -> object | None:
    if axis in COUNTED:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= 1 else None
    word = text.lower().removeprefix("rc-") if axis == "recompute" else text.lower()
    if axis == "schedule":
        return next(iter(_schedules(word, [])), None)
    if axis == "recompute":
        return word if is_recompute(word) else None
    word = f"z{word}" if axis == "sharding" and word.isdigit() else word
    return word if word in AXES[axis].values() else None


def _schedule(axis: str, text: str) -> bool:
    """Whether an entry is the name of a schedule that plans may run, with its settings or without."""
    return axis == "schedule" and _value(axis, text) is not None


def _unknown(entry: str, name: str, verb: str) -> Problem:
    close = nearest(name, [*AXES, *_tokens(), *PLAN_SCHEDULES])
    fix = f"did you mean {' or '.join(close)}?" if close else f"axes: {', '.join(AXES)}"
    return Problem(what=f"{verb} {entry[:60]!r}: unknown axis {name[:40]!r}", why="no plan has it", fix=fix, field=verb)


def _wrong_value(axis: str, text: str, verb: str) -> Problem:
    if axis in COUNTED:
        why, fix = "degrees are whole numbers from 1 on", f"for example {axis}=8"
        return Problem(what=f"{verb} {axis}={text[:40]}", why=why, fix=fix, field=axis)
    close = nearest(text, AXES[axis].values())
    fix = f"did you mean {' or '.join(close)}?" if close else ""
    return Problem(
        what=f"{verb} {axis}={text[:40]}", why=f"{axis} is one of {', '.join(AXES[axis].values())}", fix=fix, field=axis
    )


def _schedules(
    named: str | Iterable[str], problems: list[Problem], allowed: Sequence[str] = PLAN_SCHEDULES, *, tries: bool = False
) -> list[str]:
    """Schedules by their tokens; with `tries` one that is named without settings stands for those a search tries."""
    names: list[str] = []
    for text in [named] if isinstance(named, str) else named:
        for name in (part.strip().lower() for part in str(text).split(",") if part.strip()):
            if name == "all":
                names += list(allowed)
                continue
            try:
                schedule = schedule_named(name[:80])
            except MeshwrightError as error:
                problems += error.problems
                continue
            if schedule.name in allowed:
                bare = tries and name in known_names()
                names += [one.token for one in (tried_of(schedule) if bare else (schedule,))]
            else:
                problems.append(refusal(schedule))
    return list(dict.fromkeys(names))


def schedule_names(named: str | Iterable[str], *, refused: bool = False) -> list[str]:
    """Names of schedules, aliases resolved.

    Args:
        named: names, in one text with commas or several; `all` for every one.
        refused: whether schedules that plans cannot run may be among them.

    Raises:
        InputError: unknown names, all together.
    """
    problems: list[Problem] = []
    names = _schedules(named, problems, tuple(SCHEDULES) if refused else PLAN_SCHEDULES)
    if problems:
        raise InputError(problems, code="MW205")
    return names


def _every_value(axis: str, model: ModelSpec, workload: Workload, devices: int) -> list[object]:
    """All values an axis could take in any plan, so that one can be taken out."""
    if axis == "schedule":
        return list(DEFAULT_SCHEDULES)
    if not AXES[axis].counted:
        return list(AXES[axis].values())
    if axis == "vpp":
        return list(range(1, model.most_stages + 1))
    return list(divisors(workload.global_batch if axis == "mbs" else devices))


def _impossible(
    pins: dict[str, tuple[object, ...]], model: ModelSpec, workload: Workload, devices: int
) -> list[Problem]:
    """Pins that no legal plan has whatever the other axes are."""
    problems: list[Problem] = []
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


def _impossible_for(
    tensor: str, pins: dict[str, tuple[object, ...]], model: ModelSpec, workload: Workload, devices: int
) -> list[Problem]:
    """Pins that no legal plan of a tensor strategy has."""
    problems: list[Problem] = []
    for axis in COUNTED:
        found = [_alone(axis, int(str(value)), tensor, model, workload, devices) for value in pins.get(axis, ())]
        if found and all(found):
            problems += [problem for problem in found if problem][:2]
    if tensor != "1d" and not problems:
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
    row = PlanRow(cp=(("p2p", value),)) if axis == "cp" else replace(PlanRow(mbs=value), **{axis: value})  # type: ignore[arg-type]
    degrees = row_degrees(row)
    for rule in model_rules(model, workload.seq_len, tensor):
        # How experts fold over a stage's devices depends on the other degrees.
        if rule.name != "folding" and not bool(rule.holds(degrees)[0]):
            return Problem(what=f"{axis}={value}", why=rule.why, fix=rule.fix, field=axis)
    return None


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "nothing"
