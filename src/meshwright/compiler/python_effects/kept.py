"""Traced values that the user's code keeps behind its trace, in globals, lists and attributes."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import jax

from meshwright.compiler.source_line import is_users, user_frame

_STEPS = 8
"""Containers around a value that are looked through for one that the user owns."""
_MOST = 400
"""Containers that are looked through at all."""


class TraceWatch:
    """Traces that should be gone once a step is read, and values of theirs that somebody keeps."""

    def __init__(self) -> None:
        """Nothing is traced yet."""
        self._traces: list[weakref.ref[Any]] = []
        self.kept: dict[str, str] = {}
        """Where a value is kept, and the line that made it."""

    def watched(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """A function, new to JAX, whose traces are watched.

        Args:
            fun: to be traced.
        """

        def anew(*given: Any) -> Any:
            traced = (value for value in jax.tree.leaves(given) if isinstance(value, jax.core.Tracer))
            self._traces += [weakref.ref(value._trace) for value in islice(traced, 1)]
            return fun(*given)

        return anew

    def look(self) -> None:
        """Find who keeps values of the traces that still live."""
        if all(trace() is None for trace in self._traces):
            return
        gc.collect()
        if all(trace() is None for trace in self._traces):
            return
        new = gc.get_objects()
        traced, young = [one for one in new if isinstance(one, jax.core.Tracer)], set(map(id, new))
        del new
        gc.unfreeze()
        walked: dict[int, Any] = {}
        for value in traced:
            owner = _owner(value, young, ignored=[traced], walked=walked)
            if owner:
                self.kept.setdefault(owner, _made_at(value))


@contextmanager
def keeping_seen() -> Iterator[TraceWatch]:
    """While it is open, objects are told from those before; behind it, values kept are known."""
    watch = TraceWatch()
    gc.freeze()
    try:
        yield watch
        watch.look()
    finally:
        gc.unfreeze()


def _made_at(value: Any) -> str:
    """The user's line that computed a value; empty for an argument."""
    while (info := getattr(value, "_line_info", None)) is None:
        value = getattr(value, "primal", getattr(value, "val", None))
        if not isinstance(value, jax.core.Tracer):
            return ""
    return user_frame(info.traceback)


def _owner(value: Any, young: set[int], ignored: list[Any], walked: dict[int, Any]) -> str:
    """What of the user's holds a value, as words; empty where nothing of his does.

    Objects that the trace has made hold it for whoever holds them, such as modules in a cache of a library. Those that
    hold other values of the trace, too, are walked once: whoever holds them has been found.
    """
    looked = {id(value), id(ignored), id(walked), *map(id, ignored)}
    front: deque[tuple[Any, str, int]] = deque([(value, "", 0)])
    while front and len(looked) < _MOST:
        held, name, depth = front.popleft()
        holders = gc.get_referrers(held)
        looked |= {id(holders), id(front), id(looked)}
        for holder in holders:
            if id(holder) in looked:
                continue
            looked.add(id(holder))
            said, further = _held_by(holder, held, name, looked)
            if said and (id(holder) not in young or isinstance(holder, dict)):
                return said
            if (further is not None or said) and depth < _STEPS and id(holder) not in walked:
                walked[id(holder)] = holder
                front.append((holder, further or name, depth + 1))
        del holders
    return ""


def _held_by(holder: Any, held: Any, name: str, looked: set[int]) -> tuple[str, str | None]:
    """Words for a holder that is the user's, or the name under which to look further; None where it ends."""
    if isinstance(holder, dict):
        key = next((one for one, value in holder.items() if value is held), None)
        file = holder.get("__file__") if isinstance(holder.get("__name__"), str) else None
        if "__builtins__" in holder:
            return (f"the global {key}", None) if is_users(str(file or "<shell>")) else ("", None)
        return "", name or (str(key) if isinstance(key, str) else "")
    if isinstance(holder, types.FrameType):
        if not is_users(holder.f_code.co_filename):
            return "", None
        local = next((one for one, value in holder.f_locals.items() if value is held), name)
        return f"{local or 'a variable'} of {holder.f_code.co_name}", None
    if isinstance(holder, types.FunctionType):
        code = holder.__code__
        if not is_users(code.co_filename):
            return "", None
        cells = zip(code.co_freevars, holder.__closure__ or (), strict=True)
        variable = next((one for one, cell in cells if id(cell) in looked), name)
        return f"{variable or 'a default'} around {code.co_name}", None
    if isinstance(holder, types.ModuleType | type | types.CodeType | types.GeneratorType):
        return "", None
    if isinstance(holder, list | tuple | set | deque | types.CellType):
        return "", name
    owner = type(holder)
    if isinstance(holder, jax.core.Tracer) or owner.__module__.startswith(("jax", "meshwright")):
        return "", None
    fields = getattr(holder, "__dict__", {})
    attribute = next((one for one, value in fields.items() if value is held), name)
    if is_users(str(getattr(sys.modules.get(owner.__module__), "__file__", None) or "<shell>")):
        return f"{attribute or 'an attribute'} of {owner.__name__}", None
    return "", attribute
