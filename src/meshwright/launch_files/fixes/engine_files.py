"""Configurations of an engine that a script names, beside it or written by it: with another plan in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.script_edit import with_written
from meshwright.launch_files.fixes.keys import KeyChange, changed_keys, edited_files
from meshwright.launch_files.source import LaunchSource
from meshwright.targets.contract import PLAN_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFiles:
    """A script's files of keys, and those that its target writes for another plan."""

    source: LaunchSource
    """The script."""
    own: Mapping[str, str]
    """Text of the user's by name."""
    theirs: Mapping[str, str]
    """Text of the plan's own by the user's names."""

    @classmethod
    def of(cls, source: LaunchSource, others: Mapping[str, str]) -> EngineFiles:
        """The files that a script names, each with the one of the plan that stands for it.

        Args:
            source: the script.
            others: files of the other plan, by name.
        """
        plans = {name: text for name, text in others.items() if name.endswith(".json") and name != PLAN_FILE}
        written = {name: held for name, held in source.written(source.text).items() if name.endswith(".json")}
        own = {**written, **source.configurations(source.text)} if plans else {}
        own = {name: text for name, text in own.items() if source.target.edited(name, text) is not None}
        theirs = {name: plans[name] for name in own if name in plans}
        if not theirs and len(own) == len(plans) == 1:
            theirs = dict(zip(own, plans.values(), strict=True))
        return cls(source=source, own={name: own[name] for name in theirs}, theirs=theirs)

    def placed(self, text: str, files: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """A script with those of its files in it that it writes itself, and the others.

        Args:
            text: the text of the script.
            files: text of files by name.
        """
        inside = {name: held for name, held in self.source.written(text).items() if name in files}
        for name, held in inside.items():
            text = with_written(text, held, files[name]) or text
        return text, {name: held for name, held in files.items() if name not in inside}

    def read(self, text: str, files: Mapping[str, str]) -> LaunchFile:
        """The script with this text, and with these files beside it or in it."""
        text, files = self.placed(text, files)
        around = {name: one for name, one in self.source.files.items() if name != self.source.name}
        return replace(self.source, files={self.source.name: text, **around, **files}).read()

    def edited(self, text: str) -> tuple[Mapping[str, str], tuple[KeyChange, ...]]:
        """The files with the fewest keys changed that go with an edited script, and these changes.

        Args:
            text: the text of the edited script.
        """
        if not self.theirs:
            return {}, ()
        files = replace(self.source, files=self.own)
        changes: list[KeyChange] = []
        for name, theirs in self.theirs.items():
            keys = [self.source.target.edited(name, one) for one in (self.own[name], theirs)]
            read = {path for one in keys if one is not None for path in one.values if _of_a_plan(path)}
            changes += changed_keys(files, name, theirs, read)
        whole = edited_files(files, changes)
        if isinstance(whole, str):
            return {}, ()
        wanted = self._read_as(text, whole)
        for change in tuple(changes):
            fewer = [other for other in changes if other is not change]
            less = edited_files(files, fewer)
            if not isinstance(less, str) and self._read_as(text, less) == wanted:
                changes, whole = fewer, less
        return whole, tuple(changes)

    def _read_as(self, text: str, files: Mapping[str, str]) -> tuple[object, ...]:
        """What part of a reading two sets of files have in common where they say one plan."""
        read = self.read(text, files)
        return read.row, read.layout, read.workload, read.problems


_PLANS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _of_a_plan(path: str) -> bool:
    return PurePath(path).name in _PLANS or path.startswith(("zero_optimization.", "bf16.", "fp16."))
