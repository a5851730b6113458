"""Where a launch file says what a violation is about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from meshwright.formats.launch_file import LaunchFile
from meshwright.launch_files.source import LaunchSource
from meshwright.launch_files.violation import Violation
from meshwright.units import whole_number

_WORDS = {
    "tp": ("tensor", "tp_size"),
    "pp": ("pipeline", "pp_"),
    "cp": ("context", "cp_size"),
    "ep": ("expert", "ep_size"),
    "dp": ("data_parallel", "dp_", "fsdp"),
    "mbs": ("micro-batch", "micro_batch", "local_batch"),
    "devices": ("tensor", "tp_size", "pipeline", "pp_", "context", "cp_size"),
}
"""Parts of the options that say a degree, by how a plan calls it."""


def at_their_lines(violations: Iterable[Violation], source: LaunchSource, launch: LaunchFile) -> tuple[Violation, ...]:
    """Violations with the place in the file that each is about.

    Args:
        violations: any; those whose place is not found keep an empty one.
        source: the file.
        launch: what was read of it.
    """
    return tuple(replace(one, place=_place_of(one.field, source, launch)) for one in violations)


def _place_of(field: str, source: LaunchSource, launch: LaunchFile) -> str:
    """Where a file says what a violation is about: the value that was read, or the option or key itself."""
    places = {said.option: said.place for said in (*launch.unpriced, *launch.said) if said.place}
    if field in places:
        return places[field]
    parts = _WORDS.get(field, ())
    about = [option for option in places if any(part in option for part in parts)]
    about = [option for option in about if field == "mbs" or "micro" not in option]
    values = {one.option: whole_number(one.value) or 0 for one in launch.said}
    # Of a product of degrees the largest is the likeliest to be lowered.
    said = places[max(about, key=lambda option: values.get(option, 0))] if about else ""
    last = field.rpartition(".")[2]
    if said or len(last) < 3:
        return said
    written = re.compile(rf"(?<![\w-]){re.escape(last)}(?![\w-])")
    lines = enumerate(source.text.splitlines(), 1)
    return next((f"{source.name}:{at}" for at, line in lines if written.search(line.partition(" #")[0])), "")
