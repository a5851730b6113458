"""Rules for derivatives of functions that were traced under a user's mesh, which are traced only when they are asked
for: then under his mesh again, and what comes of it is read without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import jax
from jax._src.config import _check_vma
from jax._src.core import extend_axis_env_nd
from jax.extend import core, linear_util
from jax.sharding import AbstractMesh, AxisType, use_abstract_mesh

from meshwright.compiler.inline import holds, programs_of, with_programs
from meshwright.compiler.tracing.users_mesh import mesh_of_user

_NONE = AbstractMesh((), ())
_RANK: ContextVar[Mapping[str, Any] | None] = ContextVar("rules_of_a_rank", default=None)
"""Parameters of the `shard_map` whose equations are read."""

PLACING = ("sharding_constraint", "shard_map")
"""Equations that name a mesh."""
_TYPES = ("pvary", "pcast")
"""Equations of types that only `shard_map` knows."""

Retraced = Callable[[core.ClosedJaxpr], core.ClosedJaxpr]
"""What reads a program without the types and equations that name a mesh."""


def rules_unplaced(params: Mapping[str, Any], retraced: Retraced) -> dict[str, Any]:
    """Parameters of an equation, its rules as they read without a mesh.

    Args:
        params: the parameters of a `custom_jvp_call`, a `custom_vjp_call` or any other equation.
        retraced: a program without the types and equations that name a mesh.
    """
    return {key: _RULES[key](held, retraced) if key in _RULES else held for key, held in params.items()}


def with_rules_unplaced(jaxpr: core.Jaxpr, retraced: Retraced) -> core.Jaxpr:
    """A program without a `shard_map` whose rules for derivatives read without one, too; else it stays as it is.

    Args:
        jaxpr: the program, which is differentiated later.
        retraced: a program without the types and equations that name a mesh.
    """

    def inside(program: core.ClosedJaxpr | core.Jaxpr) -> core.ClosedJaxpr | core.Jaxpr:
        if isinstance(program, core.ClosedJaxpr):
            return core.ClosedJaxpr(with_rules_unplaced(program.jaxpr, retraced), program.consts)
        return with_rules_unplaced(program, retraced)

    def read(eqn: core.JaxprEqn) -> core.JaxprEqn:
        params = {key: with_programs(held, inside) for key, held in eqn.params.items()}
        return eqn.replace(params=rules_unplaced(params, retraced))

    return jaxpr.replace(eqns=[read(eqn) if holds(eqn, "custom_vjp_call") else eqn for eqn in jaxpr.eqns])


@contextmanager
def rules_of_rank(params: Mapping[str, Any]) -> Iterator[None]:
    """While it is open, rules that are read are those of one rank of a `shard_map`.

    Args:
        params: the parameters of the `shard_map`.
    """
    token = _RANK.set(params)
    try:
        yield
    finally:
        _RANK.reset(token)


def is_of_one_rank(eqn: core.JaxprEqn, params: Mapping[str, Any]) -> bool:
    """Whether the rule of a function inside a `shard_map` is known to ask no other rank.

    Args:
        eqn: the equation with a rule of its own.
        params: the parameters of the `shard_map`.
    """
    if eqn.primitive.name != "custom_jvp_call":
        return False
    rule, count = eqn.params["jvp_jaxpr_fun"], len(eqn.invars)
    try:
        with _traced_as_rank(params):
            jaxpr, *_ = rule.call_wrapped(*[False] * count)
    except Exception:
        return False
    return not _asks_others(jaxpr)


def _asks_others(jaxpr: core.Jaxpr) -> bool:
    """Whether an equation at any depth names an axis, but to say that its values differ along it."""
    return any(
        (eqn.primitive.name not in _TYPES and any(_names_axis(eqn.params.get(key)) for key in ("axes", "axis_name")))
        or any(map(_asks_others, programs_of(eqn)))
        for eqn in jaxpr.eqns
    )


def _names_axis(held: Any) -> bool:
    return isinstance(held, str) or (isinstance(held, tuple) and any(isinstance(one, str) for one in held))


@contextmanager
def _traced_as_rank(params: Mapping[str, Any] | None) -> Iterator[None]:
    if params is None:
        yield
        return
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    kinds = dict.fromkeys(manual, AxisType.Manual)
    sizes = [(name, size) for name, size in mesh.shape.items() if name in manual]
    with (
        extend_axis_env_nd(sizes),
        use_abstract_mesh(mesh.abstract_mesh.update_axis_types(kinds)),
        _check_vma(params["check_vma"]),
    ):
        yield


def _forward(rule: Any, retraced: Retraced) -> Any:
    """A rule that is kept as a function of which operands change; it returns a program, its constants and more."""
    around, mesh, rank = copy_context(), mesh_of_user(), _RANK.get()

    def read(*zeros: Any) -> tuple[Any, ...]:
        with _traced_under(mesh), _traced_as_rank(rank):
            jaxpr, consts, *rest = rule.call_wrapped(*zeros)
        if mesh is None and rank is None and not _is_placed(jaxpr):
            return jaxpr, consts, *rest
        with use_abstract_mesh(_NONE):
            made = around.copy().run(retraced, core.ClosedJaxpr(jaxpr, consts))
        return made.jaxpr, made.consts, *rest

    return linear_util.wrap_init(read, debug_info=rule.debug_info)


def _backward(rule: Any, retraced: Retraced) -> Any:
    """A rule that is a function of what its forward has kept and of gradients."""
    around, mesh = copy_context(), mesh_of_user()

    def read(*given: Any) -> Any:
        if not all(isinstance(value, jax.Array) for value in given):
            return rule.call_wrapped(*given)
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in given]
        with _traced_under(mesh):
            traced, shape = jax.make_jaxpr(lambda *own: rule.call_wrapped(*own), return_shape=True)(*shapes)
        if mesh is None and not _is_placed(traced.jaxpr):
            return rule.call_wrapped(*given)
        with use_abstract_mesh(_NONE):
            made = around.copy().run(retraced, traced)
        return jax.tree.unflatten(jax.tree.structure(shape), core.jaxpr_as_fun(made)(*given))

    return linear_util.wrap_init(read, debug_info=rule.debug_info)


def _is_placed(jaxpr: core.Jaxpr) -> bool:
    return any(holds(eqn, name) for eqn in jaxpr.eqns for name in PLACING)


@contextmanager
def _traced_under(mesh: Any) -> Iterator[None]:
    if mesh is None:
        yield
        return
    with use_abstract_mesh(mesh.abstract_mesh):
        yield


_RULES = {"jvp_jaxpr_fun": _forward, "fwd_jaxpr_thunk": _forward, "bwd": _backward}
