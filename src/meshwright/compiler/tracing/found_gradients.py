"""Gradients found while a step is traced: whoever takes one, JAX takes it by `vjp`, and there it leaves the mark.

`jax.grad`, `jax.value_and_grad` and what libraries make of them (`nnx.value_and_grad`, `eqx.filter_value_and_grad`,
`DynamicScale`, `optax`) are one function inside JAX. While a step is traced that function is this one: the loss stays
one equation, undifferentiated, with its own derivative rules. Everywhere else JAX's own runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import api
from jax._src.interpreters.partial_eval import DynamicJaxprTracer
from jax.extend import core

from meshwright.compiler.marking import bind_gradient
from meshwright.compiler.tracing.calls import Static

_FINDING: ContextVar[bool] = ContextVar("finding_gradients", default=False)
_TRACED = jax.make_user_context(default_value=None)
"""Part of the key under which JAX remembers traced functions: a step's are not those of the program around it."""
_LOCK = threading.Lock()
_OWN = api.vjp
_open = 0


@contextmanager
def gradients_found() -> Iterator[None]:
    """While it is open, a gradient of a scalar that this thread takes is one marked equation."""
    token = _FINDING.set(True)
    _count(1)
    try:
        with _TRACED("gradients are found"):
            yield
    finally:
        _count(-1)
        _FINDING.reset(token)


def _count(change: int) -> None:
    global _open
    with _LOCK:
        _open += change
        api.vjp = jax.vjp = _vjp if _open else _OWN


def _vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, **others: Any) -> Any:
    """`jax.vjp`, marked where the function is a loss of values that are traced."""
    marked = _marked(fun, primals, has_aux) if _FINDING.get() and not others else None
    return _OWN(fun, *primals, has_aux=has_aux, **others) if marked is None else marked


def _marked(fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool) -> Any:
    """Value, pullback and auxiliary results; None for what is not a loss, or differentiated or mapped around."""
    flat, tree = jax.tree.flatten(tuple(primals))
    if not all(_plain(leaf) for leaf in flat) or not any(isinstance(leaf, jax.core.Tracer) for leaf in flat):
        return None
    wrt = [place for place, leaf in enumerate(flat) if jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.inexact)]

    def flat_loss(*leaves: Any) -> Any:
        token = _FINDING.set(False)
        try:
            results = fun(*jax.tree.unflatten(tree, leaves))
            return (results[0], _closed(results[1])) if has_aux else results
        finally:
            _FINDING.reset(token)

    loss, shapes = jax.make_jaxpr(flat_loss, return_shape=True)(*flat)
    value = shapes[0] if has_aux else shapes
    if not wrt or not _scalar(value) or not all(map(_plain, loss.consts)):
        return None
    outputs, gradients = bind_gradient(loss, flat, wrt)
    by_place = dict(zip(wrt, gradients, strict=True))

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        (seed,) = jax.tree.leaves(cotangent)
        found = [
            _scaled(by_place[place], seed) if place in by_place else np.zeros(np.shape(leaf), jax.dtypes.float0)
            for place, leaf in enumerate(flat)
        ]
        return tuple(jax.tree.unflatten(tree, found))

    results = jax.tree.unflatten(jax.tree.structure(shapes), outputs)
    return (results[0], pullback, _opened(results[1])) if has_aux else (results, pullback)


def _closed(tree: Any) -> Any:
    """Auxiliary results; numbers of Python, strings and functions among them are handed through, as JAX does."""
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else Static(leaf), tree)


def _opened(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, Static) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Static),
    )


def _plain(leaf: Any) -> bool:
    """Whether a value is no part of a `vmap`, `jvp` or other transformation around the loss."""
    return not isinstance(leaf, jax.core.Tracer) or isinstance(leaf, DynamicJaxprTracer)


def _scalar(shapes: Any) -> bool:
    leaves = jax.tree.leaves(shapes)
    return len(leaves) == 1 and leaves[0].shape == () and jnp.issubdtype(leaves[0].dtype, jnp.floating)


def _scaled(gradient: Any, seed: Any) -> Any:
    """The gradient times what the loss is pulled back by; `value_and_grad` pulls back one."""
    held = getattr(seed, "val", seed)
    held = held.val if isinstance(held, core.Literal) else held
    if isinstance(held, int | float | np.ndarray | np.generic) and np.ndim(held) == 0 and held == 1:
        return gradient
    return gradient * jnp.asarray(seed).astype(gradient.dtype)
