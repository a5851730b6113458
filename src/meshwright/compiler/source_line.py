"""Where in the user's code something stands."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from jax.extend import core

_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def line_of(eqn: core.JaxprEqn) -> str:
    """The innermost line of the user's code that an equation comes from, as `step.py:12 (loss)`; empty if unknown.

    Args:
        eqn: the equation of a traced program.
    """
    return user_frame(eqn.source_info.traceback)


def user_frame(traceback: Any) -> str:
    """The innermost line of the user's code in a traceback of JAX, as `step.py:12 (loss)`; empty if unknown.

    Args:
        traceback: the traceback of JAX, or None.
    """
    for frame in traceback.frames if traceback is not None else ():
        if is_users(frame.file_name):
            return f"{_short(frame.file_name)}:{frame.line_num} ({frame.function_name})"
    return ""


def plain_function(fun: Callable[..., Any]) -> Any:
    """The user's function under what decorates or partly applies it.

    Args:
        fun: the function of the user.
    """
    plain: Any = fun
    while hasattr(plain, "__wrapped__") or hasattr(plain, "func"):
        plain = getattr(plain, "__wrapped__", None) or plain.func
    return plain


def start_of(fun: Callable[..., Any]) -> str:
    """Where a function is written, as `train_step at step.py:12`; its name alone if unknown.

    Args:
        fun: the function of the user, decorated or partly applied.
    """
    plain = plain_function(fun)
    name = getattr(plain, "__name__", type(plain).__name__)
    code = getattr(plain, "__code__", None)
    return name if code is None else f"{name} at {_short(code.co_filename)}:{code.co_firstlineno}"


def place_in(code: CodeType, line: int | None) -> str:
    """A line as `step.py:12 (loss)`.

    Args:
        code: the code of the function.
        line: the line of its file.
    """
    return f"{_short(code.co_filename)}:{line} ({code.co_name})"


def is_users(path: str) -> bool:
    """Whether a file is the user's, not of a library.

    Args:
        path: the path of a file, or what Python calls code without one.
    """
    return not path.startswith((_OURS + os.sep, *_LIBRARIES, "<frozen"))


def _short(path: str) -> str:
    """Relative to the working folder where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def frame_of(error: BaseException) -> str:
    """The innermost line of the user's code that an error went through, as `step.py:12 (loss)`; empty if unknown.

    Args:
        error: the error that was raised.
    """
    found, left = "", error.__traceback__
    while left is not None:
        code = left.tb_frame.f_code
        if is_users(code.co_filename):
            found = place_in(code, left.tb_lineno)
        left = left.tb_next
    return found
