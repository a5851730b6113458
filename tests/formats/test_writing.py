"""Files are whole or untouched: under kills, full disks, read-only folders, two writers at once, and through links."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.formats.writing import write_file, write_folder

OLD, NEW = "old " * 1000, "new " * 3_000_000

WRITE = """
import sys
from meshwright.formats.writing import write_file
path, letter = sys.argv[1], sys.argv[2]
print("begun", flush=True)
for _ in range(100_000):
    write_file(path, letter * 4_000_000)
"""


def remains(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


def started(path: Path, letter: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WRITE, str(path), letter], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text("a" * 4_000_000)
    for turn in range(6):
        process = started(path, "ab"[turn % 2])
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.005 * turn)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        text = path.read_text()
        assert len(text) == 4_000_000
        assert len(set(text)) == 1


def test_of_two_writers_at_once_one_wins_whole(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    writers = [started(path, letter) for letter in "ab"]
    try:
        while not path.exists():
            pass
        for _ in range(10):
            text = path.read_text()
            assert len(text) == 4_000_000
            assert len(set(text)) == 1
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


FULL = """
import resource, signal, sys
from meshwright.errors import InputError
from meshwright.formats.writing import write_file, write_folder
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for write in (lambda: write_file(sys.argv[1], "new " * 3_000_000),
              lambda: write_folder(sys.argv[2], {"a.sh": "x", "b.toml": "new " * 3_000_000}, force=True)):
    try:
        write()
    except InputError as error:
        print(error.code)
"""


def test_a_disk_that_is_full_leaves_the_old_files(tmp_path: Path) -> None:
    path, folder = tmp_path / "plans.json", tmp_path / "launch"
    path.write_text(OLD)
    write_folder(folder, {"a.sh": OLD, "b.toml": OLD})
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(folder)], capture_output=True, text=True, timeout=240, check=True
    )
    assert ran.stdout.split() == ["MW208", "MW208"]
    assert path.read_text() == OLD
    assert {one.name: one.read_text() for one in folder.iterdir()} == {"a.sh": OLD, "b.toml": OLD}
    assert not remains(tmp_path)


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        write_file(tmp_path / "plans.json", NEW)
    tmp_path.chmod(0o700)
    assert not list(tmp_path.iterdir())


def test_a_rename_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plans.json"
    path.write_text(OLD)

    def stale(*_: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "replace", stale)
    with pytest.raises(InputError, match="Stale file handle"):
        write_file(path, NEW)
    assert path.read_text() == OLD
    assert not remains(tmp_path)


def test_an_interruption_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plans.json"
    path.write_text(OLD)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, NEW)
    assert path.read_text() == OLD
    assert not remains(tmp_path)


def test_what_a_link_names_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "plans-7.json", tmp_path / "plans.json"
    target.write_text(OLD)
    link.symlink_to(target)
    write_file(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    dangling = tmp_path / "later.json"
    dangling.symlink_to(tmp_path / "store" / "later.json")
    write_file(dangling, "new")
    assert (tmp_path / "store" / "later.json").read_text() == "new"


def test_who_may_read_a_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(OLD)
    path.chmod(0o600)
    write_file(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_new_files_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_file(tmp_path / "plans.json", "new")
        write_folder(tmp_path / "out", {"train.sh": "new", "config.yaml": "new"})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path, *tmp_path.rglob("*"))}
    expected = {"plans.json": 0o600, "out": 0o700, "train.sh": 0o700, "config.yaml": 0o600}
    assert {name: modes[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["../train.sh", "/tmp/train.sh", "a/b.sh", "..", ".", "", "a\\b", "a\0b"])
def test_no_name_leads_out_of_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_folder(tmp_path / "out", {"config.yaml": "new", name: "new"})
    assert not list(tmp_path.iterdir())


def test_a_folder_may_have_a_name_of_any_length(tmp_path: Path) -> None:
    write_folder(tmp_path / ("n" * 250), {"config.yaml": "new"})
    assert (tmp_path / ("n" * 250) / "config.yaml").read_text() == "new"


def test_a_device_is_written_and_stays_a_device() -> None:
    write_file("/dev/null", "new")
    assert Path("/dev/null").is_char_device()


def test_a_pipe_that_nobody_reads_is_refused_and_one_that_is_read_gets_all(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="cannot be written"):
        write_file(pipe, "text")
    text = "x" * 300_000
    with (tmp_path / "read").open("w") as read, subprocess.Popen(["cat", pipe], stdout=read) as reader:
        while True:
            with contextlib.suppress(InputError):  # until the reader has opened it
                write_file(pipe, text)
                break
        assert reader.wait(60) == 0
    assert (tmp_path / "read").read_text() == text
    assert pipe.is_fifo()


def test_no_other_code_writes_files() -> None:
    """Runs and compiled code have formats of their own; all text goes through the one writer."""
    source = Path(__file__).parents[2] / "src" / "meshwright"
    # The page's log lives in a temporary folder while it is compared.
    apart = {"formats/writing.py", "runtime/checkpoint.py", "app/pages/answers.py"}
    # Temporary folders too: documents of a request, files that a framework reads back in the same process, and the
    # file that leads a browser to the page.
    apart |= {"service/answering.py", "xray/torchtitan.py", "service/local.py"}
    # A process that answers for another tells it which files it read.
    apart.add("cli/seen.py")
    # A worker of Galvatron's own environment, without this package.
    apart.add("planning/compose/sources/parallelizers/galvatron_worker.py")
    found = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if any(word in path.read_text() for word in (".write_text(", ".write_bytes(", 'open("w', ', "w")', ', "wb")'))
    ]
    assert set(found) - apart <= set()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a device of Linux")
def test_a_full_disk_is_called_full_and_its_remedy_is_room() -> None:
    with pytest.raises(InputError) as caught:
        write_file("/dev/full", "x")
    assert "the disk is full" in caught.value.render()
    assert "free space on it" in caught.value.render()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a device of Linux")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_answer_printed_to_a_full_disk_says_so(more: list[str]) -> None:
    command = [sys.executable, "-m", "meshwright", "models", "list", *more]
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 2
    assert "bug" not in run.stderr
    if not more:
        assert "the disk is full" in run.stderr
