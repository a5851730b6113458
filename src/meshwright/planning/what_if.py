"""What if: one plan with settings, workload or numbers of its cluster changed, and which values each setting may take.

Nothing is searched. A value that is not legal keeps the rule that it breaks beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.estimate.layout import expand
from meshwright.estimate.rules.legality import row_problems
from meshwright.fields.gather import Gather
from meshwright.fields.kinds import Choice, Count, FieldKind, Number, SequenceLength, Whole
from meshwright.planning.repair.changes import (
    DEGREES,
    describe,
    with_chunks,
    with_data_degree,
    with_degree,
    with_open_groups,
)
from meshwright.planning.sensitivity import numbers_of
from meshwright.planning.setting import Setting, Value, near, with_own
from meshwright.planning.what_if_stages import (
    PLAN_AXES,
    changed_stages,
    flushing_schedules,
    stage_names,
    stage_settings,
    stage_values,
)
from meshwright.records import Record
from meshwright.schedules import known_names, schedule_named
from meshwright.schedules.plan_rows import row_of
from meshwright.search.axes import is_recompute, selective_words
from meshwright.search.table import divisors
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import RECOMPUTES, PlanRow, recompute_fields
from meshwright.specs.row_text import parse_row
from meshwright.specs.shardings import SHARDINGS, plain_shardings

AXES = (*DEGREES, "vpp", "mbs", "recompute", "sharding", "schedule")
"""Settings of a row that change by themselves; the data degree takes what they leave of the devices."""
MOST_DEGREE = {"tp": 64, "cp": 64, "pp": 128, "ep": 512, "etp": 64}
"""Highest degrees that are offered: beyond them nobody runs one, and the choices would be too many to look at."""
WORKLOAD: dict[str, FieldKind] = {
    "seq_len": SequenceLength(),
    "global_batch": Count(whole=True, example="1024"),
}
PRICE = Number(metavar="USD", zero=True)
FACTOR = Number(high=100)
MEMORY = "memory of a device"
"""A number of the cluster that changes what fits, not the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Record):
    """One number of the cluster as the plan was priced with it."""

    name: str
    value: float
    unit: str
    """`B/s`, `B`, or `share` of a peak."""
    basis: str


def changed_plan(job: Job, row: PlanRow | None, changes: Mapping[str, Any]) -> tuple[Job, PlanRow | None]:
    """The plan with what is said changed, and its row; everything else as it was.

    Args:
        job: the plan.
        row: the row that says it; None where none does.
        changes: the changes by name: `row`, a plan in one line that the others then change; `AXES`; `seq_len` and
            `global_batch`; `expert_load`, the fullest rank over the mean, `zipf:S`, or rows of tokens by expert;
            `price` in USD per device and hour, of all kinds or by the name of the device; `numbers`, factors by the
            name of a number of the cluster.

    Raises:
        InputError: a value breaks its rule, or the settings do not go together; all problems at once.
    """
    gather = Gather()
    of_stages = stage_names(job) if row is None else {}
    known = {*AXES, *WORKLOAD, "expert_load", "price", "numbers", "row", *of_stages}
    for name in changes.keys() - known:
        what, why = f"{name[:60]!r} is changed", "nothing of a plan is called so"
        gather.problem(Problem(what=what, why=why, fix=f"one of {', '.join(sorted(known))}", field=name))
    read: dict[str, Any] = {}
    for name, kind in WORKLOAD.items():
        if name in changes:
            read[name] = gather.attempt(partial(kind.read, name, changes[name]))
    if "expert_load" in changes:
        read |= gather.attempt(lambda: _stated_load(changes["expert_load"], job.model)) or {}
    cluster = gather.attempt(lambda: _changed_cluster(job, changes))
    gather.done()
    assert cluster is not None
    batch = read.pop("global_batch", None)
    workload = replace(job.workload, **read)
    workload = workload if batch is None else workload.with_batch(batch)
    asked = {name: changes[name] for name in AXES if name in changes}
    own = row
    row = _stated_row(job, changes["row"]) if "row" in changes else own
    moved = {"global_batch", "seq_len", *of_stages} & changes.keys()
    if not asked and row == own and not moved:
        return replace(job, workload=workload, cluster=cluster), own
    if row is None:
        _refuse_row_settings(asked)
        plan = changed_stages(job, changes, workload.seq_len, batch)
        return replace(job, workload=workload, cluster=cluster, plan=plan), None
    if batch is None:
        workload = workload.with_batch(row.gbs)
    changed = changed_row(replace(row, gbs=workload.global_batch), asked, job.model, row.devices)
    problems = row_problems(changed, job.model, workload.seq_len, row.devices)
    if problems:
        raise InputError(problems, code="MW231")
    plan = job.plan if changed == own else expand(changed, job.model, workload.seq_len)
    found = Job(model=job.model, cluster=cluster, workload=workload, plan=plan, name=changed.format())
    return found, changed


