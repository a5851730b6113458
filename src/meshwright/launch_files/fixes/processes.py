"""Numbers of nodes and of processes that a script's launcher starts, for a plan that runs on fewer devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.script_edit import edits
from meshwright.formats.shell import Launch
from meshwright.launch_files.fixes.base import OptionChange
from meshwright.launch_files.source import LaunchSource

_COUNTS = re.compile(r"--?(?:n?nodes|num[_-](?:nodes|machines|processes|gpus)|nproc[_-]per[_-]node|N)$")


def with_processes(source: LaunchSource, text: str, devices: int) -> tuple[str, tuple[OptionChange, ...]] | None:
    """A script that starts as many processes as a plan has devices, and the change; None where no edit does it.

    Args:
        source: the user's script.
        text: the text of it, with the plan.
        devices: the number of devices of the plan.
    """
    now = source.read(text)
    if now.started in (None, devices):
        return text, ()
    for launch in source.trainings(text):
        for change in _changes(launch, now.started or 1, devices):
            line = int(change.place.rpartition(":")[2] or 0)
            for edited in edits(text, change.option, change.old, change.new, line):
                read = source.read(edited)
                if read.started == devices and _says(read) == _says(now):
                    return edited, (change,)
    return None


def _changes(launch: Launch, started: int, devices: int) -> Iterator[OptionChange]:
    """Counts of a launcher, each with the value that alone makes the number of processes right."""
    words = [(word.text, word) for word in launch.launcher]
    stated = [(*text.partition("=")[::2], word) for text, word in words if "=" in text]
    stated += [(one, value, word) for (one, _), (value, word) in pairwise(words) if "=" not in one]
    for option, value, word in stated:
        if _COUNTS.fullmatch(option) and value.isdecimal() and int(value) and not int(value) * devices % started:
            place = str(word.place) if word.place is not None else ""
            yield OptionChange(option=option, old=value, new=str(int(value) * devices // started), place=place)


def _says(read: LaunchFile) -> object:
    return read.row, [(said.option, said.value) for said in read.said]
