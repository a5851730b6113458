"""Small text files from outside: read whole, or one clear error."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
import tomllib
from pathlib import Path
from typing import IO

from meshwright.errors import InputError, UnsupportedError

MAX_BYTES = 16 * 1024**2
"""Nothing this package reads as text comes near it; larger files are refused unread."""
LANGUAGES = {".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}
"""Languages of tables of keys, by the ending of their file."""
PIPE_WAIT_S = 30.0
"""A pipe has to be written whole in it: nobody may ever write into one that has a name."""
MOST_PIPES = 8
"""Most pipes whose contents are kept at a time."""
_PATH_SHOWN = 80
_NUMBERED = re.compile(r"/(?:dev|proc/[^/]+)/fd/\d+")
_YAML_START = re.compile(r"""(?:%YAML|---(?:\s|$)|(?:[\w.-]+|"[^"]*"|'[^']*')\s*:(?:\s|$))""")
_written: dict[tuple[int, int], bytes] = {}
"""What was read from pipes that have no name, by device and inode: they give it once, and some files are read twice."""


def path_end(path: str) -> str:
    """A path, or whole parts of its end where it is long.

    Args:
        path: a path on any machine.
    """
    cut = path.find("/", max(0, len(path) - _PATH_SHOWN))
    return path if len(path) <= _PATH_SHOWN else f"...{path[cut if cut >= 0 else -_PATH_SHOWN :]}"


def read_text(path: str | Path, noun: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The text of a small UTF-8 file.

    Args:
        path: the file.
        noun: what it should hold, for the error: `cluster file`.
        max_bytes: larger files are refused without being read.

    Raises:
        InputError: absent, not a file, unreadable, empty, too large or binary.
    """

    def refuse(why: str, fix: str) -> InputError:
        return InputError(what=f"{noun} {str(path)!r} cannot be used", why=why, fix=fix, code="MW201")

    file = Path(path)
    try:
        status = file.stat()
        if stat.S_ISDIR(status.st_mode):
            raise refuse("it is a folder", "name the file inside it")
        content = content_of(file, max_bytes=max_bytes) if status.st_size <= max_bytes else b""
        if (size := max(status.st_size, len(content))) > max_bytes:
            why = f"it is too large: {size:,} bytes; at most {max_bytes:,} are read"
            raise refuse(why, f"this is probably not a {noun}")
    except InputError:
        raise
    except FileNotFoundError:
        raise refuse("there is no such file", "check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise refuse(f"it cannot be read: {reason}", "check the path and its permissions") from None
    if not content.strip():
        raise refuse("it is empty", f"write a {noun}, or name another file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise refuse("it is binary, not UTF-8 text", f"name a {noun} in text form")
    return text


def content_of(path: str | Path, *, max_bytes: int) -> bytes:
    """What a file holds, or what is written into a pipe, such as `<(jq . config.json)` of bash.

    Args:
        path: the file or pipe.
        max_bytes: the most bytes of more, one byte too many is returned.

    Raises:
        OSError: absent, unreadable, a folder, a device or a socket, or a pipe that is not written whole in
            `PIPE_WAIT_S`.
    """
    end_s, limit = time.monotonic() + PIPE_WAIT_S, max_bytes + 1
    with opened(path) as stream:
        number = stream.fileno()
        status = os.fstat(number)
        if not stat.S_ISFIFO(status.st_mode):
            return stream.read(limit)
        pipe = (status.st_dev, status.st_ino)
        content = bytearray(_written.pop(pipe, b""))
        while len(content) < limit and (part := os.read(number, min(limit - len(content), 1 << 20))):
            content += part
            _wait(number, end_s)
    if has_no_name(path):
        _written[pipe] = bytes(content)
        for oldest in list(_written)[:-MOST_PIPES]:
            del _written[oldest]
    return bytes(content[:limit])


def has_no_name(path: str | Path) -> bool:
    """Whether a path is the number of an open file, such as `/dev/fd/63` for `<(...)` of bash: it tells no content."""
    return _NUMBERED.fullmatch(str(path)) is not None


def opened(path: str | Path) -> IO[bytes]:
    """A file opened for reading, or a pipe that somebody wrote into or closed.

    Args:
        path: the file or pipe.

    Raises:
        OSError: absent, unreadable, a folder, a device or a socket, or a pipe that nobody wrote into in `PIPE_WAIT_S`.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return open(path, "rb")
    if not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is a device or a socket, no file")
    # Without O_NONBLOCK `open` itself waits for a writer.
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    try:
        _wait(stream.fileno(), time.monotonic() + PIPE_WAIT_S)
        os.set_blocking(stream.fileno(), True)
    except BaseException:
        stream.close()
        raise
    return stream


def _wait(number: int, end_s: float) -> None:
    """Wait until a pipe has something to read or is closed.

    Raises:
        TimeoutError: it has not at that moment of the monotonic clock.
    """
    import select

    readable = select.poll()
    readable.register(number, select.POLLIN)
    if not readable.poll(1e3 * max(0.0, end_s - time.monotonic())):
        raise TimeoutError(errno.ETIMEDOUT, f"it is a pipe that was not written and closed within {PIPE_WAIT_S:g} s")


def read_table(path: str | Path, noun: str) -> dict[str, object]:
    """A TOML, JSON or YAML file (by its ending; by its text where that is none of theirs) as a table of keys.

    Raises:
        InputError: the file cannot be read, its syntax is wrong, or it is no table of keys.
        UnsupportedError: a YAML file where no YAML reader is installed.
    """
    text = read_text(path, noun)
    language = LANGUAGES.get(Path(path).suffix.lower()) or language_of(text)
    data = parsed(text, language, f"{noun} {str(path)!r}")
    if not isinstance(data, dict):
        raise InputError(
            what=f"{noun} {str(path)!r} holds a {type(data).__name__}",
            why="it must be a table of keys at the top",
            fix="see the example of the file in the documentation",
            code="MW202",
        )
    return {str(key): value for key, value in data.items()}


def language_of(text: str) -> str:
    """JSON, YAML or TOML: how the first line of a table that is no comment starts tells them apart.

    Args:
        text: the text of a file, not empty.
    """
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if first.startswith("{"):
        return "JSON"
    return "YAML" if _YAML_START.match(first) else "TOML"


def parsed(text: str, language: str, noun: str) -> object:
    """What text in JSON, HJSON, YAML or TOML holds.

    Args:
        text: the text of a file.
        language: one of these names.
        noun: what the text is of, for the error.

    Raises:
        InputError: its syntax is wrong.
        UnsupportedError: YAML where no YAML reader is installed.
    """
    try:
        if language == "JSON":
            return json.loads(text)
        if language == "HJSON":
            from meshwright.formats import hjson  # few files are more than JSON

            return hjson.parse(text)
        if language == "YAML":
            from meshwright.formats.yaml_text import yaml_values  # few files are

            return yaml_values(text, noun)
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnsupportedError):
            raise
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(
            what=f"{noun} is not valid {language}", why=reason, fix=f"correct the {language} syntax", code="MW202"
        ) from None
