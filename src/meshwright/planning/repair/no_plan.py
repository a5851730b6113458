"""Nothing fits: the constraint that binds, and the cheapest changes, each one priced."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.errors import InfeasibleError, Problem
from meshwright.fields.limits import nothing_in_time
from meshwright.planning.one_kind import BestPlans, SpaceFor
from meshwright.planning.repair.as_run import as_run, launched
from meshwright.planning.repair.job_repair import JobRepair, Pins
from meshwright.planning.repair.leanest import Leanest, leanest
from meshwright.planning.repair.of_job import repairs_of_job
from meshwright.planning.repair.of_tuning import Otherwise
from meshwright.search.axes import DEGREE_OF, only_in_groups
from meshwright.search.space import Space, only_in_pipelines
from meshwright.search.watching import watched
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.units import GIGA, gib, of_capacity, significant

DEGREES = (
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "dp",
    "vpp",
    "sharding",
    "schedule",
    "tensor",
    "cp_kind",
    "sp",
    "tpov",
    "nodpov",
)
"""Axes of which one device leaves a single value."""
_NEXT = "\n       or "
"""Separator of repairs, each on a line of its own in the terminal."""


class NoPlanError(InfeasibleError):
    """No plan fits; the repairs come with it as data too."""

    default_code = "MW300"

    def __init__(
        self, problems: tuple[Problem, ...], repairs: tuple[JobRepair, ...], *, code: str | None = None
    ) -> None:
        self.repairs = repairs
        super().__init__(problems, code=code)

    def to_dict(self) -> dict[str, object]:
        """The same as data, for `--json`."""
        document = super().to_dict()
        problems = [{**problem, "fix": problem["fix"].replace(_NEXT, "; or ")} for problem in self._records()]
        repairs = [one.to_dict() for one in self.repairs]
        # Version 1 called them mends first, and keeps its keys.
        return {**document, "problems": problems, "feasible": False, "repairs": repairs, "mends": repairs}

    def _records(self) -> list[dict[str, str]]:
        return [{"field": p.field, "what": p.what, "why": p.why, "fix": p.fix} for p in self.problems]


def no_plan(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: SpaceFor,
    found: BestPlans,
    freed: Mapping[Pins, SpaceFor],
    *,
    by_tokens: bool = False,
    software_given: bool = True,
    otherwise: Otherwise | None = None,
) -> NoPlanError:
    """The error that says which constraint binds and what would make it fit.

    Args:
        model: the model.
        cluster: what the user has.
        workload: the step.
        space_for: the search space for a number of devices.
        found: the search that found nothing.
        freed: the space without some of the pins, by these.
        by_tokens: the batch was given in tokens, beside which no repair may state sequences.
        software_given: the framework was stated, and stays whatever is trained.
        otherwise: what other trainings start from, which another trainer may run; this question by default.

    Returns:
        The error, to be raised.
    """
    space = space_for(cluster)
    certificate = found.result.certificate
    if certificate.stopped:
        return NoPlanError(nothing_in_time(certificate.stopped, f"a plan of {model.name}").problems, (), code="MW320")
    if not certificate.space:
        return NoPlanError((_nothing_legal(model, cluster, workload, space),), (), code="MW301")
    tried = leanest(model, cluster, workload, space)
    lean = tried[0] if tried else None
    with watched(None):
        found_repairs = repairs_of_job(
            model,
            cluster,
            workload,
            space_for,
            freed,
            tried,
            software_given=software_given,
            otherwise=otherwise,
        )
        # A framework that is stated may have what those that are known here lack; parts are frozen in a script.
        run = found_repairs if software_given else map(as_run, found_repairs)
        scripted = software_given or (model.tuning is not None and model.tuning.frozen)
        trained = tuple(run) if scripted else launched(run)
        repairs = tuple(one.beside(by_tokens) for one in trained)
    problem = Problem(
        what=_what(model, cluster, certificate.space, lean, pinned=bool(freed)),
        why=_why(lean) if lean else "",
        fix=fix_of(repairs),
        field="memory",
    )
    return NoPlanError((problem,), repairs)


def freed_pins(pins: Pins, cluster: ClusterSpec) -> tuple[Pins, ...]:
    """Each pin that may be freed, and all of them together where there are several.

    What stays on the device has an option of its own: nobody pinned an axis of the plan by it. And one device leaves no
    degree to choose.

    Args:
        pins: what the user pinned or forbade.
        cluster: the devices.
    """
    held = {"offload", *(DEGREES if cluster.devices == 1 else ())}
    free = tuple(pin for pin in pins if pin[0] not in held)
    return (*((pin,) for pin in free), *((free,) if len(free) > 1 else ()))


def _what(model: ModelSpec, cluster: ClusterSpec, space: int, lean: Leanest | None, *, pinned: bool) -> str:
    group = cluster.groups[0]
    left = " that the pins leave" if pinned else ""
    start = f"none of the {space:,} plans{left} of {model.name} fits {cluster.devices} x {group.device.name}"
    if lean is None:
        return start
    full = lean.estimate.fullest
    if lean.over_bytes <= 0 and not full.fits_host:
        return f"{start}: the plan of least memory ({lean.row.format()}) needs {_host_text(lean, group)}"
    peak = of_capacity(full.peak_memory_bytes, full.capacity_bytes)
    return f"{start}: the plan of least memory ({lean.row.format()}) needs {peak}"


def _host_text(lean: Leanest, group: NodeGroup) -> str:
    """What hosts need and have: `145 GB of the 118 GB of host memory that a job may take`."""
    full = max(lean.estimate.stages, key=lambda stage: stage.host_bytes / (stage.host_capacity_bytes or math.inf))
    if full.host_capacity_bytes is None or full.host_bytes <= full.host_capacity_bytes:
        needs, has, where = full.disk_bytes, full.disk_capacity_bytes or 0.0, "on disks"
    else:
        needs, has, where = full.host_bytes, full.host_capacity_bytes, "of host memory that a job may take"
    each = group.devices_per_node / GIGA
    return f"{significant(needs * each)} of the {significant(has * each)} GB {where}"


def _why(lean: Leanest) -> str:
    full = lean.estimate.fullest
    kinds = sorted(full.memory_bytes, key=lambda kind: -kind[1])
    shown = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in kinds[:4] if size > 0)
    over = f"; {gib(lean.over_bytes)} too much" if lean.over_bytes > 0 else ""
    return f"stage {full.stage} at its peak ({full.peak_moment}): {shown}{over}"


def fix_of(repairs: tuple[JobRepair, ...], *, pinned: bool = False) -> str:
    """Repairs as people read them, one a line.

    Args:
        repairs: the repairs of the job.
        pinned: whether axes of plans were pinned, which nobody freed yet.
    """
    lines = ["free a pin"] if pinned else []
    lines += [one.line() for one in repairs]
    return _NEXT.join(lines) or "no change that was tried makes it fit"


def _nothing_legal(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space: Space) -> Problem:
    pins = ", ".join(f"{axis} {', '.join(map(str, values))}" for axis, values in space.pins)
    pinned = f" with {pins}" if pins and len(pins) < 200 else ""
    schedules = ", ".join(map(str, dict(space.pins).get("schedule", ())))
    also = f"; p, m and v must suit {schedules} (`meshwright schedule list`)" if schedules else ""
    for degree in dict.fromkeys(DEGREE_OF.values()):
        if only_in_groups(space, degree):
            named = ", ".join(axis for axis, of in DEGREE_OF.items() if of == degree and space.pinned(axis))
            also += f"; {named} as pinned asks for {degree} of 2 or more"
    if "1" not in map(str, space.pinned("prefetch") or ("1",)):
        also += "; prefetch as pinned asks for weights gathered layer by layer: z3, fsdp or hsdp on 2 devices or more"
    if only_in_pipelines(space):
        also += f"; {schedules} as named asks for pp of 2 or more"
    every = "the one device" if cluster.devices == 1 else f"all {cluster.devices} devices"
    if only_in_pipelines(space) and cluster.devices == 1:
        fix = "use 2 devices or more, or a schedule whose steps are exact, such as 1f1b"
    else:
        fix = ("free a pin, or " if space.pins else "") + (
            "use a batch or a number of devices with more common factors"
        )
    return Problem(
        what=f"no legal plan of {model.name} uses {every}{pinned}",
        why=(
            f"tp must divide the heads, dp the batch of {workload.global_batch:,}, pp x vpp stay within "
            f"{model.num_layers} layers, and tp x cp x pp x dp be {cluster.devices}{also}"
        ),
        fix=fix,
        field="plan",
    )
