"""Where in the user's code something stands."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.extend import core

_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def line_of(eqn: core.JaxprEqn) -> str:
    """The innermost line of the user's code that an equation comes from, as `step.py:12 (loss)`; empty if unknown.

    Args:
        eqn: of a traced program.
    """
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if _is_users(frame.file_name):
            return f"{_short(frame.file_name)}:{frame.line_num} ({frame.function_name})"
    return ""


def start_of(fun: Callable[..., Any]) -> str:
    """Where a function is written, as `train_step at step.py:12`; its name alone if unknown.

    Args:
        fun: of the user, decorated or partly applied.
    """
    plain: Any = fun
    while hasattr(plain, "__wrapped__") or hasattr(plain, "func"):
        plain = getattr(plain, "__wrapped__", None) or plain.func
    name = getattr(plain, "__name__", type(plain).__name__)
    code = getattr(plain, "__code__", None)
    return name if code is None else f"{name} at {_short(code.co_filename)}:{code.co_firstlineno}"


def _is_users(path: str) -> bool:
    return not path.startswith((_OURS + os.sep, *_LIBRARIES, "<frozen"))


def _short(path: str) -> str:
    """Relative to the working folder where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def frame_of(error: BaseException) -> str:
    """The innermost line of the user's code that an error went through, as `step.py:12 (loss)`; empty if unknown.

    Args:
        error: that was raised.
    """
    found, left = "", error.__traceback__
    while left is not None:
        code = left.tb_frame.f_code
        if _is_users(code.co_filename):
            found = f"{_short(code.co_filename)}:{left.tb_lineno} ({code.co_name})"
        left = left.tb_next
    return found
