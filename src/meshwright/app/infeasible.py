"""Nothing fits: the constraint that binds, and the cheapest mends, each one priced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.app.finding import Found, SpaceFor, is_round, resized
from meshwright.app.verdict import FITS_WORDS, memory
from meshwright.errors import InfeasibleError, MeshwrightError, Problem
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.legality import row_problems
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.formats.cluster import node_group
from meshwright.library.devices import devices as library_devices
from meshwright.schedules import Schedule
from meshwright.search.block import Sharding, shardings_for
from meshwright.search.bound import row_bounds
from meshwright.search.geometry import ShapeFactory
from meshwright.search.grid import Grid, build_grid
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.shapes import Int
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec
from meshwright.specs.device import DeviceSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import OPTIMIZER_MOMENTS, Workload
from meshwright.units import GIB, gib, seconds

LEANEST_ROWS = 48
"""Rows of the lowest memory bounds that are priced to find the plan that needs the least."""
MOST_DEVICES = 65_536
LARGER_DEVICES = 5
SHORTEST_SEQ = 512
OFFLOADS = ("o", "ao", "wao")
_NEXT = "\n       or "
"""Between mends, each on a line of its own in the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """A change that makes the job fit, with what it would then cost."""

    option: str
    """What to say: `--gpus 32xH100`."""
    text: str
    plan: str
    devices: int
    step_time_s: float
    peak_memory_bytes: float
    capacity_bytes: float
    changes_training: bool = False
    """Whether the optimizer sees other steps than were asked for."""

    def line(self) -> str:
        """One line for people."""
        changed = "; trains differently" if self.changes_training else ""
        peak = memory(self.peak_memory_bytes, self.capacity_bytes)
        return f"{self.option}: {self.text}, {seconds(self.step_time_s)} per step, {peak} ({self.plan}){changed}"

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "option": self.option,
            "text": self.text,
            "plan": self.plan,
            "devices": self.devices,
            "step_time_s": self.step_time_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "capacity_bytes": self.capacity_bytes,
            "changes_training": self.changes_training,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Leanest:
    """The plan that needs the least memory."""

    row: PlanRow
    estimate: StepEstimate

    @property
    def over_bytes(self) -> float:
        """Missing on the fullest stage; negative if it fits."""
        return self.estimate.fullest.peak_memory_bytes - self.estimate.fullest.capacity_bytes

    @property
    def length_bytes(self) -> float:
        """What shorter sequences could save at most on the fullest stage."""
        kinds = dict(self.estimate.fullest.memory_bytes)
        return kinds["activations"] + kinds["transient"]


class NoPlanError(InfeasibleError):
    """No plan fits; the mends come with it as data too."""

    default_code = "MW300"

    def __init__(self, problems: tuple[Problem, ...], mends: tuple[Mend, ...], *, code: str | None = None) -> None:
        self.mends = mends
        super().__init__(problems, code=code)

    def to_dict(self) -> dict[str, object]:
        """The same as data, for `--json`."""
        document = super().to_dict()
        problems = [{**problem, "fix": problem["fix"].replace(_NEXT, "; or ")} for problem in self._records()]
        return {**document, "problems": problems, "feasible": False, "mends": [mend.to_dict() for mend in self.mends]}

    def _records(self) -> list[dict[str, str]]:
        return [{"field": p.field, "what": p.what, "why": p.why, "fix": p.fix} for p in self.problems]


def no_plan(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor, found: Found
) -> NoPlanError:
    """The error that says which constraint binds and what would mend it.

    Args:
        model: the model.
        cluster: what the user has.
        workload: the step.
        space_for: the search space for a number of devices.
        found: the search that found nothing.

    Returns:
        The error, to be raised.
    """
    space = space_for(cluster)
    certificate = found.result.certificate
    if not certificate.space:
        return NoPlanError((_nothing_legal(model, cluster, workload, space),), (), code="MW301")
    tried = leanest(model, cluster, workload, space)
    lean = tried[0] if tried else None
    mends = tuple(_mends(model, cluster, workload, space_for, tried))
    problem = Problem(
        what=_what(model, cluster, certificate.space, lean, pinned=bool(space.pins)),
        why=_why(lean) if lean else "",
        fix=_fix(mends, pinned=bool(space.pins)),
        field="memory",
    )
    return NoPlanError((problem,), mends)


