"""Scripts as people write them: what is read is what bash starts, or it is asked for."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from benchmarks.recording import record, recorders
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import Launch, Script, launches, read_script

FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.sh") if not path.name.startswith("_"))
"""Files that begin with `_` are sourced or called by others."""


def told(text: str, kind: str) -> list[str]:
    """What a script's first lines say after `# args:`, `# env:` or `# asks:`."""
    match = re.search(rf"^# {kind}:(.*)$", text, re.MULTILINE)
    return shlex.split(match[1]) if match else []


def read(name: str) -> Script:
    path = FOLDER / name
    text = path.read_text()

    def beside(called: str) -> str | None:
        file = FOLDER / Path(called).name
        return file.read_text() if file.is_file() else None

    environment = dict(pair.partition("=")[::2] for pair in told(text, "env"))
    return read_script(text, name=name, arguments=told(text, "args") or None, environment=environment, read=beside)


def differences(launch: Launch, words: list[str]) -> list[str]:
    """Words that are read as something else than bash passes; what is said to be unknown is no difference."""
    found = [word for word in launch.words if word.text or word.unknown is None or not word.unknown.unset]
    if len(found) != len(words):
        return [f"{len(found)} words are read, bash passes {len(words)}"]
    return [
        f"{word.text!r} is read, bash passes {real!r}"
        for word, real in zip(found, words, strict=True)
        if word.unknown is None and word.text != real
    ]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorders(tmp_path_factory.mktemp("machine"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_read_is_what_bash_starts(name: str, programs: Path, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "run")
    text = (FOLDER / name).read_text()
    script = read(name)
    asked = told(text, "asks")
    if asked:
        found = read_flags(script)
        reasons = " ".join(f"{p.field} {p.what} {p.why} {p.fix}" for p in (*found.questions, *found.problems))
        assert found.row is None
        assert all(word in reasons for word in asked), reasons
        return
    environment = dict(pair.partition("=")[::2] for pair in told(text, "env"))
    run = record(
        tmp_path / "run",
        name,
        arguments=told(text, "args"),
        environment=environment,
        programs=programs,
        sealed=False,
    )
    real = run.python_words()
    assert real, "bash starts nothing: the script says nothing"
    found_here = launches(script.commands)
    assert len(found_here) == len(real)
    assert [differences(launch, words) for launch, words in zip(found_here, real, strict=True)] == [[]] * len(real)
    assert (script.broken, script.missing) == ((), ())
