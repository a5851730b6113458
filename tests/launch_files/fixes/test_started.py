"""Scripts that start a trainer with an engine's file: options and file get the better plan, wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport

ENGINE = """{
  "train_micro_batch_size_per_gpu": MBS,
  "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": STAGE, "overlap_comm": true}
}
"""
AROUND = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_activation_checkpointing: true
"""
WORDS = "--model_name_or_path meta-llama/Llama-2-7b-hf --gradient_accumulation_steps 4 --max_seq_length 2048"
BATCH = "--per_device_train_batch_size"
DEEPSPEED = f"deepspeed --num_gpus 8 train.py {WORDS} --bf16 --gradient_checkpointing True --deepspeed ds.json"
ACCELERATE = f"accelerate launch --config_file around.yaml train.py {WORDS} --bf16 True"


def fixed(folder: Path, script: str) -> tuple[CheckReport, CheckReport]:
    """The check of a script, and that of what the fix writes into a folder of its own."""
    (folder / "run.sh").write_text(script)
    better = folder / "better"
    better.mkdir()
    report = check(folder / "run.sh", cluster="8xA100-80", fix=True, output=better / "run.sh")
    assert report.fix is not None
    assert not report.fix.why_not
    for beside in (*folder.glob("*.json"), *folder.glob("*.yaml")):
        if not (better / beside.name).exists():
            (better / beside.name).write_text(beside.read_text())
    return report, check(better / "run.sh", cluster="8xA100-80", search=False)


HEREDOC = """#!/bin/bash
MBS=4
STAGE=2
cat > ds.json <<EOT
{engine}EOT
{start} {batch} $MBS
"""


@pytest.mark.parametrize("names", [("$MBS", "$STAGE"), ("4", "2")])
def test_an_engine_that_the_script_writes_is_changed_in_the_script(tmp_path: Path, names: tuple[str, str]) -> None:
    engine = ENGINE.replace("MBS", names[0]).replace("STAGE", names[1])
    report, again = fixed(tmp_path, HEREDOC.format(engine=engine, start=DEEPSPEED, batch=BATCH))
    assert report.name == "dp8.z2.mbs4.gbs128.rc-full"
    assert report.fix is not None
    assert report.better is not None
    assert again.name == report.fix.plan == report.better.name
    assert not report.fix.beside
    assert '-  "gradient_accumulation_steps": 4,' in report.fix.diff
    assert '   "bf16": {"enabled": true},' in report.fix.diff
    assert "STAGE=2" in report.fix.text


def test_a_file_of_a_launcher_that_the_script_writes_is_changed_in_it(tmp_path: Path) -> None:
    script = f"#!/bin/bash\ncat > around.yaml <<'EOT'\n{AROUND}EOT\n{ACCELERATE} {BATCH} 4\n"
    report, again = fixed(tmp_path, script)
    assert report.fix is not None
    assert again.name == report.fix.plan
    assert "-  fsdp_activation_checkpointing: true" in report.fix.diff
    assert f"{BATCH} 1" in report.fix.text


@pytest.mark.parametrize(
    ("name", "text", "start"), [("ds.json", ENGINE, DEEPSPEED), ("around.yaml", AROUND, ACCELERATE)]
)
def test_a_file_beside_the_script_is_changed_with_its_options(tmp_path: Path, name: str, text: str, start: str) -> None:
    (tmp_path / name).write_text(text.replace("MBS", "4").replace("STAGE", "2"))
    report, again = fixed(tmp_path, f"#!/bin/bash\n{start} {BATCH} 4\n")
    assert report.fix is not None
    assert again.name == report.fix.plan
    assert [one for one, _ in report.fix.beside] == [name]
    assert report.fix.text.startswith("#!/bin/bash\n")
    assert f"--- a/{name}" in report.fix.diff
    assert "--- a/run.sh" in report.fix.diff


def test_an_option_that_the_script_does_not_have_is_written_into_it(tmp_path: Path) -> None:
    (tmp_path / "around.yaml").write_text(AROUND)
    words = ACCELERATE.replace("--gradient_accumulation_steps 4", "")
    report, again = fixed(tmp_path, f"#!/bin/bash\n{words} \\\n  {BATCH} 8\n")
    assert report.fix is not None
    assert again.name == report.fix.plan
    assert "--gradient_accumulation_steps" in report.fix.text
