"""Every command in README and guides runs, and prints what the page says it prints.

A block ```console holds commands after `$ ` and what they print; a line `...` stands for any lines. A command without
output below it must only succeed, and one whose output is an `error[...]` or `violations: ...` must fail. `make
outputs` writes the present output into the pages. Commands of other blocks run, too; of those that would train for
minutes or need a framework, the options are looked up.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from itertools import groupby
from pathlib import Path
from unittest import mock

import pytest

from meshwright.cli import main
from meshwright.library.devices import devices
from meshwright.library.models import names
from tests import once
from tests.virtual_devices import QUICK_COMPILATION

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
UPDATE = bool(os.environ.get("MESHWRIGHT_UPDATE_DOCS"))


@dataclass(frozen=True)
class Example:
    """One command of a page."""

    page: Path
    command: str
    expected: tuple[str, ...]


def examples(page: Path) -> list[Example]:
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *output = part.rstrip("\n").split("\n")
            found.append(Example(page, command, tuple(line for line in output if line.strip() or output)))
    return found


FORM = re.compile(r"\b(FILE|DIR|PLAN|NAME|MODEL|APP|ROWS)\b|MEASURED\.csv|run\.log|mine\.toml|\./config\.json|\.\.\.|<")
"""What a quoted command has that stands for another word."""


def commands_in_tables() -> list[Example]:
    """Commands quoted in tables and sentences: `meshwright VERB ...`, without forms and names of verbs."""
    found = {
        command: Example(page, command, ())
        for page in PAGES
        for command in re.findall(r"`(meshwright (?!VERB)[^`]+)`", page.read_text())
        if not FORM.search(command) and ("list" in command or not re.fullmatch(r"meshwright [a-z -]+", command))
    }
    return list(found.values())


ALL = [example for page in PAGES for example in examples(page) if example.command.startswith("meshwright ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages' commands read, the same for all workers of a session."""
    where = once.folder("docs") or tmp_path_factory.mktemp("docs")
    GIVEN.update(json.loads(once.made("files of pages", lambda: json.dumps(given_in(where)))))
    return where


def given_in(where: Path) -> list[str]:
    """Write the files that no command of the pages writes, and name them."""
    answered("meshwright plan llama-3.1-70b --gpus 64xH100 -o plans.json", where)
    run("meshwright export plans.json --to megatron -o launched", where)
    texts = {"launch.sh": (where / "launched" / "train.sh").read_text()}
    texts |= dict.fromkeys(("plan.json", "a.json", "b.json"), (where / "launched" / "plan.json").read_text())
    for page in PAGES:
        texts |= re.findall(
            r"^`([\w.-]+\.(?:json|csv|toml|sh|yaml))`:\n\n```(?:json|csv|toml|bash|yaml)\n(.*?)^```",
            page.read_text(),
            re.M | re.S,
        )
    for name, text in texts.items():
        (where / name).write_text(text)
    return [*texts, "launched"]


def written_by(command: str) -> str | None:
    """The file or folder that an example writes."""
    found = re.search(r" (?:-o|--csv) (\S+)$", command)
    return found and found[1]


