"""Bash scripts as the programs they start: evaluated as bash would, without running anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshwright.formats.shell.values import ScriptLine, Unknown, Word, word

if TYPE_CHECKING:
    from meshwright.formats.shell.jobs import WhichJob, job_at
    from meshwright.formats.shell.launch import Launch, launches, processes, seen_from, without_program
    from meshwright.formats.shell.script import Script, read_script
    from meshwright.formats.shell.state import ScriptCommand

__all__ = [
    "Launch",
    "Script",
    "ScriptCommand",
    "ScriptLine",
    "Unknown",
    "WhichJob",
    "Word",
    "job_at",
    "launches",
    "processes",
    "read_script",
    "seen_from",
    "without_program",
    "word",
]

_LATER = {
    "Launch": "launch",
    "Script": "script",
    "ScriptCommand": "state",
    "WhichJob": "jobs",
    "job_at": "jobs",
    "launches": "launch",
    "processes": "launch",
    "read_script": "script",
    "seen_from": "launch",
    "without_program": "launch",
}
"""What reads scripts, by the file it is in: who writes one needs neither bash's grammar nor what evaluates it."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
