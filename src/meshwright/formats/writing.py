"""Files that a verb writes: only where the user says, whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Literal

from meshwright.errors import InputError, Problem
from meshwright.interruptions import uninterrupted

written: deque[Path] = deque(maxlen=100)
"""The last files and folders of the command that runs, which somebody who stops it wants to know."""

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "your disk quota is used up"}
"""What an error says whose remedy is room."""


def check_directory(directory: str | Path, *, force: bool) -> None:
    """Whether files may be written into a folder.

    Args:
        directory: the folder; it need not exist yet.
        force: whether it may hold files.

    Raises:
        InputError: it is a file, it holds files, or it cannot be looked at.
    """
    folder = Path(directory)
    try:
        if not str(directory).strip():
            raise _refused(folder, "its name is empty", "name a folder")
        if folder.exists() and not folder.is_dir():
            raise _refused(folder, "it is a file", "name a folder")
        if folder.is_dir() and not force and (held := sorted(path.name for path in folder.iterdir())):
            shown = ", ".join(held[:3]) + (", ..." if len(held) > 3 else "")
            raise _refused(folder, f"it holds {shown}", "name a new or empty folder, or write over with --force")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _refused(folder, reason_of(error), "check the path and its permissions") from None


def write_folder(directory: str | Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """Write files into a folder, all or none: they are written beside it and moved when complete.

    Args:
        directory: new, empty, or any folder with `force`.
        files: content by name.
        force: write over files of the same names.

    Raises:
        InputError: the folder cannot be used or written, or a name leads out of it.
    """
    check_directory(directory, force=force)
    for name in files:
        if name in ("", ".", "..") or PurePath(name).name != name or "\\" in name or "\0" in name:
            raise _refused(Path(directory), f"{name[:80]!r} is no name of a file in it", "name it in plain letters")
    with uninterrupted():
        _write_folder(Path(directory), files)
        written.append(Path(directory))


def _write_folder(folder: Path, files: Mapping[str, str]) -> None:
    staging = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = _beside(folder)
        staging.mkdir()
        for name, text in files.items():
            path = staging / name
            path.write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | (mode & 0o444) >> 2)  # whoever may read it may run it
        if not folder.exists():
            staging.replace(folder)
            return
        for name in files:
            (staging / name).replace(folder / name)
    except (OSError, ValueError) as error:
        raise _refused(folder, reason_of(error), remedy_of(error, "folder")) from None
    finally:
        if staging is not None and staging.exists():
            shutil.rmtree(staging, ignore_errors=True)


def check_file(path: str | Path) -> None:
    """Whether a file can be written there, as far as can be seen without writing.

    Args:
        path: the file; it need not exist yet.

    Raises:
        InputError: the path is empty, a folder, or in a folder that does not exist.
    """
    target = Path(path)
    try:
        if not str(path).strip():
            raise _refused(target, "its name is empty", "name a file")
        if target.is_dir():
            raise _refused(target, "it is a folder", "name a file in it")
        if not target.absolute().parent.is_dir():
            raise _refused(target, f"there is no folder {str(target.parent)[:200]!r}", "make the folder first")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _refused(target, reason_of(error), remedy_of(error)) from None


def write_file(path: str | Path, content: str | bytes, *, make_folder: bool = False) -> None:
    """Write a file, whole or not at all, whatever happens meanwhile: a kill, a full disk, another writer.

    The content goes into a file of its own in the same folder, reaches the disk, and takes the name in one step.

    Args:
        path: the file; written over if it exists. A symbolic link stays one, and what it names is written.
        content: text, in UTF-8, or bytes.
        make_folder: make the folder it goes into.

    Raises:
        InputError: the path cannot be written.
    """
    target = Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)
    if make_folder:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise _refused(target, reason_of(error), remedy_of(error, "folder")) from None
    check_file(target)
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise _refused(target, reason_of(error), remedy_of(error)) from None
    if target.exists() and not target.is_file():
        # A device or a pipe, such as /dev/stdout, has no content to lose and no name to give.
        try:
            _write_into(target, data)
        except OSError as error:
            raise _refused(target, reason_of(error), remedy_of(error)) from None
        return
    with uninterrupted():
        _write_file(target, data)
        written.append(target)


def _write_into(target: Path, data: bytes) -> None:
    """Write to a device or a pipe, at once: `open` alone would wait until somebody reads a pipe."""
    if not target.is_fifo():
        target.write_bytes(data)
        return
    with open(os.open(target, os.O_WRONLY | os.O_NONBLOCK), "wb") as stream:
        os.set_blocking(stream.fileno(), True)
        stream.write(data)


def _write_file(target: Path, data: bytes) -> None:
    temporary = None
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        temporary = _beside(target)
        # A new file has the mode that the umask leaves; one that is written over is private until it has its own.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
        temporary = None
    except (OSError, ValueError) as error:
        raise _refused(target, reason_of(error), remedy_of(error)) from None
    finally:
        if temporary is not None:
            with suppress(OSError, ValueError):
                temporary.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A name in the same folder that nobody else takes, for what is not complete yet."""
    return path.with_name(f".{path.name[:40]}-{secrets.token_hex(8)}.part")


def reason_of(error: OSError | ValueError) -> str:
    """Why a path cannot be written.

    Args:
        error: what the system said.
    """
    if isinstance(error, OSError) and error.errno in FULL:
        return FULL[error.errno]
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def remedy_of(error: OSError | ValueError, kind: Literal["file", "folder"] = "file") -> str:
    """What helps where a path cannot be written.

    Args:
        error: what the system said.
        kind: what is to be written.

    Returns:
        How to make room on a full disk or quota; else another place to write to.
    """
    if isinstance(error, OSError) and error.errno in FULL:
        return f"free space on it, or name a {kind} on a disk that has room"
    return "name a file in a folder you can write to" if kind == "file" else "name a folder you can write to"


def _refused(path: Path, why: str, fix: str) -> InputError:
    problem = Problem(what=f"{str(path)[:200]!r} cannot be written", why=why, fix=fix, field="output")
    return InputError(problem, code="MW208")
