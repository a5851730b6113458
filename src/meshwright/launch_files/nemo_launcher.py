"""Scripts that start NeMo's launcher: its config of a stage, with the keys of the command over it.

Source: launcher_scripts/main.py and conf of NVIDIA/NeMo-Framework-Launcher (24.09), whose words are Hydra's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.files import parsed
from meshwright.formats.shell import Launch, Script, Word, job_at, launches
from meshwright.targets.overrides import parsed_word

STAGES = ("training", "fine_tuning", "peft")
"""Stages that train, which are tables of its config, too."""
_PROGRAM = re.compile(r"(?:^|/)(?:launcher_scripts/)?main\.py$")
_KEY = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w.]*)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConfig:
    """The config that a script trains with."""

    keys: dict[str, Any]
    """The stage's own table, by the stage's name."""
    problems: tuple[Problem, ...] = ()
    """Why there is none."""


def launcher_config(script: Script, read: Callable[[str], str | None]) -> LauncherConfig | None:
    """The config of a script that starts NeMo's launcher; None of other scripts.

    Args:
        script: the script as bash means it.
        read: the text of a file beside the script, None where there is none.
    """
    started = [launch for launch in launches(script.commands) if _is_launcher(launch)]
    if not started:
        return None
    at = job_at(started, script.job)
    if isinstance(at, Problem):
        return LauncherConfig(keys={}, problems=(at,))
    words = started[at].words
    stages = _stages(words)
    stage = next((name for name in stages if name in STAGES), None)
    if stage is None:
        what = f"the launcher runs {', '.join(stages) or 'no stage'}"
        fix = "check a script with stages=[training]"
        return LauncherConfig(keys={}, problems=(Problem(what=what, why="none of it trains", fix=fix, field="stages"),))
    named = next((word.text.partition("=")[2] for word in words if word.text.startswith(f"{stage}=")), "")
    path = f"launcher_scripts/conf/{stage}/{named}.yaml"
    text = read(path) or read(f"conf/{stage}/{named}.yaml") if named else None
    if text is None:
        why = f"it says what the command does not ({started[at].place})"
        problem = Problem(what=f"{path} is not here", why=why, fix="put it at that path from there", field="source")
        return LauncherConfig(keys={}, problems=(problem,))
    data = parsed(text, "YAML", "config of NeMo's launcher")
    keys: dict[str, Any] = {stage: data if isinstance(data, dict) else {}}
    for word in words:
        _lay_over(keys, word, stage)
    return LauncherConfig(keys=keys)


def _is_launcher(launch: Launch) -> bool:
    return _PROGRAM.search(launch.program) is not None and any(word.text.startswith("stages=") for word in launch.words)


def _stages(words: Iterable[Word]) -> list[str]:
    said = next((word.text.partition("=")[2] for word in words if word.text.startswith("stages=")), "")
    return [name.strip() for name in said.strip("[]").split(",") if name.strip()]


def _lay_over(keys: dict[str, Any], word: Word, stage: str) -> None:
    """Set, add or take away what a word of the command says of the stage."""
    match = _KEY.fullmatch(word.text)
    if match is None or not match[2].startswith(f"{stage}."):
        return
    *above, last = match[2].split(".")
    at = keys
    for name in above:
        inner = at.get(name)
        at[name] = at = inner if isinstance(inner, dict) else {}
    if match[1] == "~":
        at.pop(last, None)
    elif word.unknown is not None:
        # What nobody can know stands as the variable that says it, which is asked for where it is needed.
        at[last] = f"${{{next(iter(word.unknown.names), 'UNKNOWN')}}}"
    elif match[3] is not None:
        at[last] = parsed_word(match[3])
