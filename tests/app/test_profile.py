"""A profile of this machine: a real one, a device file that plans are made with, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.library.devices import lint_device_file

pytest.importorskip("jax")

from meshwright.app.profile import profile
from tests.answers.schemas import faults


def test_this_machine_becomes_a_device_that_plans_can_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "library" / "devices"
    library.mkdir(parents=True)
    file = library / "here.toml"
    told: list[str] = []
    found = profile(file, name="here", seconds=5, tell=told.append)
    spec, findings = lint_device_file(file)
    assert spec.name == "here"
    assert not [finding for finding in findings if finding.level == "error"]
    assert spec.memory_bandwidth_bytes_per_s == pytest.approx(found.curves.memory_bytes_per_s)
    assert spec.efficiency.basis == "measured"
    assert "products in bf16" in told
    names = [curve.name for curve in found.curves.curves]
    assert {"memory", "products in bf16", "attention forward", "attention backward"} <= set(names)
    assert found.to_dict()["device_file"] == file.read_text("utf-8")
    assert faults(found.to_dict()) == []

    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(tmp_path / "library"))
    best = mw.plan("gpt2", gpus="1xhere", seq_len=256, global_batch=2)[0].estimate
    work = 6 * 124e6 * 512 / dict(spec.peak_flop_per_s)["bf16"]
    assert best.step_time_s > work


def test_wrong_input_is_refused_together_before_anything_is_timed(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        profile(tmp_path / "x.toml", name="no name", seconds=1)
    assert [problem.field for problem in caught.value.problems] == ["seconds", "name"]
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        profile(tmp_path / "none" / "x.toml")
