"""Pipes, sockets, devices and folders where a file belongs: one clear error at once, and pipes of bash are read."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshwright.calculon import row_file
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


def test_lines_before_one_that_never_ends_are_answered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "MOST_PASSED_OVER", 200_000)
    with subprocess.Popen(["sh", "-c", "echo '{}'; exec cat /dev/zero"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(writer.stdout))
        outcome = run("calculon", "estimate", "--batch", "-")
        writer.kill()
    assert outcome.code == 2
    assert "a line has no end" in outcome.err
    assert ["too long" in json.loads(line)["error"] for line in outcome.out.splitlines()] == [False, True]


def test_rows_are_not_read_from_a_closed_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    outcome = run("calculon", "estimate", "--batch", "-")
    assert outcome.code == 2
    assert "standard input is closed" in outcome.err


CLUSTERS = {
    "TOML": '# ours\n[[group]]\nname = "lab"\ndevice = "H100"\nnodes = 1\ndevices_per_node = 8\n',
    "JSON": '{"group": [{"name": "lab", "device": "H100", "nodes": 1, "devices_per_node": 8}]}',
    "YAML": "# ours\ngroup:\n- {name: lab, device: H100, nodes: 1, devices_per_node: 8}\n",
}


@contextmanager
def piped(text: str) -> Iterator[str]:
    """The name of a pipe that a text was written into, as bash gives for `<(...)`."""
    reads, writes = os.pipe()
    try:
        with os.fdopen(writes, "w") as stream:
            stream.write(text)
        yield f"/dev/fd/{reads}"
    finally:
        os.close(reads)


@pytest.mark.parametrize("text", CLUSTERS.values(), ids=CLUSTERS)
def test_a_cluster_out_of_a_pipe_is_read_by_its_text(text: str, run: Run) -> None:
    with piped(text) as pipe, piped(json.dumps({**SMALL_LLAMA, "_name_or_path": "us/small"})) as config:
        answer = run("plan", config, "--cluster", pipe, "--top", "1", "--json").document
    assert answer["inputs"]["model"]["name"] == "small"
    assert answer["inputs"]["cluster"]["name"] == "cluster"


def test_what_is_wrong_in_a_pipe_is_told_in_its_language(run: Run) -> None:
    with piped("{") as pipe:
        assert "is not valid JSON" in run("plan", "gpt2", "--cluster", pipe).err
    with piped("group: [") as pipe:
        assert "is not valid YAML" in run("plan", "gpt2", "--cluster", pipe).err
    with piped("hello") as pipe:
        assert "write the keys as TOML" in run("plan", "gpt2", "--cluster", pipe).err


def test_a_plan_file_out_of_a_pipe_is_read_as_often_as_needed(run: Run) -> None:
    run("plan", "gpt2", "--gpus", "8xH100", "--gbs", "8", "--seq", "512", "--top", "1", "-o", "plan.json")
    with piped(Path("plan.json").read_text()) as pipe:
        assert run("check", "--plan", pipe).code == 0
        assert run("check", "--plan", pipe).code == 0
