"""Numbers of Python that a step reads from globals, variables around it and attributes, and what it changes there."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwright.compiler.python_effects.files import place_in_file
from meshwright.compiler.source_line import is_users, place_in, plain_function

_MOST = 64
"""Functions of the user that are read, from the step on."""
_NUMBERS = (bool, int, float, complex, str)
_GROWING = (list, set)
"""Containers that count what is put in; dictionaries are caches as often."""
_ADDS = ("append", "extend", "insert", "add", "update", "write", "writelines")
"""Methods of theirs, and of open files."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A number that a line of the step reads."""

    name: str
    """Name as it is written, such as `config.rate`."""
    line: str
    root: Any
    """Globals or a cell, in which it starts."""
    path: tuple[str, ...]
    value: Any

    def now(self) -> Any:
        """What stands there."""
        return _followed(self.root, self.path)


def _arrays(value: Any) -> list[Any]:
    """Arrays that are a value, or stand in a dictionary, list or tuple."""
    found = jax.tree.leaves(value) if type(value) in (dict, list, tuple) else [value]
    return [one for one in found[:_MOST] if isinstance(one, jax.Array | np.ndarray)]


def _constant_arrays(value: Any, constants: Sequence[Any]) -> dict[int, Any]:
    """Arrays that are constants of a program, by place; of NumPy's it holds copies."""
    known = set(map(id, constants))
    copies = [np.asarray(one) for one in constants if not isinstance(one, jax.Array)]
    return {
        place: one
        for place, one in enumerate(_arrays(value))
        if id(one) in known
        or (not isinstance(one, jax.Array) and any(_equal(one.astype(copy.dtype), copy) for copy in copies))
    }


def _other_arrays(before: dict[int, Any], after: Sequence[Any]) -> bool:
    return any(place >= len(after) or not _equal(after[place], one) for place, one in before.items())


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, jax.Array) and jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        return one.dtype == other.dtype and _equal(jax.random.key_data(one), jax.random.key_data(other))
    return one.shape == other.shape and bool(np.array_equal(np.asarray(one), np.asarray(other)))


class PythonState:
    """The numbers around a step at one moment."""

    def __init__(self, fun: Callable[..., Any], constants: Sequence[Any] = ()) -> None:
        """Read them.

        Args:
            fun: the user's step.
            constants: arrays that its program holds.
        """
        held = list(_held(fun))
        self._reads = tuple(one for one in held if isinstance(one.value, _NUMBERS))
        self._lengths = tuple((one, len(one.value)) for one in held if isinstance(one.value, _GROWING))
        self._arrays = tuple((one, found) for one in held if (found := _constant_arrays(one.value, constants)))
        self._files = tuple((one, place_in_file(one.value)) for one in held)

    def changed(self) -> list[str]:
        """What stands there no longer, as words with the line that reads it."""
        others = [one for one, before in self._arrays if _other_arrays(before, _arrays(one.now()))]
        return [f"{one.name} holds other arrays than then: {one.line}" for one in others] + [
            f"{one.name} was {one.value!r:.40} and is {value!r:.40}: {one.line}"
            for one in self._reads
            if (value := one.now()) is not one.value
            and (type(value) is not type(one.value) or value != one.value)
            and (value == value or one.value == one.value)
        ]

    def grown(self) -> list[str]:
        """Lists that have become longer, as words with the line that reads them."""
        return [
            f"{one.name} had {before} entries and has {len(now)}: {one.line}"
            for one, before in self._lengths
            if isinstance(now := one.now(), _GROWING) and len(now) != before
        ]

    def written(self) -> dict[str, str]:
        """Open files that have been written to, as words by the line that reads them."""
        return {
            one.line: f"writes {getattr(one.value, 'name', one.name)}"
            for one, before in self._files
            if before is not None and place_in_file(one.value) != before
        }


def _held(fun: Callable[..., Any]) -> Iterator[_Read]:
    """Everything that the step and the user's functions that it names read from outside, once for each place."""
    plain = plain_function(fun)
    left, known, places = [plain], {id(plain)}, set()
    for _ in range(_MOST):
        if not left:
            return
        one = left.pop()
        bound, one = getattr(one, "__self__", None), getattr(one, "__func__", one)
        if not isinstance(one, types.FunctionType) or not is_users(one.__code__.co_filename):
            continue
        for read in _reads(one.__code__, _scope(one, bound)):
            inner = getattr(read.value, "__wrapped__", read.value)
            if isinstance(inner, types.FunctionType | types.MethodType):
                if id(inner) not in known:
                    known.add(id(inner))
                    left.append(inner)
            elif (id(read.root), read.path) not in places:
                places.add((id(read.root), read.path))
                yield read


def _scope(fun: types.FunctionType, bound: Any) -> dict[str, Any]:
    """Where names of a function's instructions lead: cells by name, the object it is a method of, and globals."""
    names: dict[str, Any] = dict(zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True))
    if bound is not None and fun.__code__.co_argcount:
        names[fun.__code__.co_varnames[0]] = {fun.__code__.co_varnames[0]: bound}
    return names | {"": fun.__globals__}


def _reads(code: types.CodeType, scope: dict[str, Any]) -> Iterator[_Read]:
    """Chains of a name and attributes behind it, in a function and those that it defines."""
    line = code.co_firstlineno
    root: Any = None
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        line = (instruction.positions and instruction.positions.lineno) or line
        name = str(instruction.argval)
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            if name in _ADDS:
                yield from _read(code, line, root, path)
            path = (*path, name)
            continue
        if instruction.opname in ("COPY", "DUP_TOP", "CACHE", "NOP"):
            continue
        yield from _read(code, line, root, path)
        root, path = None, ()
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            root, path = scope[""], (name,)
        elif instruction.opname in ("LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW") and name in scope:
            root, path = scope[name], (name,)
    yield from _read(code, line, root, path)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            # A name of its own, such as an argument, hides the one around it.
            own = set(inner.co_varnames) | set(inner.co_cellvars)
            yield from _reads(inner, {name: value for name, value in scope.items() if name not in own})


def _read(code: types.CodeType, line: int, root: Any, path: tuple[str, ...]) -> Iterator[_Read]:
    if root is None or not path or (isinstance(root, dict) and path[0] not in root):
        return
    value = _followed(root, path)
    yield _Read(".".join(path), place_in(code, line), root, path, value)


def _followed(root: Any, path: tuple[str, ...]) -> Any:
    """What stands at the end of names, none of which runs code of the user's: no properties."""
    try:
        value = root.cell_contents if isinstance(root, types.CellType) else root.get(path[0])
    except ValueError:
        return None
    for name in path[1:]:
        if isinstance(value, types.ModuleType):
            value = vars(value).get(name)
            continue
        fields = getattr(value, "__dict__", None)
        if isinstance(fields, dict) and name in fields:
            value = fields[name]
        elif isinstance(found := getattr(type(value), name, None), types.FunctionType):
            value = types.MethodType(found, value)
        else:
            return found if isinstance(found, _NUMBERS) else None
    return value
