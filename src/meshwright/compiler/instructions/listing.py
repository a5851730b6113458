"""Instruction lists as data: saved beside the plan they were written for, read back, checked again, compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec

from meshwright.compiler.instructions import Buffer, Feed, Instruction, Op, StepProgram, StepResult
from meshwright.compiler.saved_plans import plan_text
from meshwright.errors import InputError

SCHEMA = "meshwright.program/1"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Listing:
    """The lists of a program, and of its executables only which they are: it can be printed, checked and compared."""

    program: StepProgram
    """The program without executables."""
    executables: Mapping[str, str]
    """Name and fingerprint of each."""

    @classmethod
    def of(cls, program: StepProgram) -> Listing:
        """What is saved of a program.

        Args:
            program: compiled.
        """
        prints = {
            name: hashlib.sha256(str(closed.jaxpr).encode()).hexdigest()[:16]
            for name, closed in program.executables.items()
        }
        bare = StepProgram(
            lists=program.lists,
            executables={},
            buffers=program.buffers,
            feeds=program.feeds,
            outcomes=program.outcomes,
            inexact=program.inexact,
        )
        return cls(program=bare, executables=prints)

    def to_dict(self) -> dict[str, Any]:
        """As data that `from_dict` reads."""
        program = self.program
        return {
            "schema": SCHEMA,
            "inexact": program.inexact,
            "lists": [[_without_defaults(one) for one in own] for own in program.lists],
            "buffers": [{**asdict(one), "spec": _spec_data(one.spec)} for one in program.buffers],
            "feeds": [asdict(one) for one in program.feeds],
            "outcomes": [asdict(one) for one in program.outcomes],
            "executables": dict(self.executables),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Listing:
        """Read lists.

        Args:
            data: the data as `to_dict` gives it.

        Raises:
            InputError: they are no such lists.
        """
        if data.get("schema") != SCHEMA:
            raise _unreadable(f"lists of schema {data.get('schema')}", f"this release reads {SCHEMA}")
        try:
            program = StepProgram(
                lists=tuple(tuple(_instruction(one) for one in own) for own in data["lists"]),
                executables={},
                buffers=tuple(
                    Buffer(**{**one, "shape": tuple(one["shape"]), "spec": _spec_of(one["spec"])})
                    for one in data["buffers"]
                ),
                feeds=tuple(_feed(one) for one in data["feeds"]),
                outcomes=tuple(StepResult(**one) for one in data["outcomes"]),
                inexact=data["inexact"],
            )
            return cls(program=program, executables=dict(data["executables"]))
        except (KeyError, TypeError, ValueError) as wrong:
            raise _unreadable(
                f"the lists cannot be read: {type(wrong).__name__} {wrong}", "all of what was saved is needed"
            ) from wrong

    @classmethod
    def load(cls, path: str | Path) -> Listing:
        """Read lists from a file.

        Args:
            path: the path that `compiled.save` wrote.

        Raises:
            InputError: there is no such file, or it holds no lists.
        """
        text = plan_text(path)
        try:
            held = json.loads(text)
        except (ValueError, RecursionError) as wrong:
            raise _unreadable(f"{path} is not JSON: {wrong}", "lists are saved as JSON") from wrong
        if not isinstance(held, dict) or not isinstance(held.get("program"), dict):
            raise _unreadable(f"{path} holds no lists", 'they are under "program"')
        return cls.from_dict(held["program"])

    def __str__(self) -> str:
        """The lists as text, mesh after mesh."""
        return str(self.program)


def difference(one: StepProgram | Listing, other: StepProgram | Listing) -> str:
    """What differs between two programs, mesh after mesh, as a unified diff; empty where nothing does.

    Buffers are compared by what they hold and how it is sharded, not by number.

    Args:
        one: the first.
        other: the second.
    """
    first, second = (given if isinstance(given, Listing) else Listing.of(given) for given in (one, other))
    lines: list[str] = []
    for mesh in range(max(first.program.meshes, second.program.meshes)):
        name = f"mesh {mesh}"
        ours, theirs = _described(first.program, mesh), _described(second.program, mesh)
        lines += unified_diff(ours, theirs, name, name, n=1, lineterm="")
    for name, lines_of in (("executables", _fingerprints), ("inexact", _inexact)):
        lines += unified_diff(lines_of(first), lines_of(second), name, name, n=0, lineterm="")
    return "\n".join(lines)


def _fingerprints(listing: Listing) -> list[str]:
    return [f"{name} {fingerprint}" for name, fingerprint in sorted(listing.executables.items())]


def _inexact(listing: Listing) -> list[str]:
    return [listing.program.inexact] if listing.program.inexact else []


def saved(program: StepProgram, plan: str | None = None) -> str:
    """A program as JSON, with its plan where there is one: what `StagesPlan.load` and `Listing.load` read.

    Args:
        program: compiled.
        plan: the plan as JSON.
    """
    whole: dict[str, Any] = {} if plan is None else json.loads(plan)
    return json.dumps({**whole, "program": Listing.of(program).to_dict()})


def _described(program: StepProgram, mesh: int) -> list[str]:
    """A list with what buffers hold in place of their numbers."""
    if mesh >= program.meshes:
        return []

    def held(numbers: Sequence[int]) -> str:
        return " ".join(
            f"{buffer.dtype}{list(buffer.shape)}" + (f" split {list(buffer.spec)}" if buffer.spec else "")
            for buffer in (program.buffers[number] for number in numbers)
        )

    lines = []
    for one in program.lists[mesh]:
        with_whom = f" with {one.peer}" if one.peer is not None else ""
        with_whom += f" {one.combine or ''} over {one.group}" if one.group else ""
        donated = f" donates {held(one.donates)}" if one.donates else ""
        lines.append(f"{one.op} {one.label}{with_whom}: {held(one.reads)} -> {held(one.writes)}{donated}")
    return lines


def _without_defaults(one: Instruction) -> dict[str, Any]:
    return {
        "op": str(one.op),
        **{name: value for name, value in asdict(one).items() if name != "op" and value not in (None, ())},
    }


def _instruction(data: Mapping[str, Any]) -> Instruction:
    many = {name: tuple(data[name]) for name in ("reads", "writes", "group", "donates") if name in data}
    return Instruction(**{**data, **many, "op": Op(data["op"])})


def _spec_data(spec: PartitionSpec | None) -> list[Any] | None:
    return None if spec is None else [list(entry) if isinstance(entry, tuple) else entry for entry in spec]


def _spec_of(data: Sequence[Any] | None) -> PartitionSpec | None:
    if data is None:
        return None
    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in data))


def _unreadable(what: str, why: str) -> InputError:
    return InputError(what=what, why=why, fix="save the compiled step again", field="program")


def _feed(data: dict[str, Any]) -> Feed:
    """A feed as a file has it; JSON has no tuples, and older files had no `samples`."""
    samples = data.get("samples")
    return Feed(**{**data, "samples": None if samples is None else tuple(samples)})
