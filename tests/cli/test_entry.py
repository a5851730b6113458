"""The way in and out: help, version, exit codes, streams that close, bugs that say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main
from tests.cli.conftest import Run

COMMAND = [sys.executable, "-c", "import sys; from meshwright.cli import main; sys.exit(main())"]
VERBS = (
    *(
        "plan",
        "estimate",
        "check",
        "explain",
        "compare",
        "size",
        "export",
        "schedule",
        "validate",
        "calibrate",
        "doctor",
    ),
    *("models list", "models show", "models add", "gpus list", "gpus show", "gpus add"),
)


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_screen_and_starts_with_an_example(run: Run, verb: str) -> None:
    ran = run(*verb.split(), "--help")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) <= 60
    example = next(number for number, line in enumerate(lines) if f"  meshwright {verb}" in line)
    assert example < 10
    assert "--json" in ran.out


def test_help_names_rare_options_and_help_all_describes_them(run: Run) -> None:
    usual, everything = (run("plan", flag).out for flag in ("--help", "--help-all"))
    assert "which --help-all describes" in usual
    assert "--moment-dtype" in usual.replace("\n ", "").replace(" ", "")
    assert "--moment-dtype NAME" in everything
    assert "--moment-dtype NAME" not in usual
    assert run("plan", "gpt2", "--gpus", "2xH100", "--gbs", "8", "--moment-dtype", "bf16").code == 0


def test_nothing_and_help_show_all_verbs(run: Run) -> None:
    assert run().out == run("--help").out
    for verb in VERBS:
        assert verb.split()[0] in run("--help").out


def test_a_group_alone_shows_its_verbs(run: Run) -> None:
    ran = run("models")
    assert ran.code == 0
    assert all(verb in ran.out for verb in ("list", "show", "add"))


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("meshwright ")


@pytest.mark.parametrize("words", [(), ("models",), ("gpus",), ("clusters",), ("calculon",)])
def test_lists_of_verbs_cut_no_sentence(run: Run, words: tuple[str, ...]) -> None:
    assert "..." not in run(*words, "--help").out.partition("Commands:")[2]


def test_help_loads_no_numbers() -> None:
    code = "import sys; from meshwright.cli import main; main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("numpy", "pydantic", "rich", "meshwright.estimate", "meshwright.search", "meshwright.library"):
        assert f"'{heavy}'" not in ran.stderr


def test_an_unexpected_exception_is_called_a_bug(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("wheels came off")

    monkeypatch.setattr("meshwright.app.library.list_models", broken)
    ran = run("models", "list")
    assert ran.code == 1
    assert "error[MW100]: RuntimeError: wheels came off" in ran.err
    assert "this is a bug" in ran.err
    assert "in broken" not in ran.out
    assert run("models", "list", "--json").document["exit_code"] == 1
    monkeypatch.setenv("MESHWRIGHT_DEBUG", "1")
    with pytest.raises(RuntimeError, match="wheels"):
        main(["models", "list"])


@pytest.mark.parametrize("as_json", [False, True])
def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.app.library.list_models", interrupted)
    ran = run("models", "list", *(["--json"] if as_json else []))
    assert ran.code == 130
    assert "interrupted" in (ran.out if as_json else ran.err)


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "models", "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_no_colours_in_a_pipe_nor_with_no_color(run: Run) -> None:
    assert "\x1b" not in run("gpus", "list").out
    assert "\x1b" not in run("gpus", "list", "--no-color").out


def test_the_command_runs_under_an_ascii_locale() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    ran = subprocess.run(
        [*COMMAND, "models", "show", "llama-3-8b"], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0
    assert "8,030,261,248" in ran.stdout


def test_a_whole_command_line_in_a_process_of_its_own(tmp_path: Path) -> None:
    ran = subprocess.run([*COMMAND, "gpus", "show", "H1000"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 4
    assert ran.stdout == ""
    assert ran.stderr.startswith("error[MW402]: unknown device 'H1000'")
