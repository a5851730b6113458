"""Programs without devices of the user's: his constraints are hints, his ranks become an axis of their arrays.

`with_sharding_constraint` says where values should lie on a mesh that is not the one a step runs on: the method decides
that here, so that constraints go. A `shard_map` computes something on blocks of arrays, with collectives between them;
the same comes of `vmap` over the blocks with axes of its names, which any number of devices can run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.source_info_util import user_context
from jax.extend import core
from jax.sharding import AbstractMesh, Sharding

from meshwright.compiler.inline import CALLS, programs_of, with_programs
from meshwright.compiler.marking import bind_gradient, gradient_p
from meshwright.compiler.source_line import line_of
from meshwright.compiler.tracing.named_axes import ALONE, is_alone
from meshwright.compiler.tracing.placed_rules import (
    PLACING,
    is_of_one_rank,
    rules_of_rank,
    rules_unplaced,
    with_rules_unplaced,
)
from meshwright.compiler.tracing.users_mesh import mesh_aside
from meshwright.errors import InputError, Problem

_KEPT: ContextVar[frozenset[AbstractMesh]] = ContextVar("kept_meshes", default=frozenset())
_ALONE: ContextVar[frozenset[str]] = ContextVar("axes_with_one_member", default=frozenset())


@contextmanager
def keeping(meshes: frozenset[AbstractMesh]) -> Iterator[None]:
    """While it is open, a `shard_map` over one of these stays: the method places stages on devices with its axes.

    Args:
        meshes: the meshes of the method.
    """
    token = _KEPT.set(meshes)
    try:
        yield
    finally:
        _KEPT.reset(token)


@contextmanager
def _with_alone(axes: Collection[str]) -> Iterator[None]:
    token = _ALONE.set(frozenset(axes))
    try:
        yield
    finally:
        _ALONE.reset(token)


SAME = ("sharding_constraint", "reshard", "mesh_cast", "pvary", "pcast")
"""Equations whose result is their operand: hints, and casts between types that only `shard_map` knows."""
PLAIN: Mapping[str, Callable[..., Any]] = {
    "psum_invariant": lambda values, params: [jax.lax.psum(value, params["axes"]) for value in values],
    "all_gather_invariant": lambda values, params: [
        jax.lax.all_gather(value, params["axis_name"], axis=params["all_gather_dimension"], tiled=params["tiled"])
        for value in values
    ],
}
"""Collectives that carry such types, without them."""
RULES = ("custom_jvp_call", "custom_vjp_call")
SUMS = {"psum": jax.lax.reduce_sum_p, "pmax": jax.lax.reduce_max_p, "pmin": jax.lax.reduce_min_p}
"""Collectives along an axis of blocks, which is an axis of the array like any other."""


class NotStaged(InputError):
    """A step that is not one gradient and an update behind it, so that it is not cut there."""


class NotSplit(InputError):
    """A step whose micro-batches would not compute what its whole batch does."""


def unplaced(
    closed: core.ClosedJaxpr, *, differentiated: bool, meshed: bool = False, alone: Collection[str] = ()
) -> core.ClosedJaxpr:
    """The program without constraints and `shard_map`; the same program where it has none, at any depth.

    Args:
        closed: the program as it was traced.
        differentiated: whether parts of it are differentiated later.
        meshed: whether it was traced under a mesh, which the types of its values name.
        alone: axes that it names, with one member.

    Raises:
        NotStaged: inside a `shard_map` that is differentiated, a function has a rule of its own, which knows ranks.
        InputError: a `shard_map` that does something else than compute on blocks.
    """
    if not meshed and not alone and not _holds(closed.jaxpr, lambda eqn: eqn.primitive.name in PLACING):
        # vmap with named axes makes such sums, too.
        jaxpr = _summed(closed.jaxpr) if _holds(closed.jaxpr, _sums) else closed.jaxpr
        if differentiated and _holds(jaxpr, lambda eqn: eqn.primitive.name == "custom_vjp_call"):
            jaxpr = with_rules_unplaced(jaxpr, _rule)
        return closed if jaxpr is closed.jaxpr else core.ClosedJaxpr(jaxpr, closed.consts)
    if differentiated:
        _check_rules(closed.jaxpr)
    with mesh_aside(), _with_alone(alone):
        made = _traced(partial(_evaluated, closed.jaxpr, consts=closed.consts), closed.jaxpr.invars)
    return core.ClosedJaxpr(_summed(made.jaxpr), made.consts)


def _check_rules(jaxpr: core.Jaxpr, inside: Mapping[str, Any] | None = None) -> None:
    for eqn in jaxpr.eqns:
        if inside is not None and eqn.primitive.name in RULES:
            if is_of_one_rank(eqn, inside):
                continue
            line = line_of(eqn)
            raise NotStaged(
                Problem(
                    what="a shard_map holds a function with a derivative of its own" + (f": {line}" if line else ""),
                    why="the rule is written for its ranks",
                    fix="the same without shard_map",
                    field="shard_map",
                )
            )
        if _is_kept(eqn):
            continue
        for inner in programs_of(eqn):
            _check_rules(inner, eqn.params if eqn.primitive.name == "shard_map" else inside)


def _is_kept(eqn: core.JaxprEqn) -> bool:
    return eqn.primitive.name == "shard_map" and eqn.params["mesh"] in _KEPT.get()


def _holds(jaxpr: core.Jaxpr, asked: Callable[[core.JaxprEqn], bool]) -> bool:
    """Whether an equation at any depth is one that is asked for."""
    return any(asked(eqn) or any(_holds(inner, asked) for inner in programs_of(eqn)) for eqn in jaxpr.eqns)


def _sums(eqn: core.JaxprEqn) -> bool:
    """Whether an equation sums along axes of its operands."""
    return eqn.primitive.name in SUMS and all(isinstance(axis, int) for axis in eqn.params["axes"])


def _traced(run: Callable[..., Any], operands: Sequence[Any]) -> core.ClosedJaxpr:
    # Shapes alone: the types of variables name the user's mesh.
    return jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in operands))


def _evaluated(jaxpr: core.Jaxpr, *operands: Any, consts: Sequence[Any] = ()) -> list[Any]:
    """Results of a program, or of a part of it on the blocks of one rank."""
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

    def value(atom: Any) -> Any:
        return _number(atom) if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        read = [value(atom) for atom in eqn.invars]
        with user_context(eqn.source_info.traceback):
            values.update(zip(eqn.outvars, _made(eqn, read), strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _number(literal: core.Literal) -> Any:
    """The value of a literal, whose type may name the user's mesh."""
    if not isinstance(literal.val, np.ndarray) or np.ndim(literal.val):
        return literal.val
    return literal.val.item() if literal.aval.weak_type else np.asarray(literal.val)[()]


