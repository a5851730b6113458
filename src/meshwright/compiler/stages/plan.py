"""What planning a step decided, as data: stages, devices, logical meshes, micro-batches, recomputation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from meshwright.compiler.saved_plans import plan_text, require_entries, saved_plan
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands, islands_of
from meshwright.formats.writing import write_file
from meshwright.specs.cluster import LinkSpec

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage and what it takes on one of its devices."""

    layers: tuple[int, int]
    """First and last, both included."""
    first_device: int
    mesh_shape: tuple[int, ...]
    """Logical mesh of its devices, in row-major order."""
    forward_s: float
    """Forward time of one micro-batch."""
    backward_s: float
    """Backward time of one micro-batch, with recomputation and its share of the gradient reduction."""
    sending_s: float
    """Seconds until its outputs have left for the next stage."""
    state_bytes: float
    kept_bytes: float
    """Bytes kept for each micro-batch in flight."""
    transient_bytes: float
    in_flight: int
    choice: tuple[int, ...] | None = None
    """Sharding of each of its operands and operators; None before it was compiled."""

    @property
    def devices(self) -> int:
        """Number of devices of the stage."""
        count = 1
        for size in self.mesh_shape:
            count *= size
        return count

    @property
    def peak_bytes(self) -> float:
        """Peak memory of one device."""
        return self.state_bytes + self.in_flight * self.kept_bytes + self.transient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesPlan:
    """A step on a cluster."""

    loss: str
    """Fingerprint of the loss that was planned."""
    layer_ends: tuple[int, ...]
    """Position behind the last equation of each layer."""
    micro_batches: int
    recompute: bool
    """Whether every layer runs its forward again before its backward."""
    schedule: str
    step_s: float
    """Time of a step in the event simulator, without the optimizer's update."""
    hosts: Hosts | Islands
    """Hosts that the plan was made for."""
    split_state: bool
    """Whether optimizer state is split over all devices of a stage."""
    stages: tuple[StagePlan, ...]

    def stage_ends(self) -> tuple[int, ...]:
        """Position behind the last equation of each stage."""
        return tuple(self.layer_ends[stage.layers[1]] for stage in self.stages)

    def group_of(self, stage: StagePlan) -> Hosts:
        """Hosts of a stage.

        Args:
            stage: the stage of this plan.
        """
        islands = islands_of(self.hosts)
        return islands.groups[islands.group_of(stage.first_device)]

    def to_json(self) -> str:
        """The plan as text that `from_json` reads."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> StagesPlan:
        """Read a plan.

        Args:
            text: the text as `to_json` writes it.

        Raises:
            InputError: it is no such plan.
        """
        held = saved_plan(text, "version", VERSION)
        stage_entries = [own.name for own in fields(StagePlan)]
        there = {f"stages: {name}" for name in stage_entries if all(name in row for row in held.get("stages", []))}
        wanted = [*(own.name for own in fields(cls)), *(f"stages: {name}" for name in stage_entries)]
        require_entries({*held, *there}, wanted)
        stages = tuple(_stage(row) for row in held["stages"])
        return cls(
            loss=held["loss"],
            layer_ends=tuple(held["layer_ends"]),
            micro_batches=held["micro_batches"],
            recompute=held["recompute"],
            schedule=held["schedule"],
            step_s=held["step_s"],
            hosts=_hosts(held["hosts"]),
            split_state=held["split_state"],
            stages=stages,
        )

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Args:
            path: the path of the file.
        """
        write_file(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> StagesPlan:
        """Read a plan from a file.

        Args:
            path: the path of the file.

        Raises:
            InputError: there is no such file, or it holds no plan.
        """
        return cls.from_json(plan_text(path))

    def __str__(self) -> str:
        """A line about the step and one for each stage."""
        lines = [
            f"{self.step_s:.4g} s a step: {_counted(len(self.stages), 'stage')},"
            f" {_counted(self.micro_batches, 'micro-batch')}, {self.schedule}"
            + (", layers recomputed" if self.recompute else "")
        ]
        for number, stage in enumerate(self.stages):
            low, high = stage.first_device, stage.first_device + stage.devices - 1
            lines.append(
                f"  stage {number}: layers {stage.layers[0]}-{stage.layers[1]}, devices {low}-{high} as"
                f" {'x'.join(map(str, stage.mesh_shape))}, forward {stage.forward_s:.3g} s,"
                f" backward {stage.backward_s:.3g} s, {stage.peak_bytes:.3g} bytes a device"
            )
        return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('h') else 's'}"


def _hosts(held: Mapping[str, Any]) -> Hosts | Islands:
    if "groups" not in held:
        return Hosts(**held)
    links = tuple(LinkSpec(**{**link, "between": tuple(link["between"])}) for link in held["links"])
    return Islands(groups=tuple(Hosts(**group) for group in held["groups"]), links=links)


def _stage(row: Mapping[str, Any]) -> StagePlan:
    values = {own.name: row[own.name] for own in fields(StagePlan)}
    values.update({name: tuple(row[name]) for name in ("layers", "mesh_shape")})
    values["choice"] = None if row["choice"] is None else tuple(row["choice"])
    return StagePlan(**values)
