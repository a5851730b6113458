"""Text of others: what it says, or one error, within a bounded time."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.formats import files
from meshwright.formats.files import content_of, parsed, read_text
from meshwright.formats.yaml_text import MOST_VALUES

FOLDED = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
FOLDED += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]


def test_aliases_are_read() -> None:
    assert parsed("a: &a {b: 1}\nc: *a\nd: [*a, *a]", "YAML", "file") == {
        "a": {"b": 1},
        "c": {"b": 1},
        "d": [{"b": 1}] * 2,
    }
    assert parsed("a: &a 1\nb: {<<: {c: *a}}", "YAML", "file") == {"a": 1, "b": {"c": 1}}


def test_aliases_of_aliases_that_stand_for_more_than_fits_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        parsed("\n".join(FOLDED), "YAML", "file")
    assert f"{MOST_VALUES:,}" in refused.value.problems[0].why
    parsed("\n".join(FOLDED[:5]), "YAML", "file")


@pytest.mark.parametrize("text", ["a: &a {b: *a}", "&a [*a]", "a: &a [1, {b: [*a]}]"])
def test_an_alias_within_what_it_names_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parsed(text, "YAML", "file")
    assert "an alias is inside what it names" in refused.value.problems[0].why


@pytest.mark.parametrize(
    "text", ["!!bool maybe", '!!int ""', '!!float ""', "!!timestamp soon", "!!int 0x", "2001-99-99", "!!python/name:os"]
)
def test_a_value_that_does_not_suit_its_tag_is_a_wrong_file(text: str) -> None:
    with pytest.raises(InputError, match="not valid YAML"):
        parsed(f"a: {text}", "YAML", "file")


@pytest.mark.parametrize(
    ("language", "text"), [("JSON", "[" * 100_000), ("TOML", "a = " + "[" * 100_000), ("YAML", "[" * 5_000)]
)
def test_deep_nesting_is_a_wrong_file(language: str, text: str) -> None:
    with pytest.raises(InputError, match=f"not valid {language}"):
        parsed(text, language, "file")


@pytest.mark.parametrize("size", [1, 65_536, 300_000])
def test_what_is_written_into_a_pipe_is_read_whole(tmp_path: Path, size: int) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"sleep 0.05; head -c {size} /dev/zero | tr '\\0' x > {pipe}"]):
        assert read_text(pipe, "file") == "x" * size


def test_more_than_may_be_read_is_refused_from_a_pipe_too(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"yes 2>/dev/null > {pipe}"]) as writer:
        with pytest.raises(InputError, match=r"too large: 10,001 bytes; at most 10,000"):
            read_text(pipe, "file", max_bytes=10_000)
        assert writer.wait(60)


def test_a_pipe_that_stays_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    keeps_open = os.open(pipe, os.O_RDWR)
    os.write(keeps_open, b"begun")
    try:
        with pytest.raises(InputError, match=r"not written and closed within 0\.2 s"):
            read_text(pipe, "file")
    finally:
        os.close(keeps_open)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _socket, _device, Path.mkdir])
def test_what_is_no_file_ends_at_once(
    tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.1)
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    make(Path("it"))
    with pytest.raises(OSError, match="it is a"):
        content_of("it", max_bytes=100)
    with pytest.raises(InputError, match="it is a"):
        read_text("it", "file")
