"""A file that is named and not here: the one beside it that can be meant is named instead."""

from __future__ import annotations

import json
from pathlib import Path

from meshwright import check

_TRAINED = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\ndeepspeed: {}\n"
_ENGINE = {
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
}


def test_the_only_file_that_can_be_meant_is_named(tmp_path: Path) -> None:
    file, better = tmp_path / "sft.yaml", tmp_path / "better" / "sft.yaml"
    better.parent.mkdir()
    file.write_text(_TRAINED.format("z3_offlod.json"))
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "z3.json").write_text(json.dumps(_ENGINE))
    report = check(source=file, gpus="8xH100", search=False, fix=True, output=better)
    assert report.fix is not None
    assert [(one.old, one.new) for one in report.fix.changes] == [("z3_offlod.json", "z3.json")]
    assert report.fix.plan.startswith("dp8.z3.mbs1")
    assert better.read_text() == _TRAINED.format("z3.json")


def test_none_is_named_where_two_can_be_meant_or_none(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(_TRAINED.format("gone.json"))
    assert check(source=file, gpus="8xH100", search=False).fix is None
    for stage in (2, 3):
        (tmp_path / f"z{stage}.json").write_text(json.dumps({**_ENGINE, "zero_optimization": {"stage": stage}}))
    report = check(source=file, gpus="8xH100", search=False)
    assert report.fix is None
    assert [one.what for one in report.violations] == ["gone.json is not here"]
