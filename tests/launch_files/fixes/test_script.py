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
