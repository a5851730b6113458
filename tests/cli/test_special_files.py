"""Pipes, sockets, devices and folders where a file belongs: one clear error at once, and pipes of bash are read."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.formats import files
from tests.cli.conftest import Run
from tests.cli.files import SMALL_LLAMA

ESTIMATE = "estimate gpt2 --gpus 8xH100 --plan tp2"
READ = [
    "plan IT --gpus 8xH100",
    "models show IT",
    "models add IT",
    "estimate gpt2 --plan tp2 --cluster IT",
    "estimate gpt2 --gpus 8xH100 --plan IT",
    f"{ESTIMATE} --calibration IT",
    f"{ESTIMATE} --lengths IT",
    f"{ESTIMATE} --prices IT",
    f"{ESTIMATE} --expert-load IT",
    "check gpt2 IT --gpus 8xH100",
    "check IT --gpus 8xH100",
    "check --plan IT",
    "export IT --to megatron -o out",
    "trace IT",
    "report IT",
    "explain IT",
    "xray IT",
    "gpus add IT",
    "validate IT",
    "calibrate IT",
    "plan gpt2 --gpus 8xH100 --gbs 8 --profiles IT",
    "plan --replan-from IT --lost 1",
    "calculon estimate IT a100_80g IT",
    "calculon estimate megatron-126M IT IT",
    "calculon estimate megatron-126M a100_80g IT",
    "calculon estimate --batch IT",
    "calculon sweep megatron-126M a100_80g --procs 4 --batch 8 -o IT",
    "tune gpt2 --gpus 4xH100 --gbs 8 --seq 512 --with random --trials 2 --storage IT",
    "compare IT IT",
    "run mlp-tiny --plan IT",
]
WRITTEN = [f"{ESTIMATE} -o IT", "schedule 1f1b --p 4 --m 8 --svg IT", "trace tp2 --model gpt2 --gpus 4xH100 -o IT"]
NAMES = (
    "pipe",
    "pipe.json",
    "pipe.toml",
    "pipe.sh",
    "pipe.gguf",
    "pipe.safetensors",
    "pipe.json.gz",
    "socket",
    "folder",
)


@pytest.fixture
def special(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One of each in the folder of the command; a command that hangs is interrupted."""
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.02)
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        if name.startswith("pipe"):
            os.mkfifo(name)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    Path("folder").mkdir()
    os.mkfifo("folder/config.json")

    def hangs(number: int, frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("words", READ)
def test_what_is_no_file_is_refused_at_once(words: str, special: None, run: Run) -> None:
    for name in (*NAMES, "/dev/zero", "/dev/null"):
        signal.alarm(60)
        ran = run(*words.replace("IT", name).split())
        assert ran.code in (2, 4), (name, ran.err)
        assert ran.err.startswith("error[")
        assert "Traceback" not in ran.err


@pytest.mark.parametrize("words", WRITTEN)
def test_nothing_waits_for_a_reader(words: str, special: None, run: Run) -> None:
    for name in ("pipe", "socket", "folder"):
        signal.alarm(60)
        ran = run(*words.replace("IT", name).split())
        assert (ran.code, ran.err.count("error[")) == (2, 1), (name, ran.err)
    assert Path("pipe").is_fifo()


def test_weights_beside_a_config_that_are_no_files_are_passed_over(special: None, run: Run) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(SMALL_LLAMA))
    for name in ("a.safetensors", "a.gguf", "model.safetensors.index.json"):
        os.mkfifo(f"model/{name}")
    signal.alarm(60)
    assert run("models", "show", "model").code == 0


def test_a_config_out_of_a_pipe_is_the_one_in_a_file(run: Run) -> None:
    Path("config.json").write_text(json.dumps(SMALL_LLAMA))
    reads, writes = os.pipe()
    try:
        with subprocess.Popen(["cat", "config.json"], stdout=writes):
            os.close(writes)
            piped = run("models", "show", f"/dev/fd/{reads}", "--json").document
    finally:
        os.close(reads)
    filed = run("models", "show", "config.json", "--json").document
    assert piped["parameters"] == filed["parameters"]


def test_a_line_without_an_end_is_an_error_of_that_line(run: Run) -> None:
    with Path("rows.jsonl").open("w") as rows:
        rows.writelines(("{}\n", "x" * 3_000_000, "\n{}\n"))
    answers = [
        json.loads(line)["error"] for line in run("calculon", "estimate", "--batch", "rows.jsonl").out.splitlines()
    ]
    assert ["too long" in answer for answer in answers] == [False, True, False]
