"""A question has the same answer, byte for byte, in every process, whatever hash seed, threads and cores it has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshwright.cli import main

QUESTIONS = (
    "plan llama-3.1-8b --gpus 16xH100 --top 3 --tokens 1T",
    "plan llama-3.1-8b --gpus 4xH100,4xA100-80 --gbs 32 --seq 2048",
    "calculon search gpt3-13B a100_80g --procs 64 --batch 64",
)
MORE = (
    "size llama-3.1-8b --device H100 --days 30 --tokens 1T",
    "tune llama-3.1-8b --gpus 16xH100 --trials 20",
    "tune gpt2 --gpus 4xH100 --gbs 8 --seq 512 --compare --with random --with optuna --trials 20",
    "calculon tune megatron-126M a100_80g --procs 16 --batch 16 --trials 20",
    "sweep study.toml -o rows.parquet",
    "calculon sweep megatron-126M a100_80g --procs 4,8,16 --batch 8,16 -o rows.parquet",
    "plan qwen3-30b-a3b --gpus 8xH100,8xA100-80,8xV100-32 --gbs 64 --seq 2048 -o plans.json",
)
"""Of verbs that work on several cores, or keep files."""
OF_PLANS = (
    "check plans.json#1",
    "explain plans.json#1",
    "compare plans.json#1 plans.json#2",
    "trace plans.json#1 -o step.json",
    "report plans.json -o report.html",
    "export plans.json#1 --to megatron -o launched",
)
"""Of verbs that read the plans of `PLANNED`, which is asked once."""
OF_NUMBERS = (
    "estimate llama-3.1-70b --plan tp8.pp4.mbs1.z1 --gpus 64xH100",
    "schedule best --p 4 --m 8",
    "validate measured.csv -o predictions.csv",
    "models show llama-3.1-8b",
    "gpus show H100",
    "clusters show 16xH100,8xA100-80",
    "doctor",
    "calibrate --from-log steps.csv --model llama-3.1-8b --plan tp2.mbs1.gbs128 --gpus 8xH100 -o fitted.json",
)
"""Of others that answer without devices."""
OF_RUNS = (
    "run mlp-tiny --plan pp2.dp2 --devices 4 --steps 2",
    "verify mlp-tiny --plan pp2.dp2 --devices 4 --steps 2",
)
"""Of verbs that train; `profile` alone is left out: all that it says is measured."""
PLANNED = "plan gpt2-xl --gpus 8xH100 --gbs 32 --seq 1024 --top 3 -o plans.json"
MEASURED = Path(__file__).parent / "app" / "data" / "measured_sample.csv"
STEPS = "step,step_time_s\n1,6.5\n2,6.4\n3,6.6\n"
STUDY = 'model = ["gpt2", "gpt2-xl"]\ngpus = ["4xH100", "8xH100"]\ngbs = 16\nseq = 1024\n'
TIMING = re.compile(r'\n +"timing": \{(?:[^{}]|\{[^{}]*\})*\},?')
"""How long a search took or steps did, which is the one thing that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What must not matter."""

    hash_seed: int
    threads: int
    """Of BLAS and OpenMP."""
    cores: int
    """That the process may use: as many workers share its work."""

    @property
    def environment(self) -> dict[str, str]:
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        return {**os.environ, "PYTHONHASHSEED": str(self.hash_seed), **threads}

    def bind(self) -> None:
        """This process to its cores, where the system has a way to."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.cores])


def answer(words: str, setting: Setting, folder: Path, plans: bytes = b"") -> dict[str, object]:
    """What a command prints and writes, in a folder of its own."""
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    (folder / "measured.csv").write_bytes(MEASURED.read_bytes())
    (folder / "steps.csv").write_text(STEPS)
    if plans:
        (folder / "plans.json").write_bytes(plans)
    command = [sys.executable, "-m", "meshwright", *words.split(), "--json"]
    ran = subprocess.run(
        command,
        env=setting.environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        preexec_fn=setting.bind,
    )
    assert ran.returncode in (0, 5), ran.stdout + ran.stderr
    files = {str(path.relative_to(folder)): written(path) for path in folder.rglob("*") if path.is_file()}
    return {"printed": TIMING.sub("", ran.stdout), **files}


def written(path: Path) -> object:
    """The content of a file: of a plan set but for its times."""
    return TIMING.sub("", path.read_text()) if path.suffix == ".json" else path.read_bytes()


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


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Three plans in a file."""
    folder = tmp_path_factory.mktemp("planned")
    answer(PLANNED, Setting(hash_seed=0, threads=1, cores=1), folder / "there")
    return (folder / "there" / "plans.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("words", [*QUESTIONS, *MORE, *OF_PLANS, *OF_NUMBERS, *OF_RUNS])
def test_ten_processes_give_the_same_bytes(words: str, tmp_path: Path, plans: bytes) -> None:
    """Every combination of threads and cores at least twice, and a hash seed of its own each time."""
    settings = [Setting(hash_seed=n, threads=1 + n % 2, cores=1 + n // 2 % 2) for n in range(REPEATS)]
    first, *others = (answer(words, setting, tmp_path / str(n), plans) for n, setting in enumerate(settings))
    for setting, other in zip(settings[1:], others, strict=True):
        assert other == first, setting


@pytest.mark.parametrize("words", QUESTIONS)
def test_an_answer_has_the_same_bytes_every_time(words: str, tmp_path: Path) -> None:
    one, two = Setting(hash_seed=1, threads=1, cores=1), Setting(hash_seed=4242, threads=2, cores=2)
    assert answer(words, one, tmp_path / "one") == answer(words, two, tmp_path / "two")