def _refuse_row_settings(asked: Mapping[str, Any]) -> None:
    """Settings of whole plans, where stages have their own."""
    if others := [name for name in asked if name not in PLAN_AXES]:
        problem = Problem(
            what=f"{', '.join(others)} of a plan whose stages differ",
            why="no one row of degrees says it",
            fix=f"change it of the stages of one group, as {{'H100: {others[0]}': ...}}",
            field=others[0],
        )
        raise InputError(problem, code="MW231")


def changed_job(job: Job, changes: Mapping[str, Any]) -> Job:
    """The changed job, as `changed_plan` makes it, of a plan whose row is not available."""
    return changed_plan(job, row_of(job.plan, job.model), changes)[0]


def _stated_load(stated: object, model: ModelSpec) -> dict[str, Any]:
    """Fields of a workload that say how tokens spread over the experts; no file is read.

    Raises:
        InputError: it is no load, or one of other experts than the model's.
    """
    from meshwright.formats.expert_load import expert_load_of  # few plans have experts

    if isinstance(stated, str) and not stated.strip().lower().startswith(("zipf:", "balanced")):
        stated = Number().read("expert_load", stated)
    load = expert_load_of(stated)
    if isinstance(load, ExpertLoad):
        return {"expert_imbalance": 1.0, "expert_load": load.of(model)}
    return {"expert_imbalance": load, "expert_load": None}


def _stated_row(job: Job, text: Any) -> PlanRow:
    """A plan that was written in one line, on as many devices as this one uses."""
    row = parse_row(
        str(text), devices=job.plan.devices, global_batch=job.workload.global_batch, schedules=known_names()
    )
    return replace(row, schedule=schedule_named(row.schedule).token)


def changed_row(row: PlanRow, asked: Mapping[str, Any], model: ModelSpec, devices: int) -> PlanRow:
    """A row with settings changed one after the other, its data degree what they leave.

    Raises:
        InputError: a value of another kind than the setting's.
    """
    gather = Gather()
    row = with_open_groups(row)
    for name in AXES:
        if name in asked:
            row = gather.attempt(lambda n=name, r=row: _moved(r, n, asked[n], devices)) or row  # type: ignore[misc]
    gather.done()
    return with_data_degree(row, devices)


def changes_to(job: Job, name: str) -> dict[str, int | str] | None:
    """The settings that make another plan of the same devices and batch out of this one; None where they do not do.

    Args:
        job: the plan.
        name: the name of the other, in one line.
    """
    before = row_of(job.plan, job.model)
    after = parse_row(name, devices=job.plan.devices, global_batch=job.workload.global_batch, schedules=known_names())
    after = replace(after, schedule=schedule_named(after.schedule).token)
    if before is None or after.gbs != before.gbs:
        return None
    changes = {axis: _value_of(after, axis) for axis in AXES if _value_of(after, axis) != _value_of(before, axis)}
    try:
        return changes if changed_row(before, changes, job.model, job.plan.devices) == after else None
    except InputError:
        return None


