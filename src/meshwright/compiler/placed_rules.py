"""Rules for derivatives of functions that were traced under a user's mesh, which are traced only when they are asked
for: then under his mesh again, and what comes of it is read without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import jax
from jax.extend import core, linear_util
from jax.sharding import AbstractMesh, use_abstract_mesh

from meshwright.compiler.users_mesh import mesh_of_user

_NONE = AbstractMesh((), ())

Retraced = Callable[[core.ClosedJaxpr], core.ClosedJaxpr]
"""What reads a program without the types and equations that name a mesh."""


def rules_unplaced(params: Mapping[str, Any], retraced: Retraced) -> dict[str, Any]:
    """Parameters of an equation, its rules as they read without a mesh.

    Args:
        params: of a `custom_jvp_call`, a `custom_vjp_call` or any other equation.
        retraced: a program without the types and equations that name a mesh.
    """
    return {key: _RULES[key](held, retraced) if key in _RULES else held for key, held in params.items()}


def _forward(rule: Any, retraced: Retraced) -> Any:
    """A rule that is kept as a function of which operands change; it returns a program, its constants and more."""
    around, mesh = copy_context(), mesh_of_user()

    def read(*zeros: Any) -> tuple[Any, ...]:
        with _traced_under(mesh):
            jaxpr, consts, *rest = rule.call_wrapped(*zeros)
        with use_abstract_mesh(_NONE):
            made = around.copy().run(retraced, core.ClosedJaxpr(jaxpr, consts))
        return made.jaxpr, made.consts, *rest

    return linear_util.wrap_init(read, debug_info=rule.debug_info)


def _backward(rule: Any, retraced: Retraced) -> Any:
    """A rule that is a function of what its forward has kept and of gradients."""
    around, mesh = copy_context(), mesh_of_user()
    if mesh is None:
        return rule

    def read(*given: Any) -> Any:
        if not all(isinstance(value, jax.Array) for value in given):
            return rule.call_wrapped(*given)
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in given]
        with _traced_under(mesh):
            traced, shape = jax.make_jaxpr(lambda *own: rule.call_wrapped(*own), return_shape=True)(*shapes)
        with use_abstract_mesh(_NONE):
            made = around.copy().run(retraced, traced)
        return jax.tree.unflatten(jax.tree.structure(shape), core.jaxpr_as_fun(made)(*given))

    return linear_util.wrap_init(read, debug_info=rule.debug_info)


@contextmanager
def _traced_under(mesh: Any) -> Iterator[None]:
    if mesh is None:
        yield
        return
    with use_abstract_mesh(mesh.abstract_mesh):
        yield


_RULES = {"jvp_jaxpr_fun": _forward, "fwd_jaxpr_thunk": _forward, "bwd": _backward}
