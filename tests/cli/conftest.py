"""Runs the command in this process, as a terminal without colours would see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main


@dataclass(frozen=True)
class Ran:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON object on stdout; NaN and Infinity do not parse."""

        def refuse(name: str) -> None:
            raise ValueError(f"{name} is no JSON")

        found = json.loads(self.out, parse_constant=refuse)
        assert isinstance(found, dict)
        return found


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run("models", "list")` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHWRIGHT_LIBRARY", raising=False)
    monkeypatch.delenv("MESHWRIGHT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def execute(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
        return Ran(code=code, out=out, err=err)

    return execute
