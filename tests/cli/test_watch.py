"""`--watch`: the answer follows the files it was made of, and nothing is watched where none was read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.cli.commands import WATCHED
from meshwright.cli.seen import Seen
from tests.families import Family

CLUSTER = '[[group]]\nname = "lab"\ndevice = "H100"\nnodes = {nodes}\ndevices_per_node = 8\n'
WORDS = ("estimate", "llama-3.1-8b", "--plan", "tp2.mbs1.z1", "--cluster", "lab.toml", "--gbs", "64", "--watch")


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "lab.toml").write_text(CLUSTER.format(nodes=1))
    # A module of the user's is none of ours.
    (tmp_path / "json.py").write_text("raise SystemExit('not mine')\n")
    command = [sys.executable, "-P", "-m", "meshwright", *WORDS]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def answered(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("llama-3.1-8b on"):
            assert text in line
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def told(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr)


def test_an_answer_follows_its_file_until_it_is_interrupted(watching: subprocess.Popen[str], tmp_path: Path) -> None:
    answered(watching, "on 8 H100")
    told(watching, "watching lab.toml")
    (tmp_path / "lab.toml").write_text(CLUSTER.format(nodes=16))
    told(watching, "lab.toml changed")
    answered(watching, "on 128 H100")
    told(watching, "watching lab.toml")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 0


def test_an_answer_under_way_ends_with_the_command_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(CLUSTER.format(nodes=1024))
    family = Family(["plan", "deepseek-v3", "--cluster", "lab.toml", "--top", "1", "--watch"], tmp_path)
    assert family.until(lambda living: any("meshwright.cli.seen" in command for command in living.values()))
    assert family.kill() == {}


def test_without_a_file_there_is_nothing_to_watch(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-8b", "--plan", "tp2.mbs1.z1", "--gpus", "8xH100", "--watch", "-q"]) == 2
    assert main(["plan", "-", "--gpus", "8xH100", "--watch"]) == 2
    assert capfd.readouterr().err.count("there is nothing to watch") == 2


def test_other_verbs_do_not_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--watch"]) == 2
    assert "--watch" in capsys.readouterr().err
    for verb in WATCHED:
        assert main([verb, "--help-all", "--watch"]) == 0
        assert "--watch" in capsys.readouterr().out


def test_files_that_are_read_are_seen_and_those_that_are_written_are_not(tmp_path: Path) -> None:
    seen, read = Seen(), tmp_path / "read"
    read.write_text("x")
    for path, mode, flags in ((read, "r", 0), (tmp_path / "w", "w", 0), (tmp_path / "o", None, 1), (tmp_path, "r", 0)):
        seen("open", (str(path), mode, flags))
    seen("open", (json.__file__, "r", 0))
    seen("open", (3, "r", 0))
    assert list(seen.stamps) == [str(read)]
    assert seen.stamps[str(read)] == [read.stat().st_mtime_ns, 1]
