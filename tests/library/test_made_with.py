"""A plan file says what it rests on, and who reads it later hears what has changed since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.formats.plan_json import read_job
from meshwright.library.calibration import PACKAGED
from meshwright.library.made_with import changes_since, made_with

MODEL = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
DEVICE = PACKAGED.parent / "devices" / "H100.toml"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own library: a model, a device under a name of the package's, and a calibration."""
    folder = tmp_path / "library"
    for name in ("models", "devices"):
        (folder / name).mkdir(parents=True)
    (folder / "models" / "own.json").write_text(json.dumps(MODEL))
    (folder / "devices" / "H100.toml").write_text(DEVICE.read_text())
    (folder / "calibration.json").write_text(PACKAGED.read_text())
    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(folder))
    return folder


def warned(path: Path) -> list[str]:
    return [one for one in mw.check(plan=path).warnings if "since this plan was made" in one]


def test_check_says_what_changed_since_a_plan_was_made(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    mw.plan("own", gpus="2xH100", global_batch=8, seq_len=512).best.save(path)
    held = read_job(path)
    assert held.made_with == made_with(held.planned)
    assert held.made_with is not None
    assert [name for name, _ in held.made_with.library] == ["model own", "device H100"]
    assert warned(path) == []

    own = library / "models" / "own.json"
    own.write_text(json.dumps({**MODEL, "vocab_size": 2000}))
    (model,) = warned(path)
    assert "the library's own has changed" in model
    own.unlink()
    assert warned(path) == []

    device = library / "devices" / "H100.toml"
    device.write_text(device.read_text().replace("memory_gib = 79.11", "memory_gib = 78.0"))
    assert device.read_text() != DEVICE.read_text()
    (changed,) = warned(path)
    assert "the library's H100 has changed" in changed


def test_another_calibration_is_told_once(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    mw.plan("gpt2", gpus="2xA100", global_batch=8).best.save(path)
    other = tmp_path / "other"
    other.mkdir()
    data = json.loads(PACKAGED.read_text())
    name = next(iter(data["numbers"]))
    data["numbers"][name]["value"] = data["numbers"][name]["low"]
    (other / "calibration.json").write_text(json.dumps(data))
    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(other))
    (said,) = changes_since(read_job(path))
    assert "the calibration has changed" in said
