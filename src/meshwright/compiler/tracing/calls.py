"""A call of the user's step as arrays and everything else: keywords, static values, objects changed in place."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from typing import Any

import jax
import numpy as np

from meshwright.compiler.python_effects.refusals import check_begun
from meshwright.compiler.source_line import start_of
from meshwright.errors import InputError, Problem


@jax.tree_util.register_pytree_node_class
class Static:
    """A part of an argument that no device holds, such as a string or a function: part of the program."""

    def __init__(self, value: Any) -> None:
        """Keep it.

        Args:
            value: anything.
        """
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Static]:
        """No leaves."""
        return (), self

    @classmethod
    def tree_unflatten(cls, held: Static, _: Any) -> Static:
        """The same again."""
        return held

    def __eq__(self, other: object) -> bool:
        """Equal values, as far as they can be compared."""
        if not isinstance(other, Static):
            return False
        try:
            return self.value is other.value or (
                type(self.value) is type(other.value) and bool(self.value == other.value)
            )
        except Exception:
            return False

    def __hash__(self) -> int:
        """Hash of the value, or of its type where the value has none."""
        try:
            return hash(self.value)
        except TypeError:
            return hash(type(self.value))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StepCall:
    """One call of a step as what its compiled form takes."""

    fun: Callable[..., Any]
    """The step as a function of positional arguments of arrays alone; it returns arrays alone."""
    arguments: tuple[Any, ...]
    key: Any
    """Key of what is no array; calls with equal keys and shapes run the same program."""
    objects: tuple[Any, ...] = ()
    """Modules that the step changes in place."""

    def returned(self, results: Any) -> Any:
        """What the user's function returns, of what the compiled one does; objects are brought up to date.

        Args:
            results: the results of the compiled function.
        """
        if self.objects:
            from flax import nnx

            after, results = results
            nnx.update(self.objects, after)
        return _opened(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a step is called."""

    fun: Callable[..., Any]
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()

    def call(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> StepCall:
        """A call by positions.

        Args:
            arguments: the arguments of the call.
            keywords: the keywords of the call.

        Raises:
            InputError: the step does not take them.
        """
        given, names = self._by_position(arguments, keywords)
        static_places, static_names = self._static()
        parameters = self._names() if static_names else []
        static = {place % max(len(given), 1) for place in static_places}
        static |= {place for place, name in enumerate(parameters[: len(given)]) if name in static_names}
        static |= {len(given) - len(names) + at for at, name in enumerate(names) if name in static_names}
        places = (
            []
            if "flax" not in sys.modules
            else [place for place, value in enumerate(given) if place not in static and _has_objects(value)]
        )
        objects = tuple(given[place] for place in places)
        graph: Any = None
        if places:
            from flax import nnx

            graph, state = nnx.split(objects)
            given = [Static(place) if at in places else value for at, value in enumerate(given) for place in [at]]
            given[places[0]] = state
        held = tuple(Static(value) if place in static else _closed(value) for place, value in enumerate(given))

        def flat(*values: Any) -> Any:
            opened = [_opened(value) for value in values]
            if graph is not None:
                from flax import nnx

                merged = nnx.merge(graph, opened[places[0]])
                for place, value in zip(places, merged, strict=True):
                    opened[place] = value
                results = self._called(opened, names)
                after = nnx.split(merged)[1]
                return after, _closed(results)
            return _closed(self._called(opened, names))

        update_wrapper(flat, self.fun)
        return StepCall(fun=flat, arguments=held, key=(tuple(names), Static(graph)), objects=objects)

    def _static(self) -> tuple[Collection[int], Collection[str]]:
        """Places and names of arguments that are part of the program, with those that `jax.jit` above the step has."""
        stated = getattr(self.fun, "_jit_info", None)
        places, names = getattr(stated, "static_argnums", None) or (), getattr(stated, "static_argnames", None) or ()
        return {*self.static_argnums, *places}, {*self.static_argnames, *names}

    def _called(self, values: Sequence[Any], names: Sequence[str]) -> Any:
        first = len(values) - len(names)
        result = self.fun(*values[:first], **dict(zip(names, values[first:], strict=True)))
        check_begun(self.fun, result)
        return result

    def _by_position(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
        """Arguments in order, and the names of the last of them, which have no position."""
        if not keywords:
            return list(arguments), []
        try:
            bound = inspect.signature(self.fun).bind(*arguments, **keywords)
        except TypeError as error:
            raise InputError(
                Problem(
                    what=f"{start_of(self.fun)}: {error}",
                    why="a parallel step takes what the function takes",
                    fix="call it as the function is declared",
                    field=getattr(self.fun, "__name__", "step"),
                )
            ) from None
        except ValueError:
            return [*arguments, *keywords.values()], list(keywords)
        return [*bound.args, *bound.kwargs.values()], list(bound.kwargs)

    def _names(self) -> list[str]:
        try:
            return list(inspect.signature(self.fun).parameters)
        except (TypeError, ValueError):
            return []


def _closed(tree: Any) -> Any:
    """A tree whose leaves are arrays; what is none becomes part of its structure.

    Numbers of Python are arrays, as for `jax.jit`, but in modules of Equinox, which filters them out.
    """
    leaves = jax.tree.leaves(tree)
    kinds = set(map(type, leaves))
    hosts = np.ndarray in kinds and any(type(leaf) is np.ndarray and not _is_array(leaf) for leaf in leaves)
    if not hosts and all(map(_always_array, kinds)):
        return tree
    if (equinox := sys.modules.get("equinox")) is None:
        return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else Static(leaf), tree)
    return jax.tree.map(
        lambda node: (
            jax.tree.map(
                lambda leaf: (
                    leaf
                    if equinox.is_array_like(leaf) and not isinstance(leaf, bool | int | float | complex)
                    else Static(leaf)
                ),
                node,
            )
            if isinstance(node, equinox.Module)
            else node
            if _is_array(node)
            else Static(node)
        ),
        tree,
        is_leaf=lambda node: isinstance(node, equinox.Module),
    )


@lru_cache(maxsize=256)
def _always_array(kind: type) -> bool:
    """Whether all objects of a type are arrays, in modules too; of a state of hundreds, one type is asked for all.

    Those of NumPy can hold other objects, which is asked of each.
    """
    return kind is np.ndarray or (
        all(hasattr(kind, name) for name in ("shape", "dtype", "__array__")) and not issubclass(kind, np.generic)
    )


def _opened(tree: Any) -> Any:
    if not _holds_static(jax.tree.structure(tree)):
        return tree
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, Static) else leaf,
        tree,
        is_leaf=lambda node: isinstance(node, Static),
    )


@lru_cache(maxsize=256)
def _holds_static(structure: Any) -> bool:
    """Whether a tree has parts that are no arrays; trees of hundreds of arrays come back with each step."""
    empty = jax.tree.unflatten(structure, [0] * structure.num_leaves)
    return any(isinstance(leaf, Static) for leaf in jax.tree.leaves(empty, is_leaf=lambda n: isinstance(n, Static)))


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, bool | int | float | complex | np.generic):
        return True
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "biufcV" and leaf.dtype.names is None
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _has_objects(value: Any) -> bool:
    """Whether modules of NNX are in a value; of states without them, which come with each step, one tree tells it."""
    structure = jax.tree.structure(value)
    try:
        return _structure_has_objects(structure)
    except (TypeError, ValueError):
        return _structure_has_objects.__wrapped__(structure)


@lru_cache(maxsize=256)
def _structure_has_objects(structure: Any) -> bool:
    from flax import nnx

    left = [structure]
    while left:
        one = left.pop()
        node = one.node_data()
        if node is not None and issubclass(node[0], nnx.Pytree):
            return True
        left += one.children()
    return False
