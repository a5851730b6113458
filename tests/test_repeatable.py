"""The same question gives the same bytes in every process, whatever the hash seed and the threads of BLAS."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from meshwright.cli import main

QUESTIONS = (
    "plan llama-3.1-8b --gpus 16xH100 --top 3 --tokens 1T",
    "plan llama-3.1-8b --gpus 4xH100,4xA100-80 --gbs 32 --seq 2048",
    "calculon search gpt3-13B a100_80g --procs 64 --batch 64",
)
TIMING = re.compile(r'\n +"timing": \{[^}]*\},?')
"""How long the search took, which is the one thing that differs."""


def answer(words: str, seed: str, threads: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-m", "meshwright", *words.split(), "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode in (0, 5), ran.stdout + ran.stderr
    return TIMING.sub("", ran.stdout)


REPEATS = 10
REPEATED = (
    "plan llama-3.1-8b --gpus 8xH100 --top 2",
    "estimate llama-3.1-70b --plan tp8.pp4.mbs1.z1 --gpus 64xH100",
    "schedule zb-v --p 4 --m 8",
    "size llama-3.1-8b --device H100 --days 30 --tokens 1T",
)


@pytest.mark.parametrize("words", REPEATED)
def test_ten_times_in_one_process_give_the_same_bytes(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = set()
    for _ in range(REPEATS):
        assert main((*words.split(), "--json")) == 0
        answers.add(TIMING.sub("", capsys.readouterr().out))
    assert len(answers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", QUESTIONS)
def test_ten_processes_give_the_same_bytes(words: str) -> None:
    assert len({answer(words, str(number), str(1 + number % 2)) for number in range(REPEATS)}) == 1


@pytest.mark.parametrize("words", QUESTIONS)
def test_an_answer_has_the_same_bytes_every_time(words: str) -> None:
    assert answer(words, "1", "1") == answer(words, "4242", "2")