def fenced(page: Path) -> list[tuple[str, str]]:
    """Kind and text of every block of a page."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S)


def commands_without_output() -> list[Example]:
    """Commands of plain blocks, and of those whose output is not compared: it is measured."""
    return [
        Example(page, command, ())
        for page in PAGES
        for kind, block in fenced(page)
        for line in block.split("\n")
        if kind in ("", "text", "sh", "bash") and (command := line.removeprefix("$ ")).startswith("meshwright ")
    ]


WRITERS = {
    name: one.command for one in reversed([*ALL, *commands_without_output()]) if (name := written_by(one.command))
}
"""The first example that writes each file or folder."""
GIVEN: set[str] = set()
"""Files and folders of the folder that no example has to write."""


def answered(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    """What an example prints, run once, after those examples that write what it reads: tests run in any order."""
    for name, writer in WRITERS.items():
        read = re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])", command)
        if read and name != written_by(command) and name not in GIVEN:
            answered(writer, where)

    def ran() -> str:
        done = run(command, where)
        return json.dumps([done.returncode, done.stdout, done.stderr])

    return subprocess.CompletedProcess(command, *json.loads(once.made(f"{where}: {command}", ran)))


OF_THEIR_OWN = ("run", "verify", "profile", "doctor", "serve")
"""Verbs that choose the devices of their process before JAX starts, or speak of the process."""


def run(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(command)
    assert program == "meshwright"
    words = [sys.executable, "-m", "meshwright", *arguments]
    settings = {"NO_COLOR": "1", "COLUMNS": "120"}
    if arguments[:1] == ["web"]:
        return served([*words, "--no-browser"], where, {**os.environ, **settings})
    if arguments[:1] and arguments[0] not in OF_THEIR_OWN:
        return run_here(arguments, where, settings)
    environment = {**os.environ, **settings, "XLA_FLAGS": QUICK_COMPILATION}
    return subprocess.run(words, cwd=where, capture_output=True, text=True, check=False, env=environment)


def run_here(arguments: list[str], where: Path, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command in this process, which has loaded the package already."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, settings),
        contextlib.chdir(where),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def served(words: list[str], where: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that serves until it is interrupted, which it is once it has said its address."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=where, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, first + rest, errors)


def matches(expected: tuple[str, ...], printed: list[str]) -> bool:
    """Whether the output is what the page says; `...` stands for any lines."""
    pattern = "\n".join("(?s:.*)" if line.strip() == "..." else re.escape(line.rstrip()) for line in expected)
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in printed)) is not None


@pytest.mark.parametrize("example", ALL, ids=lambda example: f"{example.page.name}: {example.command}")
def test_a_command_prints_what_its_page_says(example: Example, folder: Path) -> None:
    result = answered(example.command, folder)
    assert "Traceback" not in result.stderr
    first = example.expected[0] if example.expected else ""
    refused = first.startswith("error[")
    violated = any(line.startswith("violations: ") for line in example.expected)
    assert (result.returncode != 0) == (refused or violated), result.stderr
    printed = (result.stderr if refused else result.stdout).rstrip("\n").split("\n")
    if not example.expected:
        return
    if UPDATE and not matches(example.expected, printed):
        update(example, printed)
        return
    assert matches(example.expected, printed), difference(example, printed)


@pytest.mark.parametrize("example", commands_in_tables(), ids=lambda example: example.command)
def test_a_quoted_command_exists_and_runs(example: Example, folder: Path) -> None:
    result = answered(example.command, folder)
    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 5), f"{example.command}\n{result.stderr}"


NOT_ASKED = {
    "meshwright compare first-launch/plan.json --with-run run.log": "the log is of the reader's own run",
    "meshwright check llama-3-8b train.sh --gpus 8xH100 --watch": "it waits for the reader's next edit",
    "meshwright serve --port 8417 --workers 2 --queue jobs.db": "tests/service runs it",
}
"""Commands of blocks without output that no test starts, whose options are looked up instead."""
TOO_LONG = {"run": "it trains for minutes", "verify": "it trains twice", "xray": "it needs a framework beside it"}
"""Verbs of such blocks that no test of pages starts; `make test-runs` and `make test-targets` start others of them."""


@pytest.mark.parametrize("example", commands_without_output(), ids=lambda example: example.command)
def test_a_command_of_a_plain_block_runs(example: Example, folder: Path) -> None:
    words = shlex.split(example.command)
    if example.command in NOT_ASKED or words[1] in TOO_LONG:
        described = answered(f"meshwright {words[1]} --help-all", folder).stdout
        assert all(word in described for word in words if word.startswith("--"))
        return
    result = answered(example.command, folder)
    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 5), result.stderr


PROGRAMS = [
    pytest.param(program, id=f"{page.name}: {place}")
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "api.md")
    for place, (kind, program) in enumerate(fenced(page))
    if kind == "python" and program.startswith("import meshwright")
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_first_pages_runs(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def difference(example: Example, printed: list[str]) -> str:
    """What a page says (-) and what its command prints (+), and how to write that into the page."""
    now = excerpt(example.expected, [line.rstrip() for line in printed])
    lines = [line.rstrip() for line in example.expected]
    apart = unified_diff(lines, now, example.page.name, "printed now", lineterm="", n=1)
    again = f"where what is printed now is right, `make outputs PAGES={example.page.name}` writes it into the page"
    return "\n".join([f"$ {example.command}", *apart, again])


def update(example: Example, printed: list[str]) -> None:
    """Write the present output below the command, cut where the page cuts it."""
    text = example.page.read_text()
    old = "\n".join([f"$ {example.command}", *example.expected])
    lines = excerpt(example.expected, [line.rstrip() for line in printed])
    example.page.write_text(text.replace(old, "\n".join([f"$ {example.command}", *lines])))


def excerpt(expected: Sequence[str], printed: list[str]) -> list[str]:
    """The part of an output that a page shows of it: its first lines, and behind each `...` those most like the old."""
    found: list[str] = []
    at, first = 0, True
    for cut, run in groupby(expected, key=lambda line: line.strip() == "..."):
        part = list(run)
        if cut:
            found += part
        else:
            starts = [at] if first else range(at, max(at, len(printed) - len(part)) + 1)
            start = max(starts, key=lambda place: alike(part, printed[place : place + len(part)]))
            at = start + len(part)
            found += printed[start:at]
        first = False
    return found if expected and expected[-1].strip() == "..." else [*found, *printed[at:]]


def alike(old: Sequence[str], new: Sequence[str]) -> float:
    """How much of lines is the same but for numbers."""
    plain = (re.sub(r"[0-9][0-9.,]*", "0", "\n".join(lines)) for lines in (old, new))
    return SequenceMatcher(None, *plain).ratio()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:src/meshwright|tests|docs|benchmarks)/[^`\s]+)`", page.read_text()))
    missing = {path for path in named if "NAME" not in path and not (ROOT / path).exists()}
    assert not missing


def test_the_pages_hold_examples() -> None:
    assert ALL
    assert any(example.expected for example in ALL)


def test_output_that_differs_is_noticed() -> None:
    assert matches(("a", "...", "d"), ["a", "b", "c", "d"])
    assert not matches(("a", "b"), ["a", "c"])


def test_a_page_that_differs_is_told_with_the_command_that_writes_it() -> None:
    example = Example(ROOT / "docs" / "look.md", "meshwright doctor", ("plan 1.2 s", "...", "end"))
    told = difference(example, ["plan 1.4 s", "memory 7", "end"]).split("\n")
    assert {"$ meshwright doctor", "-plan 1.2 s", "+plan 1.4 s"} <= set(told)
    assert "make outputs PAGES=look.md" in told[-1]


def test_an_output_is_cut_where_the_page_cuts_it() -> None:
    expected = ("plan 1.2 s", "...", "search 3 plans", "...")
    assert excerpt(expected, ["plan 1.4 s", "memory 7", "search 15 plans", "end"]) == [
        *("plan 1.4 s", "...", "search 15 plans", "..."),
    ]
    assert excerpt(("a", "b"), ["a", "c", "d"]) == ["a", "c", "d"]


def test_the_readme_counts_what_is_built_in() -> None:
    """It said 51 accelerators when there were 95."""
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"one of {len(names())} built in" in text
    assert f"a cluster ({len(devices())} accelerators built in" in text


def test_the_page_on_tests_states_as_many_questions_and_doors_as_there_are() -> None:
    from tests import test_repeatable as repeated
    from tests.answers.questions import QUESTIONS
    from tests.fuzz.doors import DOORS
    from tests.fuzz.readers import READERS

    page = " ".join((ROOT / "docs" / "how-it-is-tested.md").read_text(encoding="utf-8").split())
    asked = (repeated.QUESTIONS, repeated.MORE, repeated.OF_PLANS, repeated.OF_NUMBERS, repeated.OF_RUNS)
    assert f"{len(QUESTIONS)} questions still give" in page
    assert f"ten runs of {sum(map(len, asked))} questions" in page
    assert f"`make repeats` asks {sum(map(len, asked))} questions" in page
    assert f"inputs for {len(DOORS)} entry points" in page
    assert f"In addition, {len(READERS)} readers" in page
