"""The road of every target: a plan's files are checked, one value of them is made wrong, told, fixed, and checked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.app.check import CheckReport
from meshwright.formats.key_text import KeyText
from meshwright.formats.launch_file import Said
from meshwright.formats.script_edit import edits
from meshwright.specs.job import Job
from meshwright.targets import TARGETS, readers
from tests.targets.cases import runs_of
from tests.targets.test_round_trip import written

CLUSTER = "16xB200"
MOST = 12
"""Values of one target's files that are made wrong, spread over all that are read."""
UNMENDED = {("run", "--plan"): "the batch stands in the plan, and is asked for"}
NONSENSE = re.compile(r"(?<!\w)(?:nonsense|maybe|many)(?!\w)")
FREE = {"--tokenizer-type", "module", "flavor", "model_name", "model.config.pretrained_model_name_or_path"}
"""Words that anything may stand in: the model is named beside the file."""


def many_sided(target: str) -> Job:
    """A plan of the target with as many degrees as it has."""
    degrees = ("tp", "pp", "cp", "ep")
    return max(runs_of(target), key=lambda one: (sum(word in one.name for word in degrees), len(one.name))).job()


@dataclass(frozen=True)
class Folder:
    """Files of a target."""

    path: Path
    target: str
    texts: dict[str, str]

    @property
    def main(self) -> str:
        known = TARGETS[self.target].recognised
        return next(name for name, text in self.texts.items() if known(name, text) or name.endswith(".sh"))

    def write(self) -> None:
        self.path.mkdir(exist_ok=True)
        for name, text in self.texts.items():
            (self.path / name).write_text(text)

    def check(self, model: str, **more: Any) -> CheckReport:
        asked: dict[str, Any] = {"cluster": CLUSTER, "source_format": self.target, **more}
        return mw.check(model, source=self.path / self.main, **asked)

    def keys(self, file: str) -> KeyText | None:
        return TARGETS[self.target].edited(file, self.texts[file])

    def wrong(self, said: Said, turn: int) -> str | None:
        """The file that says a value, with a wrong one in its place; None where it is not in one."""
        file, _, line = said.place.rpartition(":")
        keys = self.keys(file) if file in self.texts else None
        if keys is not None:
            return keys.with_value(said.option, wrong_value(keys.values.get(said.option), turn))
        if file not in self.texts or not file.endswith(".sh"):
            return None
        value = wrong_value(int(said.value) if said.value.isdigit() else said.value or None, turn)
        new = None if value is None else str(value)
        return next(edits(self.texts[file], said.option, said.value, new, int(line)), None)


def wrong_value(value: object, turn: int) -> Any:
    """A value that cannot stand there: three times as much, none, or no number; a switch is taken out."""
    if isinstance(value, bool):
        return "maybe"
    if isinstance(value, int):
        return (3 * value or 3, "many", 0)[turn % 3]
    return None if value is None else "nonsense"


def some(said: tuple[Said, ...]) -> Iterator[tuple[int, Said]]:
    """So many, spread over all."""
    yield from list(enumerate(said))[:: max(1, -(-len(said) // MOST))]


@pytest.mark.parametrize("target", readers())
def test_a_wrong_value_is_told_and_mended(target: str, tmp_path: Path) -> None:
    one = many_sided(target)
    model = one.model.name
    start = Folder(tmp_path / "start", target, written(target, one))
    start.write()
    first = start.check(model, search=False)
    assert first.ok, first.violations
    assert first.launch is not None
    tried = 0
    for turn, said in some(first.launch.said):
        file, text = said.place.rpartition(":")[0], start.wrong(said, turn)
        if text is None or text == start.texts[file]:
            continue
        broken = Folder(tmp_path / "broken", target, {**start.texts, file: text})
        broken.write()
        tried += 1
        better = tmp_path / "better"
        shutil.rmtree(better, ignore_errors=True)
        better.mkdir()
        report = broken.check(model, fix=True, output=better / broken.main)
        where = f"{said.option}: {said.value} of {file} in turn {turn}"
        if said.option in FREE:
            continue
        if report.ok:  # another plan that is right, or one that another option says whole
            assert not NONSENSE.search(text), where
            continue
        if (target, said.option) in UNMENDED:
            assert report.fix is None or report.fix.why_not or not report.fix.text, where
            continue
        assert report.fix is not None, where
        assert not report.fix.why_not, (where, report.fix.why_not)
        for name, kept in broken.texts.items():
            if not (better / name).exists():
                (better / name).write_text(kept)
        again = Folder(better, target, {name: (better / name).read_text() for name in broken.texts}).check(
            model, search=False
        )
        assert again.ok, (where, [violation.what for violation in again.violations])
        assert again.name == report.fix.plan, where
    assert tried >= min(3, len(first.launch.said)), f"{target}: {tried} values could be made wrong"