def describe_change(before: PlanRow | None, after: PlanRow | None) -> str:
    """What changed of the row: `tp 4 -> 8 (dp 4 -> 2)`; empty where no row says it."""
    return "" if before is None or after is None or before == after else describe(before, after)


def describe_conditions(before: Job, after: Job, changes: Mapping[str, Any]) -> list[str]:
    """What changed around the plan: `seq 4,096 -> 8,192`, `NVLink4 bandwidth x 0.5`.

    Args:
        before: the plan as it was.
        after: the answer after the change.
        changes: the changes as `changed_plan` takes them.
    """
    found = []
    if before.workload.seq_len != after.workload.seq_len:
        found.append(f"seq {before.workload.seq_len:,} -> {after.workload.seq_len:,}")
    if row_of(before.plan, before.model) is None:
        was, is_ = (stage_values(job) | {"global_batch": job.workload.global_batch or 0} for job in (before, after))
        found += [f"{name} {was[name]} -> {is_[name]}" for name in changes if name in was and was[name] != is_[name]]
    if "expert_load" in changes:
        load = after.workload.expert_load
        found.append(f"expert load {load.described if load else f'{after.workload.expert_imbalance:.3g}'}")
    if "price" in changes:
        of_kinds = {group.device.name: group.price_per_hour for group in after.cluster.groups}
        stated = changes["price"] if isinstance(changes["price"], Mapping) else dict.fromkeys(of_kinds)
        said = [(kind, usd) for kind, usd in of_kinds.items() if kind in stated and usd is not None]
        alike = len({usd for _, usd in said}) == 1 and len(said) == len(of_kinds)
        for kind, usd in said[:1] if alike else said:
            found.append(f"{'' if alike else f'{kind} '}{usd:.3g} USD per GPU and hour")
    return [*found, *(f"{name} x {float(factor):.3g}" for name, factor in changes.get("numbers", {}).items())]


def varied_settings(job: Job, row: PlanRow | None) -> tuple[Setting, ...]:
    """Settings of a plan, or of its stages where no row says it, with the values each could have beside the others."""
    if row is None:
        return stage_settings(job)
    return tuple(_setting(name, row, job) for name in AXES if name not in ("ep", "etp") or job.model.is_moe)


def quantities_of(job: Job) -> tuple[Quantity, ...]:
    """Numbers of the cluster that the plan uses, and the memory of its devices."""
    found = [Quantity(name=one.name, value=one.value, unit=one.unit, basis=one.basis) for one in numbers_of(job)]
    smallest = min(group.device.memory_bytes for group in job.cluster.groups)
    return (*found, Quantity(name=MEMORY, value=smallest, unit="B", basis="datasheet"))


def _setting(name: str, row: PlanRow, job: Job) -> Setting:
    own = _value_of(row, name)
    values = []
    for value in _values(name, row, job.model):
        changed = _moved(row, name, value, row.devices)
        problems = () if value == own else row_problems(changed, job.model, job.workload.seq_len, row.devices)
        values.append(Value(value=value, problem=problems[0] if problems else None))
    return Setting(name=name, value=own, values=tuple(values))


def _value_of(row: PlanRow, name: str) -> int | str:
    if name == "cp":
        return row.cp_degree
    if name == "recompute":
        return row.recompute_word
    found: int | str = getattr(row, name)
    return found


