"""Sweeps: the file holds what searches find, is valid whenever writing stops, and is gone on with exactly."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.calculon_sweep import CalculonSweep
from meshwright.app.verbs import VERBS, python_verb
from meshwright.calculon.answer import SearchGoal
from meshwright.calculon.sweep import design_parts, designs_of
from meshwright.errors import InputError, StoppedError
from meshwright.formats.sweep_file import read_sweep
from meshwright.formats.sweep_parts import PartsFolder, left_of
from tests.calculon.spaces import SMALL, WIDE, a100, space_of

calculon_search, calculon_sweep = python_verb("calculon search"), python_verb("calculon sweep")
QUESTION: dict[str, Any] = {
    "apps": [SMALL, WIDE], "systems": [a100(8.0)], "procs": [8, 16], "batches": [8], "pin": "tensor_par=2,4",
}  # fmt: skip


def swept(path: Path, on_progress: Any = None, **options: Any) -> CalculonSweep:
    verb = VERBS["calculon sweep"]
    found = verb.answer(
        verb.request.read({**QUESTION, "output": str(path), "top": 5, **options}), on_progress=on_progress
    )
    assert isinstance(found, CalculonSweep)
    return found


def test_rows_are_the_best_and_the_front_of_each_design(tmp_path: Path) -> None:
    found = swept(tmp_path / "s.parquet")
    rows = list(read_sweep(tmp_path / "s.parquet"))
    assert found.to_dict()["rows"] == len(rows)
    for design in found.designs:
        app = SMALL if design["app"] == "small" else WIDE
        alone = calculon_search(app, a100(8.0), procs=design["num_procs"], batch=8, top=5, pin=QUESTION["pin"])
        own = [row for row in rows if row["design"] == design["design"]]
        ranked = sorted((row for row in own if row["rank"]), key=lambda row: row["rank"])
        assert [row["sample_rate"] for row in ranked] == [one.sample_rate for one in alone.result.best]
        assert sum(row["on_front"] for row in own) == len(alone.result.front)
        assert all(
            row[key] == value for key, value in alone.to_dict()["best"][0]["execution"].items() for row in ranked[:1]
        )
        assert design["search"]["space"] == alone.result.certificate.space


def test_all_rows_are_every_accepted_execution(tmp_path: Path) -> None:
    found = swept(tmp_path / "s.parquet", apps=[SMALL], procs=[4], batches=[2], every=True)
    rows = list(read_sweep(tmp_path / "s.parquet"))
    assert len(rows) == found.designs[0]["search"]["feasible"] == found.designs[0]["rows"]
    assert max(row["sample_rate"] for row in rows) == found.designs[0]["sample_rate"]
    assert sorted(row["rank"] for row in rows if row["rank"]) == [1, 2, 3, 4, 5]


def test_an_interrupted_sweep_is_valid_and_goes_on(tmp_path: Path) -> None:
    path, whole = tmp_path / "s.parquet", tmp_path / "whole.parquet"

    def stop_after_two(progress: Any) -> None:
        if progress.designs == 2:
            raise KeyboardInterrupt

    with pytest.raises(StoppedError, match="after 2 of 4 designs") as caught:
        swept(path, on_progress=stop_after_two)
    assert caught.value.exit_code == 130
    assert {row["design"] for row in read_sweep(path)} == {0, 1}

    again: list[int] = []
    found = swept(path, resume=True, on_progress=lambda progress: again.append(progress.designs))
    assert again == [3, 4]
    assert found.before == 2
    expected = swept(whole)
    assert list(read_sweep(path)) == list(read_sweep(whole))
    assert found.designs == expected.designs
    assert not list(tmp_path.glob(".*"))


def test_rows_of_an_incomplete_design_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.app import calculon_sweep as module

    path = tmp_path / "s.parquet"
    whole = module.every_execution

    def broken(design: Any, *, fixed: bool) -> Any:
        for place, part in enumerate(whole(design, fixed=fixed)):
            if design.number == 1 and place == 0:
                yield part
                raise KeyboardInterrupt
            yield part

    monkeypatch.setattr(module, "every_execution", broken)
    with pytest.raises(StoppedError):
        swept(path, apps=[SMALL], procs=[2, 4], batches=[2], every=True)
    monkeypatch.undo()
    swept(path, apps=[SMALL], procs=[2, 4], batches=[2], every=True, resume=True)
    rows = list(read_sweep(path))
    assert len({(row["design"], row["number"]) for row in rows}) == len(rows)


def test_resuming_without_a_file_begins_and_an_existing_file_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    swept(path, apps=[SMALL], procs=[4], resume=True)
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists") as caught:
        swept(path, apps=[SMALL], procs=[4])
    assert "--resume" in caught.value.problems[0].fix
    assert path.read_bytes() == before
    swept(path, apps=[SMALL], procs=[8], force=True)
    assert {row["num_procs"] for row in read_sweep(path)} == {8}


@pytest.mark.parametrize("harm", ["truncated", "corrupt", "text", "empty", "another question", "no sweep"])
def test_a_file_that_cannot_be_gone_on_with_is_refused_and_kept(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "s.parquet"
    asked: dict[str, Any] = {"apps": [SMALL], "procs": [4, 8]}
    swept(path, **asked)
    data = path.read_bytes()
    if harm == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "corrupt":
        middle = len(data) // 3
        path.write_bytes(data[:middle] + bytes(255 - byte for byte in data[middle : 2 * middle]) + data[2 * middle :])
    elif harm in ("text", "empty"):
        path.write_bytes(b"design,app\n" if harm == "text" else b"")
    elif harm == "another question":
        asked["procs"] = [4, 16]
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), path)
    harmed = path.read_bytes()
    with pytest.raises(InputError, match="cannot be used"):
        swept(path, **asked, resume=True)
    assert path.read_bytes() == harmed
    assert not list(tmp_path.glob(".*"))


def test_all_problems_of_a_sweep_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        calculon_sweep(
            ["gpt4"],
            ["a100_80"],
            procs=[0],
            batches=[2**40],
            output=str(tmp_path / "no" / "s.parquet"),
            space="ful",
            dtype="float17",
            pin=["tensor=3", "tensor_par=x"],
        )
    text = caught.value.render()
    for word in ("gpt4", "a100_80", "procs is 0", "batch", "ful", "float17", "'tensor'", "tensor_par=x", "no folder"):
        assert word in text


def test_empty_and_hopeless_designs_say_why(tmp_path: Path) -> None:
    found = swept(tmp_path / "s.parquet", apps=[WIDE], procs=[7, 16], systems=[a100(0.001)])
    assert [design["rows"] for design in found.designs] == [0, 0]
    assert all(design["why_not"] for design in found.designs)


def killed_sweep(path: Path, designs: int) -> None:
    """A sweep of the question whose process is killed as soon as so many designs are done."""
    code = (
        "import os, signal, sys; from pathlib import Path; import meshwright.formats.sweep_parts as parts\n"
        "from tests.calculon.test_sweep import swept\n"
        "parts.PART_S = parts.PART_SHARE = 0.0\n"
        "def stop(progress):\n"
        f"    if progress.designs == {designs}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "swept(Path(sys.argv[1]), on_progress=stop)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], check=False, capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()


def test_a_killed_sweep_loses_nothing_that_was_done(tmp_path: Path) -> None:
    path, whole = tmp_path / "s.parquet", tmp_path / "whole.parquet"
    killed_sweep(path, 2)
    assert not path.exists()
    with pytest.raises(InputError, match="was killed") as caught:
        swept(path)
    assert "--resume" in caught.value.problems[0].fix
    again: list[int] = []
    found = swept(path, resume=True, on_progress=lambda progress: again.append(progress.designs))
    assert (found.before, again) == (2, [3, 4])
    expected = swept(whole)
    assert list(read_sweep(path)) == list(read_sweep(whole))
    assert found.designs == expected.designs
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_what_a_killed_sweep_left_goes_only_with_force_and_when_nobody_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    killed_sweep(path, 1)
    (left,) = tmp_path.glob(".s.parquet.*.parts")
    lock = (
        f"import fcntl; f = open({str(left / 'lock')!r}, 'r+')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writes:
        assert writes.stdout is not None
        writes.stdout.readline()
        assert swept(path, resume=True).before == 0
        assert left.exists()
        writes.communicate(b"\n")
    swept(path, force=True)
    assert not left.exists()


def test_parts_that_ask_something_else_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    killed_sweep(path, 1)
    with pytest.raises(InputError, match="another question"):
        swept(path, procs=[8], resume=True)
    assert swept(path, resume=True).before == 1


def test_a_sweep_goes_through_a_symbolic_link_and_into_no_device(tmp_path: Path) -> None:
    link, target = tmp_path / "link.parquet", tmp_path / "far" / "s.parquet"
    target.parent.mkdir()
    link.symlink_to(target)
    swept(link, apps=[SMALL], procs=[8])
    assert link.is_symlink()
    assert list(read_sweep(target))
    with pytest.raises(InputError, match="no file"):
        swept(Path(os.devnull), force=True)


def test_tasks_cut_a_design_along_its_splits() -> None:
    space = space_of(SMALL, a100(8.0), 16, 16, "optimal-execution")
    design = designs_of([SMALL], [a100(8.0)], [16], [16], lambda system: space.axes)[0]
    tasks = design_parts(design, SearchGoal(), 50_000)
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert len(tasks) > 2
    assert [task.block[0] for task in tasks[1:]] == [task.block[1] for task in tasks[:-1]]
    assert (tasks[0].block[0], tasks[-1].block[1]) == (0, len(space.degrees))


@pytest.mark.parametrize("step", ["keep", "remove"])
def test_an_interrupt_while_a_part_or_the_file_is_finished_waits_for_it(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.parquet"
    done = getattr(PartsFolder, step)

    def interrupted(folder: PartsFolder) -> None:
        signal.raise_signal(signal.SIGINT)
        done(folder)

    monkeypatch.setattr(PartsFolder, step, interrupted)
    with pytest.raises(StoppedError, match="after 4 of 4 designs"):
        swept(path)
    assert {row["design"] for row in read_sweep(path)} == {0, 1, 2, 3}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_with_130_and_a_valid_file(tmp_path: Path, number: int) -> None:
    path = tmp_path / "s.parquet"
    procs = ",".join(str(count) for count in range(64, 4096, 16))
    arguments = ["calculon", "sweep", "gpt3-175B", "a100_80g", "--procs", procs, "--batch", "2048", "-o", str(path)]
    with subprocess.Popen(
        [sys.executable, "-m", "meshwright", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    ) as process:
        deadline = time.monotonic() + 120
        while (
            not any(rows.stat().st_size > 1000 for rows in tmp_path.glob(".*parts/begun"))
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        process.send_signal(number)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "is valid and holds them" in error
    assert 0 in {row["design"] for row in read_sweep(path)}


def test_folders_without_parts_of_killed_sweeps_go(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    for parts in (0, 1, 0):
        folder = PartsFolder.make(output)
        folder.begun.write_text("rows")
        if parts:
            folder.keep()
        folder.leave()
    found = [*left_of(output)]
    assert [len(one.parts) for one in found] == [1]
    assert [*tmp_path.glob(".out.parquet.*")] == [found[0].folder]
    found[0].leave()