def leanest(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space: Space) -> list[Leanest]:
    """The plans of a space with the lowest memory bounds, the one that needs the least memory first.

    Args:
        model: the model.
        cluster: decides the degrees.
        workload: the step.
        space: pinned axes hold here too.
    """
    grid = build_grid(model, workload, cluster.devices, space)
    grid = grid.take(grid.mbs == grid.mbs.min()) if grid.rows else grid
    if not grid.rows:
        return []
    bounds = row_bounds(grid, model, hardware_of(cluster.groups[0], workload.precision, workload.software), workload)
    factory = ShapeFactory.of(model, workload.seq_len, space)
    found: list[Leanest] = []
    order = np.lexsort((grid.overlap, -grid.cp, bounds.peak_bytes))
    names = space.pinned("schedule")
    by_count = names is not None and not {"1f1b", "interleaved"} & set(names)
    for index in _one_a_shape(grid, order, by_count=by_count)[:LEANEST_ROWS]:
        levels = (("a2a", grid.cp_a2a[index]), ("p2p", grid.cp_p2p[index]), ("ag", grid.cp_ag[index]))
        plain = PlanRow(
            tp=int(grid.tp[index]),
            tp_overlap="ring" if grid.overlap[index] else "bulk",
            cp=tuple((kind, int(degree)) for kind, degree in levels if degree > 1),
            pp=int(grid.pp[index]),
            ep=int(grid.ep[index]),
            etp=int(grid.etp[index]),
            dp=int(grid.dp[index]),
            mbs=int(grid.mbs[index]),
            gbs=workload.global_batch,
        )
        for row in _lean_settings(plain, space, factory):
            priced = _price(row, model, cluster, workload)
            if priced:
                found.append(priced)
    return sorted(found, key=lambda lean: lean.over_bytes)


def _one_a_shape(grid: Grid, order: Int[np.ndarray, "rows"], *, by_count: bool) -> list[int]:
    """The first row of each (tp, pp): within one, context and expert degrees change little.

    `by_count` keeps one of each number of micro-batches too, for schedules that keep them all alive.
    """
    first: dict[tuple[int, int, int], int] = {}
    for index in order:
        first.setdefault((int(grid.tp[index]), int(grid.pp[index]), int(grid.m[index]) if by_count else 0), int(index))
    return list(first.values())


def _lean_settings(row: PlanRow, space: Space, factory: ShapeFactory) -> Iterator[PlanRow]:
    """The settings of the space that may need the least memory."""
    for schedule, chunks in _lean_pipelines(factory.pipelines(row.pp, row.micro_batches)):
        for recompute, layers in _lean_recomputes(factory.recomputes(row.pp, chunks)):
            for sharding in _lean_shardings(shardings_for(row.dp, row.cp_degree, space)):
                yield replace(
                    row,
                    schedule=schedule.name,
                    vpp=chunks,
                    recompute=recompute,
                    recompute_layers=layers,
                    sharding=sharding.name,
                    shard_group=sharding.shard * row.cp_degree if sharding.name == "hsdp" else 0,
                )


def _lean_pipelines(found: list[tuple[Schedule, int]]) -> list[tuple[Schedule, int]]:
    """1F1B, which of all keeps the least alive; else the fewest and the most chunks of each schedule."""
    if any(schedule.name == "1f1b" for schedule, _ in found):
        return [pair for pair in found if pair[0].name == "1f1b"]
    chunks: dict[str, list[tuple[Schedule, int]]] = {}
    for schedule, count in sorted(found, key=lambda pair: pair[1]):
        chunks.setdefault(schedule.name, []).append((schedule, count))
    return [pair for pairs in chunks.values() for pair in dict.fromkeys((pairs[0], pairs[-1]))]


