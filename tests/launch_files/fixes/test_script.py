"""A diff that is shown holds no key, token or password of the script around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.launch_files.fixes.base import ScriptFix, masked


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (" --wandb-key SECRET123 \\", " --wandb-key *** \\"),
        ("export WANDB_API_KEY=abc", "export WANDB_API_KEY=***"),
        ('HF_TOKEN="hf_123"', 'HF_TOKEN="***"'),
        ("export AWS_SECRET_ACCESS_KEY='a/b'", "export AWS_SECRET_ACCESS_KEY='***'"),
        ("--wandb-key $WANDB", "--wandb-key $WANDB"),
        ("--tokenizer-type GPT2 --num-tokens 5", "--tokenizer-type GPT2 --num-tokens 5"),
        ("--kv-channels 3 --hidden-size 4", "--kv-channels 3 --hidden-size 4"),
    ],
)
def test_values_of_secrets_are_left_out(line: str, shown: str) -> None:
    assert masked(line) == shown


def test_the_script_in_json_holds_none_either_and_long_lines_take_no_time() -> None:
    fix = ScriptFix(plan="tp2", changes=(), diff="", text="export HF_TOKEN=hf_123\n")
    assert "hf_123" not in str(fix.to_dict())
    assert fix.text == "export HF_TOKEN=hf_123\n"
    assert masked("-" * 100_000) == "-" * 100_000


def test_a_secret_that_a_variable_holds_is_left_out_where_it_is_set() -> None:
    text = "NAME=abc\nOTHER=${OTHER:-def}\ntrain --wandb-key $NAME --api-token=${OTHER} --steps 3\nSTEPS=4\n"
    shown = ScriptFix(plan="tp2", changes=(), diff="", text=text).to_dict()["text"]
    assert "abc" not in shown
    assert "def" not in shown
    assert "STEPS=4" in shown


_MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256"
)
_RUN = """torchrun --nproc_per_node 8 pretrain_gpt.py $OPTS \\
  --micro-batch-size 1 --global-batch-size 64 --bf16 \\
  --tensor-model-parallel-size 8 --data-path {data}  # kept
"""


@pytest.mark.parametrize("data", [("a", "b"), ("a", "a", "b")])
def test_each_of_several_commands_is_edited_and_no_other_program(data: tuple[str, ...], tmp_path: Path) -> None:
    converts = "python tools/convert.py --tensor-model-parallel-size 8 --micro-batch-size 1\n"
    text = f'OPTS="{_MODEL}"\n{converts}' + "".join(_RUN.format(data=one) for one in data)
    script, better = tmp_path / "runs.sh", tmp_path / "better.sh"
    script.write_text(text)
    report = check(script, gpus="8xH100", fix=True, output=better)
    assert report.fix is not None
    edited = better.read_text()
    assert converts in edited
    assert edited.count("# kept") == len(data)
    for change in report.fix.changes:
        said = f"{change.option} {change.new}" if change.new else change.option
        assert edited.replace("'", "").count(said) == len(data)
    again = check(better, gpus="8xH100", search=False)
    assert again.name == report.fix.plan
    assert not again.violations


def test_a_degree_that_another_option_multiplies_is_written_as_it_then_means(tmp_path: Path) -> None:
    script, better = tmp_path / "run.sh", tmp_path / "better.sh"
    experts = "--num-experts 64 --moe-router-topk 4 --moe-ffn-hidden-size 1024 --moe-grouped-gemm --moe-tp-extend-ep"
    script.write_text(
        f"EP=16\ntorchrun --nproc_per_node 8 --nnodes 16 posttrain_gpt.py {_MODEL} {experts} --bf16 "
        "--expert-model-parallel-size $EP --tensor-model-parallel-size 2 --sequence-parallel "
        "--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 256 --use-distributed-optimizer\n"
    )
    report = check(source=script, cluster="128xH100", fix=True, output=better)
    assert report.launch is not None
    assert report.fix is not None
    assert report.launch.row is not None
    assert report.launch.row.ep == 32
    assert [one.value for one in report.launch.said if one.option == "--expert-model-parallel-size"] == ["16"]
    assert "--moe-tp-extend-ep" not in better.read_text()
    again = check(source=better, cluster="128xH100", search=False)
    assert again.launch is not None
    assert again.launch.row is not None
    assert again.launch.row.format() == report.fix.plan


_BLOOM = """#!/bin/bash
#SBATCH --nodes=9
#SBATCH --ntasks-per-node=1
python prepare_train_data.py --output list.txt
MICRO_BATCH_SIZE=1  # of one pass
ZERO_STAGE=0
cat <<EOT > ds_config.json
{ "train_micro_batch_size_per_gpu": MBS, "train_batch_size": 256, "zero_optimization": { "stage": ZERO } }
EOT
torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --tensor-model-parallel-size 1 \\
    --pipeline-model-parallel-size 9 --num-layers 27 --hidden-size 4096 --num-attention-heads 32 \\
    --micro-batch-size $MICRO_BATCH_SIZE --global-batch-size 256 --seq-length 2048 --max-position-embeddings 2048 \\
    --bf16 --pad-vocab-size-to 50304 --checkpoint-activations --zero-stage $ZERO_STAGE --deepspeed \\
    --deepspeed_config ds_config.json
"""


@pytest.mark.parametrize("said", [("$MICRO_BATCH_SIZE", "$ZERO_STAGE"), ("1", "0")])
def test_a_plan_on_fewer_nodes_changes_launcher_variables_and_the_engines_file(
    said: tuple[str, str], tmp_path: Path
) -> None:
    """The engine's file is written by the script, from its variables or letter by letter."""
    script, better = tmp_path / "bloom.slurm", tmp_path / "better.slurm"
    script.write_text(_BLOOM.replace("MBS,", f"{said[0]},").replace("ZERO }", f"{said[1]} }}"))
    report = check(script, gpus="9x8xA100-80", fix=True, output=better)
    assert report.fix is not None
    assert (report.fix.why_not, report.better is not None) == ("", True)
    changed = {one.option: one.new for one in report.fix.changes}
    nodes = int(changed["--nnodes"] or 0)
    assert nodes < 9
    assert f"#SBATCH --nodes={nodes}\n" in better.read_text()
    assert f"MICRO_BATCH_SIZE={changed['--micro-batch-size']}  # of one pass" in better.read_text()
    assert any("stay idle" in note for note in report.fix.notes)
    again = check(better, gpus=f"{nodes}x8xA100-80", search=False)
    # A file with variables in it is not edited: what only it says is told.
    told = any("overlap_comm" in note for note in report.fix.notes)
    assert (again.name.removesuffix(".nodpov" if told else ""), again.violations) == (report.fix.plan, ())
