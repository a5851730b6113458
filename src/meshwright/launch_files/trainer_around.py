"""A trainer with a file of its own that `accelerate launch` starts with another, which says what shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from meshwright.formats.shell import Launch, processes
from meshwright.formats.shell.values import known_text
from meshwright.targets import TARGETS, Target

TRAINERS = ("llamafactory", "axolotl")
"""Targets that are started so."""
Read = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Around:
    """What the launcher's own configuration says."""

    keys: Mapping[str, object]
    """Keys of the trainer's file."""
    started: int | None
    """Processes."""


def engine_of(launch: Launch, target: Target, read: Read) -> Around | None:
    """What the configuration of Accelerate says that a trainer is started with; None where there is none.

    Args:
        launch: the program with its launcher.
        target: the target whose program it is.
        read: the text of a file beside the script, None where there is none.

    Raises:
        InputError: it shards in a way that the trainer's file has no key for.
    """
    words = [word.text for word in launch.launcher]
    path = next((value for flag, value in pairwise(words) if flag in ("--config_file", "--config-file")), "")
    text = read(path) if path and "accelerate" in words and target.name in TRAINERS else None
    if text is None or not TARGETS["accelerate"].recognised("config.yaml", text):
        return None
    from meshwright.targets.accelerate.around import engine_around  # few scripts have one

    return Around(*engine_around(text, target.name))


def processes_of(launch: Launch, target: Target, read: Read) -> int | None:
    """Processes that a launcher starts, by its words or its configuration; Python alone on one device is one."""
    stated, unknown = processes(launch.launcher)
    if stated is not None or unknown is not None:
        return stated
    around = engine_of(launch, target, read)
    if around is not None:
        return around.started
    visible = known_text(launch.environment.get("CUDA_VISIBLE_DEVICES") or ())
    return 1 if visible.isdecimal() and not launch.distributed else None
