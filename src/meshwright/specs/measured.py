"""A plan whose layers were measured: what its file keeps of the profiles, in place of a model.

Seconds and sizes of every layer where the plan runs it (device and tensor degree, at all profiled micro-batches), the
sizes of the unsplit layers, and the links between its devices: enough to price the plan, and plans near it, without the
folder of profiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import ExecutionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """Seconds of every layer on one device at one tensor degree and micro-batch."""

    device: str
    tp: int
    micro_batch: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    basis: Literal["measured", "interpolated"] = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSizes:
    """Elements of every layer at one tensor degree, per device; activations of one sequence."""

    tp: int
    parameters: tuple[float, ...]
    input_elements: tuple[float, ...]
    output_elements: tuple[float, ...]
    saved_elements: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEnd:
    """One side of a link."""

    device: str
    per_node: int
    """Devices of the node that share its interface."""
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """GB/s = c2 x^2 + c1 x + c0 with x = log2(bytes / 1e6), from one node to another."""

    source: MeasuredEnd
    target: MeasuredEnd
    c2: float
    c1: float
    c0: float
    max_gb_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKind:
    """A group of the cluster as the profiles know it."""

    group: str
    device: str
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """What a plan uses of a folder of profiles; the first layer is the embedding, the last the head."""

    name: str
    source: str
    """The folder."""
    fingerprint: str
    """`sha256:` and the digest of the numbers below."""
    kinds: tuple[MeasuredKind, ...]
    points: tuple[MeasuredPoint, ...]
    sizes: tuple[MeasuredSizes, ...]
    links: tuple[MeasuredLink, ...]

    def __post_init__(self) -> None:
        check = Check(f"profile {self.name}")
        layers = self.profiled_layers
        check.that(layers >= 3, "layers", layers, "must be at least 3: the embedding, a layer and the head")
        for i, point in enumerate(self.points):
            for name in ("forward_s", "backward_s", "update_s"):
                _check_layers(check, f"points[{i}].{name}", getattr(point, name), layers)
            check.whole(f"points[{i}].tp", point.tp)
            check.whole(f"points[{i}].micro_batch", point.micro_batch)
        for i, sizes in enumerate(self.sizes):
            for name in ("parameters", "input_elements", "output_elements", "saved_elements"):
                _check_layers(check, f"sizes[{i}].{name}", getattr(sizes, name), layers)
        degrees = {sizes.tp for sizes in self.sizes}
        wanted = {1, *(point.tp for point in self.points)}
        missing = sorted(wanted - degrees)
        check.that(not missing, "sizes", sorted(degrees), f"must hold the layers at tp {', '.join(map(str, missing))}")
        for i, link in enumerate(self.links):
            check.positive(f"links[{i}].max_gb_s", link.max_gb_s)
        check.done()

    @property
    def profiled_layers(self) -> int:
        """Embedding and head counted."""
        return len(self.points[0].forward_s) if self.points else 0

    @property
    def num_layers(self) -> int:
        """Layers without embedding and head, as plans count them."""
        return self.profiled_layers - 2

    def describe(self) -> dict[str, object]:
        """The `model` entry of an answer."""
        return {"name": self.name, "layers": self.num_layers, "source": "measured profile"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWorkload:
    """One step of a measured model: what profiles leave to say."""

    global_batch: int
    """Sequences of the profiled length."""

    def describe(self) -> dict[str, object]:
        """The `workload` entry of an answer."""
        return {"global_batch": self.global_batch, "dtype": "fp32", "sequence": "as profiled"}


def _check_layers(check: Check, name: str, values: tuple[float, ...], layers: int) -> None:
    if check.that(len(values) == layers, name, len(values), f"must hold {layers} layers, as the first point does"):
        worst = min(values)
        check.that(worst >= 0, name, worst, "cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """One step of a measured model on a cluster, executed as planned."""

    profile: MeasuredModel
    cluster: ClusterSpec
    global_batch: int
    """Sequences of the profiled length."""
    plan: ExecutionPlan
    name: None = None
    """Such a plan has no one-line form."""

    def __post_init__(self) -> None:
        check = Check("job")
        check.whole("global_batch", self.global_batch)
        profile, plan = self.profile, self.plan
        check.that(
            plan.num_layers == profile.num_layers,
            "plan.num_layers",
            plan.num_layers,
            f"must be the {profile.num_layers} layers of the profile of {profile.name}, embedding and head not counted",
            "plan again with the profiles of this model",
        )
        last = max(last for p in plan.pipelines for worker in p.workers for _, last in worker.devices)
        check.that(
            last < self.cluster.devices,
            "plan.devices",
            last,
            f"device numbers must be below the {self.cluster.devices} devices of {self.cluster.name}",
        )
        names = [group.name for group in self.cluster.groups]
        kinds = [kind.group for kind in profile.kinds]
        check.that(kinds == names, "profile.kinds", kinds, f"must be the groups of the cluster: {', '.join(names)}")
        check.that(
            plan.global_batch >= self.global_batch,
            "plan.global_batch",
            plan.global_batch,
            f"must train the {self.global_batch} sequences of a step",
        )
        check.done()
        self._check_points(check)
        check.done()

    def _check_points(self, check: Check) -> None:
        """Every stage runs where its layers were measured."""
        known = {(point.device, point.tp) for point in self.profile.points}
        device = {kind.group: kind.device for kind in self.profile.kinds}
        for number, pipeline in enumerate(self.plan.pipelines):
            for place, worker in enumerate(pipeline.workers):
                tp = self.plan.strategies[self.plan.strategy_index(pipeline, worker)].tp
                here = (device[self.group_of(worker.devices[0][0])], tp)
                check.that(
                    here in known,
                    f"pipelines[{number}].workers[{place}]",
                    f"{here[0]} at tp {tp}",
                    f"was not measured; the plan keeps {', '.join(f'{d} at tp {t}' for d, t in sorted(known))}",
                    "plan again with --profiles",
                )

    def group_of(self, device: int) -> str:
        """The group that holds a device."""
        ends = accumulate(group.devices for group in self.cluster.groups)
        return next(group.name for group, end in zip(self.cluster.groups, ends, strict=True) if device < end)
