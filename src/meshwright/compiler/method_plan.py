"""What compiling a step under a method decided, as data: saved, read, and run again decision by decision."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from jax.extend import core

from meshwright.compiler.inline import programs_of
from meshwright.compiler.saved_plans import plan_text, require_entries, saved_plan, unreadable
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.formats.writing import write_file

SCHEMA = "meshwright.method_plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodPlan:
    """A method with what it left open: where the loss is cut, on how many devices, how every operator is split."""

    method: str
    """Name of the method, such as `PipeshardParallel`."""
    settings: Mapping[str, Any]
    """What it was given, devices and hosts left out."""
    step: str
    """Fingerprint of the loss on one micro-batch, or of a step that runs whole."""
    whole: bool = False
    """Whether the step runs whole, without micro-batches."""
    mesh_sizes: tuple[int, ...]
    """Devices of each mesh."""
    first_devices: tuple[int, ...]
    """The first of each mesh among those of the method; the others follow it."""
    stage_ends: tuple[int, ...] = ()
    """Position behind the last equation of each stage; empty where nothing is cut."""
    mesh_shape: tuple[int, ...] = ()
    """Logical mesh of a split operator by operator."""
    choice: tuple[int, ...] = ()
    """Sharding of each of its operands and operators."""
    parts: tuple[int, ...] | None = None
    """Parts into which devices share each operator that chooses for itself, 1: each does all of it; None in plans that
    were saved without."""
    rank_axes: int = 0
    """Axes of the logical mesh, from the first, whose data ranks share nothing but sums of gradients."""
    hosts: Hosts | None = None
    """What it was priced for."""

    @property
    def devices(self) -> int:
        """All that it needs."""
        return max(first + size for first, size in zip(self.first_devices, self.mesh_sizes, strict=True))

    def to_json(self) -> str:
        """The plan as text that `from_json` reads."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> MethodPlan:
        """Read a plan.

        Args:
            text: the text as `to_json` writes it, alone or beside the lists of a compiled step.

        Raises:
            InputError: it is no such plan.
        """
        held = saved_plan(text, "schema", SCHEMA)
        held = {"rank_axes": 0, "parts": None, **held}
        require_entries(held, [own.name for own in fields(cls)])
        values = {own.name: held[own.name] for own in fields(cls)}
        many = ("mesh_sizes", "first_devices", "stage_ends", "mesh_shape", "choice")
        try:
            values |= {name: tuple(int(one) for one in values[name]) for name in many}
            values["rank_axes"] = int(values["rank_axes"])
            values["parts"] = None if values["parts"] is None else tuple(int(one) for one in values["parts"])
            values["hosts"] = None if values["hosts"] is None else Hosts(**values["hosts"])
        except (TypeError, ValueError) as wrong:
            raise unreadable(f"the plan cannot be read: {wrong}", "it was changed by hand") from wrong
        return cls(**values)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Args:
            path: the path of the file.
        """
        write_file(path, self.to_json() + "\n")

    def __str__(self) -> str:
        """A line about the method and one for what it decided."""
        given = ", ".join(f"{name}={value}" for name, value in self.settings.items() if value not in (None, False))
        sizes = " + ".join(map(str, self.mesh_sizes))
        meshes = f"in {len(self.mesh_sizes)} meshes" if len(self.mesh_sizes) > 1 else "on one mesh"
        how = "whole" if self.whole else meshes
        lines = [f"{self.method}({given}), {how} of {sizes} devices"]
        if len(self.stage_ends) > 1:
            lines.append(f"  stages end after equations {', '.join(map(str, self.stage_ends))} of the loss")
        if self.choice:
            lines.append(f"  {self._shared()}")
        return "\n".join(lines)

    def _shared(self) -> str:
        """How many operators devices share, and in how many parts."""
        on = f"on {'x'.join(map(str, self.mesh_shape))} devices"
        if not self.parts:
            both = "operands and operators" if self.parts is None else "operands"
            return f"{len(self.choice)} {both} decided one by one {on}"
        what = f"{len(self.parts)} operator{'s' if len(self.parts) > 1 else ''} {on}"
        if max(self.parts) == 1 < prod(self.mesh_shape):
            return f"{what}: none is split, every device does all the work"
        many = sorted(Counter(self.parts).items(), reverse=True)
        return f"{what}: " + ", ".join(f"{n} in {parts} parts" if parts > 1 else f"{n} whole" for parts, n in many)


def load_plan(path: str | Path) -> StagesPlan | MethodPlan:
    """The plan of a compiled step, of whatever method.

    Args:
        path: the path that `compiled.plan.save` or `compiled.save` wrote.

    Raises:
        InputError: there is no such file, or it holds no plan.
    """
    text = plan_text(path)
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        held = None
    if isinstance(held, dict) and held.get("schema") == SCHEMA:
        return MethodPlan.from_json(text)
    return StagesPlan.from_json(text)


def fingerprint_of(jaxpr: core.Jaxpr) -> str:
    """Equal for programs of equal equations on equal shapes, in whatever process they are traced.

    Args:
        jaxpr: the jaxpr of a loss or a step.
    """
    digest = hashlib.sha256()

    def tell(program: core.Jaxpr) -> None:
        digest.update(" ".join(str(var.aval) for var in program.invars).encode())
        for eqn in program.eqns:
            shapes = " ".join(str(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
            digest.update(f"{eqn.primitive.name} {shapes};".encode())
            for inner in programs_of(eqn):
                tell(inner)

    tell(jaxpr)
    return digest.hexdigest()[:16]
