"""The steps that a release is tried with end here as they have to end there."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.cli import main
from release.check import STEPS

QUICK = [(code, words) for code, words in STEPS if "64xH100,64xA100-80" not in words]
"""All but a search over two kinds of device, which other tests make."""


def test_the_steps_of_a_release_end_with_their_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {" ".join(words): main(words) for _, words in QUICK} == {" ".join(words): code for code, words in QUICK}
