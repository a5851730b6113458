"""What people see: every verb prints its answer on stdout, with the identities and the defaults that shaped it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.schedules import SCHEDULES
from meshwright.specs.row_text import parse_row
from tests.cli.conftest import Run

PLAN_SET = "plan gpt2 --gpus 2xH100 --gbs 8 --top 2 --quiet --output"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plans") / "plans.json"
    assert main([*PLAN_SET.split(), str(path)]) == 0
    return str(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "plan gpt2 --gpus 2xH100 --gbs 8",
            ("gpt2 on 2 H100", "per step", "dp", "Assumed", "sequence length", "layers 12"),
        ),
        ("estimate gpt2 --gpus 2xH100 --gbs 8 --plan tp2", ("2 = tp2 x dp1", "Memory", "Assumed")),
        ("check gpt2 --gpus 2xH100 --gbs 8 --plan tp2", ("ok", "gpt2 on 2 H100")),
        ("explain PLANS#1", ("From plain data parallelism", "One change away")),
        ("compare PLANS#1 PLANS#2", ("Settings that differ", "Seconds of a step", "total")),
        ("compare PLANS#1 PLANS#2 --timeline", ("on one time axis", "% busy", "- forward, = backward")),
        ("trace PLANS#2", ("gpt2, ", "% busy", "Seconds of the step", "0: layers 0-11")),
        ("trace pp2.mbs1 --model gpt2 --gpus 2xH100 --gbs 8", ("1 |", "activations of stage 0", "1: layers ")),
        ("size gpt2 --device H100 --gbs 8 --step-time 1", ("is enough for 1 s per step", "The plan of 1 device")),
        ("schedule list", ("1f1b", "gpipe", "interleaved", "dapple")),
        ("schedule best --p 4 --m 8", ("zb-v, v = 2: 25.5 s", "candidate", "list scheduling, linear")),
        ("schedule 1f1b --p 4 --m 8", ("3 |", "33 s", "27.3%", "4, 3, 2, 1")),
        ("schedule 1f1b,zb-h1 --p 4 --m 8", ("1f1b, p 4, m 8", "zb-h1, p 4, m 8", "27.3%", "27 s", "4, 4, 4, 4")),
        ("models list", ("llama-3.1-70b", "any other: pass the path")),
        ("models show llama-3.1-70b", ("70,553,706,496", "80 x grouped attention")),
        ("gpus list", ("H100", "A100-80")),
        ("gpus show H100", ("989.4 TFLOP/s, dense", "datasheet")),
        ("doctor", ("everything planning needs is here",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_answer_is_on_stdout(run: Run, plans: str, line: str, words: tuple[str, ...]) -> None:
    ran = run(*line.replace("PLANS", plans).split())
    assert ran.code == 0, ran.err
    assert not [word for word in words if word not in ran.out], ran.out
    assert "\x1b" not in ran.out
    assert max(len(text) for text in ran.out.splitlines()) <= 120
    assert "\\[" not in ran.out


def test_a_plan_is_printed_so_that_it_can_be_pasted(run: Run) -> None:
    table = run("plan", "gpt2", "--gpus", "2xH100", "--gbs", "8").out
    line = next(text for text in table.splitlines() if text.startswith("1  "))
    row = parse_row(line.split()[1], devices=2, global_batch=8, schedules=tuple(SCHEDULES))
    assert run("estimate", "gpt2", "--gpus", "2xH100", "--plan", row.format()).code == 0


def test_what_was_written_is_said_on_stderr_and_quiet_is_quiet(run: Run, tmp_path: Path) -> None:
    words = ("estimate", "gpt2", "--gpus", "2xH100", "--gbs", "8", "--plan", "tp2", "-o")
    assert "written to one.json" in run(*words, "one.json").err
    assert run(*words, "two.json", "-q").err == ""
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


def test_from_plan_to_launch_script_and_back(run: Run, tmp_path: Path) -> None:
    assert run(*PLAN_SET.split(), "plans.json", "--target", "megatron").code == 0
    exported = run("export", "plans.json#1", "--to", "megatron", "-o", "launch")
    assert exported.code == 0
    assert "train.sh" in exported.out
    again = run("check", "gpt2", "--from", "megatron", "launch/train.sh", "--gpus", "2xH100")
    assert again.code == 0, again.out + again.err
    refused = run("export", "plans.json#1", "--to", "megatron", "-o", "launch")
    assert refused.code == 2
    assert "--force" in refused.err
    assert run("export", "plans.json#1", "--to", "megatron", "-o", "launch", "--force").code == 0


def test_a_launch_script_with_faults_exits_5(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py --tensor-model-paralel-size 8 --num-layers many\n")
    ran = run("check", "gpt2", "--from", "megatron", "train.sh", "--gpus", "2xH100")
    assert ran.code == 5
    assert "--tensor-model-parallel-size" in ran.out
    assert "Traceback" not in ran.err


def test_your_own_device_and_model_are_used(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = (
        'name = "my-gpu"\ngeneration = "hopper"\nbf16_tflops = 500\nmemory_gib = 60\nmemory_gb_s = 2000\nunits = 100\n'
    )
    (tmp_path / "my-gpu.toml").write_text(device)
    assert run("gpus", "add", "my-gpu.toml", "--library", "lib").code == 0
    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(tmp_path / "lib"))
    assert "my-gpu" in run("gpus", "list").out
    assert "gpt2 on 2 my-gpu" in run("estimate", "gpt2", "--gpus", "2xmy-gpu", "--gbs", "8", "--plan", "dp2").out


def test_a_search_says_on_a_terminal_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["plan", "llama-3-8b", "--gpus", "8xH100", "--json"]) == 0
    shown = [line.removeprefix("\x1b[2K") for line in capsys.readouterr().err.split("\r")]
    assert shown[1] == "searching ..."
    told = [
        re.match(r"searching: (\d+)%, [0-9,]+ of 73,768 plans decided, [0-9,]+ a second", one) for one in shown[2:-1]
    ]
    shares = [int(one[1]) for one in told if one]
    assert shares == sorted(shares)
    assert any("quickest so far" in one for one in shown)
    assert all(len(line) < 100 for line in shown)
    assert shown[-1] == ""


def test_a_diff_wider_than_the_terminal_is_whole(run: Run, tmp_path: Path) -> None:
    small = (
        "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
    )
    batch = "--micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 --tensor-model-parallel-size 8"
    (tmp_path / "train.sh").write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {small} {batch}\n")
    asked = ("check", "train.sh", "--gpus", "8xH100")
    diff = run(*asked, "--json").document["fix"]["diff"].rstrip()
    assert max(map(len, diff.split("\n"))) > 200
    assert diff in run(*asked).out