def _made(eqn: core.JaxprEqn, read: Sequence[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    if name in SAME:
        return read
    if is_alone(eqn, _ALONE.get()):
        return ALONE[name](read, eqn.params)
    if name in PLAIN:
        return list(PLAIN[name](read, eqn.params))
    if name == "shard_map":
        if _is_kept(eqn):
            return list(eqn.primitive.bind(*read, **eqn.primitive.get_bind_params(eqn.params)))
        return _mapped(eqn, read)
    if name in CALLS:
        (inner,) = (held for held in eqn.params.values() if isinstance(held, core.ClosedJaxpr))
        return _evaluated(inner.jaxpr, *read, consts=inner.consts)
    if eqn.primitive is gradient_p:
        loss = _retraced(core.ClosedJaxpr(eqn.params["loss"], ()))
        values, gradients = bind_gradient(loss, read, eqn.params["wrt"])
        return [*values, *gradients]
    params = {
        key: None if isinstance(held, Sharding) else with_programs(held, _retraced) for key, held in eqn.params.items()
    }
    params = rules_unplaced(params, _rule)
    made = eqn.primitive.bind(*read, **eqn.primitive.get_bind_params(params))
    return list(made) if eqn.primitive.multiple_results else [made]


def _retraced(held: core.ClosedJaxpr | core.Jaxpr) -> core.ClosedJaxpr | core.Jaxpr:
    """A body of a loop or branch likewise."""
    if isinstance(held, core.ClosedJaxpr):
        return _traced(partial(_evaluated, held.jaxpr, consts=held.consts), held.jaxpr.invars)
    made = _retraced(core.ClosedJaxpr(held, ()))
    return held if made.consts else made.jaxpr


def _rule(traced: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program of a rule for derivatives likewise."""
    return _with_sums(_retraced(traced))


def _summed(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """Sums along axes of blocks as sums along axes of arrays."""
    eqns = []
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if _sums(eqn):
            params = {"axes": eqn.params["axes"]} | ({"out_sharding": None} if name == "psum" else {})
            eqns += [
                eqn.replace(primitive=SUMS[name], params=params, invars=[read], outvars=[made])
                for read, made in zip(eqn.invars, eqn.outvars, strict=True)
            ]
        else:
            eqns.append(eqn.replace(params={key: with_programs(held, _with_sums) for key, held in eqn.params.items()}))
    return jaxpr.replace(eqns=eqns)


def _with_sums(held: core.ClosedJaxpr | core.Jaxpr) -> core.ClosedJaxpr | core.Jaxpr:
    return core.ClosedJaxpr(_summed(held.jaxpr), held.consts) if isinstance(held, core.ClosedJaxpr) else _summed(held)


def _mapped(eqn: core.JaxprEqn, read: Sequence[Any]) -> list[Any]:
    """Results of a `shard_map`, computed on blocks along axes of arrays."""
    try:
        return _on_blocks(eqn.params, read)
    except Exception as error:
        line, said = line_of(eqn), str(error).split("\n", 1)[0]
        raise InputError(
            what="a shard_map that cannot be run on other devices" + (f": {line}" if line else ""),
            why=f"it is computed block by block, which ended with {type(error).__name__}: {said}",
            fix="collectives of jax.lax over named axes of its mesh; or the same without shard_map",
            field="shard_map",
        ) from None


def _on_blocks(params: Mapping[str, Any], arrays: Sequence[Any]) -> list[Any]:
    sizes = dict(params["mesh"].shape)
    axes = [name for name in sizes if name in params["newly_manual_axes"]]
    blocks = [
        _blocks(array, _entries(spec), sizes, axes) for array, spec in zip(arrays, params["in_specs"], strict=True)
    ]
    run: Callable[..., Any] = partial(_evaluated, params["jaxpr"])
    for name in reversed(axes):
        run = jax.vmap(run, in_axes=0, out_axes=0, axis_name=name, axis_size=sizes[name])
    with rules_of_rank(params):
        results = run(*blocks)
    return [_joined(result, _entries(spec), axes) for result, spec in zip(results, params["out_specs"], strict=True)]


def _entries(spec: Any) -> list[tuple[str, ...]]:
    """Names of mesh axes along each axis of an array."""
    return [() if held is None else (held,) if isinstance(held, str) else tuple(held) for held in spec]


def _blocks(array: Any, entries: Sequence[Sequence[str]], sizes: Mapping[str, int], axes: Sequence[str]) -> Any:
    """Blocks of an array along one leading axis for each axis of the mesh."""
    shape: list[int] = []
    place: dict[str, int] = {}
    for at, whole in enumerate(array.shape):
        size = whole
        for name in entries[at] if at < len(entries) else ():
            place[name] = len(shape)
            shape.append(sizes[name])
            size //= sizes[name]
        shape.append(size)
    held = [name for name in axes if name in place]
    parted = jnp.moveaxis(jnp.reshape(array, shape), [place[name] for name in held], range(len(held)))
    parted = jnp.expand_dims(parted, [at for at, name in enumerate(axes) if name not in place])
    return jnp.broadcast_to(parted, (*(sizes[name] for name in axes), *parted.shape[len(axes) :]))


def _joined(result: Any, entries: Sequence[Sequence[str]], axes: Sequence[str]) -> Any:
    """One array of blocks; what is the same for all of an axis is taken once."""
    split = {name for names in entries for name in names}
    result = result[tuple(slice(None) if name in split else 0 for name in axes)]
    held = [name for name in axes if name in split]
    order: list[int] = []
    shape = []
    for at, local in enumerate(result.shape[len(held) :]):
        names = entries[at] if at < len(entries) else ()
        order += [*(held.index(name) for name in names), len(held) + at]
        size = local
        for name in names:
            size *= result.shape[held.index(name)]
        shape.append(size)
    return jnp.reshape(jnp.transpose(result, order), shape)
