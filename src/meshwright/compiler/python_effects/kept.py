"""Traced values that the user's code keeps behind its trace, in globals, lists and attributes."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
            fun: the function to be traced.
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
        traced = [one for one in new if isinstance(one, jax.core.Tracer)]
        if not traced:
            return  # caches of JAX may keep a trace, whose values are gone
        walk = _Walk(traced, frozenset(map(id, new)))
        del new
        # Objects from before are frozen, so that only those the trace has made are searched here, and those once below.
        walk.outward(gc.get_referrers)
        gc.unfreeze()
        walk.outward(walk.holders_from_before())
        for owner, value in walk.owners.items():
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


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """An object around a traced value."""

    itself: Any
    name: str
    """Name under which it is kept, as far as it is known."""
    depth: int
    """Objects between it and the value."""
    value: Any


class _Walk:
    """A walk from traced values outward through what holds them, to the user's objects among it.

    Objects that the trace has made hold a value for whoever holds them, such as modules in a cache of a library.
    """

    def __init__(self, traced: list[Any], young: frozenset[int]) -> None:
        """Nothing is walked yet.

        Args:
            traced: values.
            young: ids of objects that the trace has made.
        """
        self._young = young
        self._own = {id(traced)}
        """Ids of lists of this walk."""
        self._walked = {id(value): _Held(value, "", 0, value) for value in traced}
        self._named: set[int] = set()
        """Ids of values whose owner is known."""
        self.owners: dict[str, Any] = {}
        """What holds a value, as words, and that value."""

    def outward(self, holders: Callable[[Any], list[Any]]) -> None:
        """Look at holders of all that was walked, at theirs, and so on.

        Args:
            holders: the holders of an object.
        """
        front, most = deque(self._walked.values()), len(self._walked) + _MOST
        while front and len(self._walked) < most:
            one = front.popleft()
            if id(one.value) in self._named:
                continue
            around = holders(one.itself)
            for holder in around:
                if id(holder) in self._own or holder is around:
                    continue
                said, further = _held_by(holder, one.itself, one.name, self._walked)
                if said and (id(holder) not in self._young or isinstance(holder, dict)):
                    self.owners.setdefault(said, one.value)
                    self._named.add(id(one.value))
                    break
                if (further is not None or said) and one.depth < _STEPS and id(holder) not in self._walked:
                    self._walked[id(holder)] = _Held(holder, further or one.name, one.depth + 1, one.value)
                    front.append(self._walked[id(holder)])
            del around

    def holders_from_before(self) -> Callable[[Any], list[Any]]:
        """Holders of an object, of one of the trace those from before it, all of which are found at once."""
        found: dict[int, list[Any]] = {place: [] for place in self._walked}
        for one in gc.get_referrers(*(held.itself for held in self._walked.values())):
            if id(one) not in self._young:
                for held in gc.get_referents(one):
                    if id(held) in found:
                        found[id(held)].append(one)
        self._own |= set(map(id, found.values()))
        return lambda held: found[id(held)] if id(held) in found else gc.get_referrers(held)


def _held_by(holder: Any, held: Any, name: str, walked: Container[int]) -> tuple[str, str | None]:
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
        variable = next((one for one, cell in cells if id(cell) in walked), name)
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