def _values(name: str, row: PlanRow, model: ModelSpec) -> list[int | str]:
    """Values near a row's own, whether legal or not."""
    own = _value_of(row, name)
    if name == "recompute":
        return with_own(own, ("none", selective_words(model)[0], "full"))
    if name == "sharding":
        return with_own(own, plain_shardings())
    if name == "schedule":
        return with_own(own, flushing_schedules())
    if name == "vpp":
        return near(own, range(1, max(model.most_stages // row.pp, 1) + 1))
    if name == "mbs":
        return near(own, divisors(max(row.gbs // row.dp, 1)))
    limit = min(MOST_DEGREE[name], model.most_stages if name == "pp" else row.devices)
    return near(own, (degree for degree in divisors(row.devices) if degree <= limit))


def _moved(row: PlanRow, name: str, value: Any, devices: int) -> PlanRow:
    """One setting changed, those that follow from it too.

    Raises:
        InputError: the value is of another kind.
    """
    if name in DEGREES:
        return with_degree(row, name, Whole().read(name, value), devices)
    if name == "vpp":
        return with_chunks(row, Whole().read(name, value))
    if name == "mbs":
        return replace(row, mbs=Whole().read(name, value))
    text = str(value)
    if name == "recompute":
        if is_recompute(text):
            return replace(row, **recompute_fields(text), recompute_layers=0)
        kind, layers = text.rstrip("0123456789"), text[len(text.rstrip("0123456789")) :]
        kind = Choice(names=RECOMPUTES, noun="recompute").read(name, kind)
        return replace(row, **recompute_fields(kind), recompute_layers=int(layers or 0))
    if name == "sharding":
        text = Choice(names=tuple(SHARDINGS), noun="sharding").read(name, text)
        return replace(row, sharding=text, shard_group=row.shard_group if SHARDINGS[text].grouped else 0)
    schedule = schedule_named(text)
    least = schedule.fewest_chunks(row.pp, row.micro_batches)
    fits = not schedule.problems(row.pp, row.micro_batches, row.vpp)
    vpp = row.vpp if fits or least is None else least
    return replace(row, schedule=schedule.token, vpp=vpp)


def _repriced(cluster: ClusterSpec, stated: Any) -> ClusterSpec:
    """The cluster at other prices: one of all devices, or one for each kind that is named.

    Raises:
        InputError: a price is none, or a kind is not in the cluster; all problems at once.
    """
    kinds = dict.fromkeys(group.device.name for group in cluster.groups)
    gather = Gather()
    prices: dict[str, float | None] = {}
    for kind, usd in (stated if isinstance(stated, Mapping) else dict.fromkeys(kinds, stated)).items():
        if kind not in kinds:
            what = f"a price of {str(kind)[:60]!r}"
            problem = Problem(what=what, why="the cluster has none", fix=f"one of {', '.join(kinds)}", field="price")
            gather.problem(problem, "MW206")
        else:
            prices[kind] = gather.attempt(lambda usd=usd: PRICE.read("price", usd))  # type: ignore[misc]
    gather.done()
    groups = (
        replace(one, price_per_device_hour=prices[one.device.name]) if one.device.name in prices else one
        for one in cluster.groups
    )
    return replace(cluster, groups=tuple(groups))


def _changed_cluster(job: Job, changes: Mapping[str, Any]) -> ClusterSpec:
    cluster = job.cluster
    if "price" in changes:
        cluster = _repriced(cluster, changes["price"])
    wanted = changes.get("numbers", {})
    if not isinstance(wanted, Mapping):
        problem = Problem(what="numbers is no table", why="it has factors by name", field="numbers")
        raise InputError(problem, code="MW206")
    for name, factor in wanted.items():
        cluster = _scaled(replace(job, cluster=cluster), name, FACTOR.read(name, factor))
    return cluster


def _scaled(job: Job, name: str, factor: float) -> ClusterSpec:
    """The cluster with one number multiplied."""
    if name == MEMORY:
        groups = tuple(
            replace(group, device=replace(group.device, memory_bytes=group.device.memory_bytes * factor))
            for group in job.cluster.groups
        )
        return replace(job.cluster, groups=groups)
    makes: dict[str, Callable[[float], ClusterSpec]] = {one.name: one.make for one in numbers_of(job)}
    if name not in makes:
        what, fix = f"no number is called {name[:60]!r}", f"one of {', '.join((*makes, MEMORY))}"
        raise InputError(what=what, why="the cluster says what has one", fix=fix, field=name, code="MW206")
    return makes[name](factor)