def _lean_recomputes(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """All recomputed, else whatever there is."""
    return [option for option in found if option[0] == "full"] or found[-2:]


def _lean_shardings(found: list[Sharding]) -> list[Sharding]:
    """Everything sharded over all ranks, else whatever there is with the largest groups."""
    whole = [sharding for sharding in found if sharding.name in ("fsdp", "z3")]
    return whole or [*(sharding for sharding in found if sharding.name != "hsdp"), *found[-1:]]


def _price(row: PlanRow, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> Leanest | None:
    if row_problems(row, model, workload.seq_len, cluster.devices):
        return None
    plan = expand(row, model, workload.seq_len)
    return Leanest(row=row, estimate=estimate_plan(plan, model, cluster, workload))


def _what(model: ModelSpec, cluster: ClusterSpec, space: int, lean: Leanest | None, *, pinned: bool) -> str:
    group = cluster.groups[0]
    left = " that the pins leave" if pinned else ""
    start = f"none of the {space:,} plans{left} of {model.name} fits {cluster.devices} x {group.device.name}"
    if lean is None:
        return start
    full = lean.estimate.fullest
    return (
        f"{start}: the leanest tried ({lean.row.format()}) needs {memory(full.peak_memory_bytes, full.capacity_bytes)}"
    )


def _why(lean: Leanest) -> str:
    full = lean.estimate.fullest
    kinds = sorted(full.memory_bytes, key=lambda kind: -kind[1])
    shown = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in kinds[:4] if size > 0)
    over = f"; {gib(lean.over_bytes)} too much" if lean.over_bytes > 0 else ""
    return f"stage {full.stage} at its peak ({full.peak_moment}): {shown}{over}"


def _fix(mends: tuple[Mend, ...], *, pinned: bool) -> str:
    lines = ["free a pin"] if pinned else []
    lines += [mend.line() for mend in mends]
    return _NEXT.join(lines) or "no change that was tried makes it fit"


def _nothing_legal(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space: Space) -> Problem:
    held = ", ".join(f"{axis} {', '.join(map(str, values))}" for axis, values in space.pins)
    pinned = f" with {held}" if held and len(held) < 200 else ""
    schedules = ", ".join(map(str, dict(space.pins).get("schedule", ())))
    also = f"; p, m and v must suit {schedules} (`meshwright schedule list`)" if schedules else ""
    return Problem(
        what=f"no legal plan of {model.name} uses all {cluster.devices} devices{pinned}",
        why=(
            f"tp must divide the heads, dp the batch of {workload.global_batch:,}, pp x vpp stay within "
            f"{model.num_layers} layers, and tp x cp x pp x dp be {cluster.devices}{also}"
        ),
        fix=("free a pin, or " if space.pins else "") + "use a batch or a number of devices with more common factors",
        field="plan",
    )


def _mends(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor, tried: list[Leanest]
) -> Iterator[Mend]:
    """Changes that make it fit: same devices first, then more or larger ones, then other training."""
    lean = tried[0] if tried else None
    yield from _offloaded(tried, model, cluster, workload)
    yield from _more_devices(model, cluster, workload, space_for)
    yield from _larger_memory(model, cluster, workload, space_for, lean)
    yield from _other_optimizer(model, cluster, workload, space_for)
    if lean is None or lean.length_bytes > lean.over_bytes:
        yield from _shorter(model, cluster, workload, space_for)


def _offloaded(tried: list[Leanest], model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> Iterator[Mend]:
    """The quickest of the lean plans that fits with as little as possible in host memory."""
    words = {"o": "optimizer states", "a": "activations", "w": "weights"}
    for letters in OFFLOADS:
        priced = [_price(replace(lean.row, offload=letters), model, cluster, workload) for lean in tried]
        fitting = [lean for lean in priced if lean and lean.estimate.fits != "no"]
        if not fitting:
            continue
        best = min(fitting, key=lambda lean: (lean.estimate.fits != "yes", lean.estimate.step_time_s))
        kept = ", ".join(words[letter] for letter in letters[::-1])
        yield _mend(f"off-{letters}", f"keep {kept} in host memory", best.row.format(), best.estimate, cluster)
        return


def _searched(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor
) -> tuple[str, StepEstimate] | None:
    """The best 1F1B plan of another cluster or workload, None if nothing fits there either.

    No schedule keeps less alive at the same speed, so what fits at all fits with 1F1B; chunks may make it quicker.
    """
    try:
        result = search(model, cluster, workload, _quick(space_for(cluster)), top=1, refine=False)
    except MeshwrightError:
        # A pin or a number format that this cluster or step does not allow: no mend.
        return None
    if not result.plans:
        return None
    found = result.plans[0]
    return found.row.format() if found.row else "", found.estimate


def _quick(space: Space) -> Space:
    """The space without interleaving, unless schedules or chunks are pinned."""
    if space.pinned("schedule") is not None or space.pinned("vpp") is not None:
        return space
    return replace(space, pins=(*space.pins, ("schedule", ("1f1b",))))


def _mend(
    option: str, text: str, plan: str, estimate: StepEstimate, cluster: ClusterSpec, *, changes_training: bool = False
) -> Mend:
    full = estimate.fullest
    fits = "" if estimate.fits == "yes" else f", {FITS_WORDS[estimate.fits]}"
    return Mend(
        option=option,
        text=text + fits,
        plan=plan,
        devices=cluster.devices,
        step_time_s=estimate.step_time_s,
        peak_memory_bytes=full.peak_memory_bytes,
        capacity_bytes=full.capacity_bytes,
        changes_training=changes_training,
    )


def _more_devices(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Iterator[Mend]:
    """The smallest cluster of the same nodes (of a round count) that fits: doubled until it does, then halved back."""
    group = cluster.groups[0]
    usual = group.device.node.devices_per_node if group.device.node else group.devices_per_node

    def sized(devices: int) -> ClusterSpec:
        per_node = min(devices, max(group.devices_per_node, usual))
        nodes = -(-devices // per_node)
        spec = node_group(name=group.name, device=group.device, nodes=nodes, devices_per_node=per_node)
        if group.devices_per_node == per_node and len(group.domains) == len(spec.domains):
            return resized(cluster, nodes=nodes, per_node=per_node)
        return ClusterSpec(name=f"{nodes * per_node}x{group.device.name}", groups=(spec,))

    def fits(devices: int) -> tuple[str, StepEstimate] | None:
        return _searched(model, sized(devices), workload, space_for)

    def whole(devices: int) -> int:
        """Devices that the nodes of such a cluster really have."""
        return sized(devices).devices

    low, high = cluster.devices, whole(cluster.devices * 2)
    best = None
    while high <= min(MOST_DEVICES, MAX_DEVICES, cluster.devices * 256):
        best = fits(high)
        if best:
            break
        low, high = high, whole(high * 2)
    if best is None:
        return
    between = [count for count in range(low + 1, high) if whole(count) == count and is_round(count)]
    while between:
        middle = between[len(between) // 2]
        tried = fits(middle)
        if tried:
            best, high = tried, middle
        between = [count for count in between if (count < middle if tried else count > middle)]
    where = sized(high)
    plan, estimate = best
    yield _mend(f"--gpus {where.name}", f"{where.devices:,} devices", plan, estimate, where)


def _larger_memory(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor, lean: Leanest | None
) -> Iterator[Mend]:
    """The same number of devices of the kind with the least memory that is enough."""
    group = cluster.groups[0]
    needed = max(1.05 * group.device.memory_bytes, 0.97 * lean.estimate.fullest.peak_memory_bytes if lean else 0.0)
    larger = [
        device
        for device in library_devices()
        if device.memory_bytes > needed and device.vendor == group.device.vendor and device.node
    ]
    tried = 0

    def order(device: DeviceSpec) -> tuple[int, bool, str]:
        unlike = device.node is None or device.node.devices_per_node != group.devices_per_node
        return round(device.memory_bytes / GIB), unlike, device.name

    for device in sorted(larger, key=order):
        usual = device.node.devices_per_node if device.node else 1
        per_node = min(cluster.devices, usual)
        if cluster.devices % per_node or tried == LARGER_DEVICES:
            continue
        nodes = cluster.devices // per_node
        spec = node_group(name=device.name, device=device, nodes=nodes, devices_per_node=per_node)
        where = ClusterSpec(name=f"{cluster.devices}x{device.name}", groups=(spec,))
        tried += 1
        found = _searched(model, where, workload, space_for)
        if found:
            yield _mend(f"--gpus {where.name}", f"{gib(device.memory_bytes)} each", *found, where)
            return


def _other_optimizer(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Iterator[Mend]:
    """An optimizer that keeps one state per parameter instead of two."""
    moments = OPTIMIZER_MOMENTS[workload.optimizer]
    for name in ("muon", "lion"):
        if OPTIMIZER_MOMENTS[name] < moments:
            found = _searched(model, cluster, replace(workload, optimizer=name), space_for)
            if found:
                text = f"{OPTIMIZER_MOMENTS[name]:.0f} state per parameter instead of {moments:.0f}"
                yield _mend(f"--optimizer {name}", text, *found, cluster, changes_training=True)
            return


def _shorter(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Iterator[Mend]:
    """Shorter sequences, as many tokens a step."""
    seq, batch = workload.seq_len, workload.global_batch
    while seq % 2 == 0 and seq // 2 >= SHORTEST_SEQ:
        seq, batch = seq // 2, batch * 2
        found = _searched(model, cluster, replace(workload, seq_len=seq, global_batch=batch), space_for)
        if found:
            option = f"--seq {seq} --gbs {batch}"
            yield _mend(option, "shorter sequences, as many tokens a step", *found, cluster, changes_training=True)
            return
