"""Files that a launch file names by a path from the root of its repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright
from meshwright.launch_files.named_files import NamedFiles

ZERO = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
TRAIN = "#!/bin/bash\ntorchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True"
TRAIN += " --per_device_train_batch_size 1 --deepspeed {path}\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a script two folders deep, in a folder that has the same path itself."""
    for folder in (".git", "ds", "scripts/sft"):
        (tmp_path / "project" / folder).mkdir(parents=True)
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "outside.json").write_text("{}")
    (tmp_path / "project" / "ds" / "zero2.json").write_text(json.dumps(ZERO))
    return tmp_path / "project"


def test_a_path_from_the_root_is_found_and_the_answer_says_where(repository: Path) -> None:
    script = repository / "scripts" / "sft" / "train.sh"
    script.write_text(TRAIN.format(path="ds/zero2.json"))
    report = meshwright.check(source=script, gpus="8xH100")
    assert report.name == "dp8.z2.mbs1.gbs8.nodpov"
    said = "ds/zero2.json is read from ../../ds/zero2.json, seen from the folder of the file that names it"
    assert report.launch is not None
    assert said in report.launch.notes


def test_nothing_is_said_of_a_path_that_is_right_from_the_folder(repository: Path) -> None:
    script = repository / "train.sh"
    script.write_text(TRAIN.format(path="./ds/zero2.json"))
    report = meshwright.check(source=script, gpus="8xH100")
    assert report.launch is not None
    assert not [note for note in report.launch.notes if "seen from" in note]


def test_the_path_itself_comes_before_a_file_of_the_same_name_beside(repository: Path) -> None:
    folder = repository / "scripts" / "sft"
    (folder / "zero2.json").write_text(json.dumps({**ZERO, "zero_optimization": {"stage": 3}}))
    read = NamedFiles(folder)
    assert json.loads(read("ds/zero2.json") or "")["zero_optimization"]["stage"] == 2
    assert json.loads(read("zero2.json") or "")["zero_optimization"]["stage"] == 3
    assert json.loads(read("/job/configs/zero2.json") or "")["zero_optimization"]["stage"] == 3
    assert read.elsewhere == {"ds/zero2.json": "../../ds/zero2.json", "/job/configs/zero2.json": "zero2.json"}


def test_paths_of_parents_and_hidden_folders_are_taken_as_written(repository: Path) -> None:
    folder = repository / "scripts" / "sft"
    (repository / ".configs").mkdir()
    (repository / ".configs" / "a.yaml").write_text("hidden: 1\n")
    read = NamedFiles(folder)
    assert read("../../ds/zero2.json") is not None
    assert read(".configs/a.yaml") == "hidden: 1\n"
    assert "../../ds/zero2.json" not in read.elsewhere


def test_nothing_is_looked_for_above_the_root_of_the_repository(repository: Path) -> None:
    read = NamedFiles(repository / "scripts" / "sft")
    assert read("ds/outside.json") is None
    assert read("") is None
    assert NamedFiles(None)("ds/zero2.json") is None


@pytest.mark.parametrize("gone", ["cd rl", "cd ./rl", "cd $(git rev-parse --show-toplevel)/rl", "pushd rl >/dev/null"])
def test_a_path_is_seen_from_where_the_script_has_gone(repository: Path, gone: str) -> None:
    (repository / "rl" / "ds").mkdir(parents=True)
    (repository / "rl" / "ds" / "zero2.json").write_text(json.dumps({**ZERO, "zero_optimization": {"stage": 3}}))
    script = repository / "train.sh"
    line = TRAIN.format(path="ds/zero2.json").partition("\n")[2]
    script.write_text(f"#!/bin/bash\n{gone} && {line}")
    assert meshwright.check(source=script, gpus="8xH100").name.startswith("dp8.z3.mbs1")
    script.write_text(f"#!/bin/bash\n({gone} && ls)\n{line}")
    assert meshwright.check(source=script, gpus="8xH100").name.startswith("dp8.z2.mbs1")
