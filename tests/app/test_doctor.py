"""The doctor finds a sound installation sound, and a broken one broken, without falling ill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from meshwright.app import doctor as module
from meshwright.app.doctor import doctor
from meshwright.report.doctor_table import doctor_table


def test_this_installation_is_sound() -> None:
    report = doctor()
    assert report.ok, report.checks
    assert {check.name for check in report.checks} >= {"models", "devices", "model FLOP", "schedules"}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(doctor_table(report.to_dict()))
    assert "everything planning needs is here" in capture.get()


def test_optional_tools_are_not_imported() -> None:
    code = (
        "import sys\nfrom meshwright.app.doctor import doctor\ndoctor()\n"
        "assert not {'torch', 'jax', 'ray', 'optuna', 'smac'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_broken_file_in_the_own_library_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "half.json").write_text('{"model_type": "llama"')
    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(tmp_path))
    report = doctor()
    assert not report.ok
    failed = [check for check in report.checks if not check.ok]
    assert [check.name for check in failed] == ["models"]
    assert "half" in failed[0].detail


def test_a_check_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("no pricing today")

    monkeypatch.setattr(module, "_priced", broken)
    report = doctor()
    assert not report.ok
    assert any("no pricing today" in check.detail for check in report.checks)


def test_a_wrong_price_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    right = module._priced

    def wrong() -> object:
        model, cluster, workload, estimate = right()
        return model, cluster, workload, replace(estimate, mfu=estimate.mfu * 1.1)

    monkeypatch.setattr(module, "_priced", wrong)
    failed = [check.name for check in doctor().checks if not check.ok]
    assert failed == ["model FLOP"]
