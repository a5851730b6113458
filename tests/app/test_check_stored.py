"""Models whose names say that their weights are stored in fewer bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport

FILE = """
stage: sft
model_name_or_path: MODEL
finetuning_type: KIND
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""


def checked(tmp_path: Path, named: str, kind: str = "lora", model: str | None = None) -> CheckReport:
    file = tmp_path / "sft.yaml"
    file.write_text(FILE.replace("MODEL", named).replace("KIND", kind))
    return check(model, source=file, cluster="1xH100", search=False)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("someone/Meta-Llama-3-8B-Instruct-AWQ", "nf4"),
        ("someone/Meta-Llama-3-8B-Instruct-GPTQ-Int8", "int8"),
        ("unsloth/llama-3-8b-Instruct-bnb-4bit", "nf4"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", None),
    ],
)
def test_adapters_stand_beside_weights_as_they_are_stored(tmp_path: Path, name: str, base: str | None) -> None:
    for model in (None, "llama-3-8b"):
        report = checked(tmp_path, name, model=model)
        assert report.inputs is not None
        tuning = report.inputs.model.tuning
        assert tuning is not None
        assert tuning.lora is not None
        assert tuning.lora.base == base
        assert any("priced as" in note for note in report.warnings) == (base is not None)


def test_weights_stored_so_are_not_trained_themselves(tmp_path: Path) -> None:
    report = checked(tmp_path, "someone/Meta-Llama-3-8B-Instruct-AWQ", "full")
    assert any("stored in 4 bits" in one.what for one in report.violations)


def test_what_has_no_price_is_refused(tmp_path: Path) -> None:
    report = checked(tmp_path, "someone/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16", model="llama-3-8b")
    assert any("2 or 3 bits" in one.why for one in report.violations)
