"""`grad` and `value_and_grad` that leave a mark: the loss and its derivative are one equation of the traced step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import jax
from jax.extend import core
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from meshwright.compiler.inline import flat_jaxpr, inlined
from meshwright.errors import InputError

gradient_p = Primitive("meshwright_value_and_grad")
"""Value, auxiliary results and gradients of a loss.

Operands: the constants of `loss`, then its arguments, flat. Parameters: `loss` (a jaxpr, its first output the loss),
`consts` (how many operands are its constants), `wrt` (positions of the operands that are differentiated).
Results: all outputs of `loss`, then one gradient per position of `wrt`.
"""
gradient_p.multiple_results = True


boundary_p = Primitive("layer_boundary")
"""The value itself: what is in front of it and what is behind it may be cut apart."""


def layer_boundary(values: Any) -> Any:
    """The values, and the end of a layer: a loss that has such ends is cut at them and nowhere else.

    Args:
        values: arrays that the next layer takes, in any tree. Ends inside `jax.checkpoint` and loops count for nothing.
    """
    return jax.tree.map(boundary_p.bind, values)


boundary_p.def_impl(lambda value: value)
boundary_p.def_abstract_eval(lambda value: value)
mlir.register_lowering(boundary_p, mlir.lower_fun(lambda value: value, multiple_results=False))
batching.defvectorized(boundary_p)
ad.deflinear2(boundary_p, lambda cotangent, _: [cotangent])


def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """`jax.value_and_grad`, marked for `parallelize`; the same function everywhere else.

    Args:
        fun: a scalar loss; with `has_aux` a pair of the loss and anything else.
        argnums: positions of the arguments to differentiate.
        has_aux: whether `fun` returns a pair.

    Returns:
        A function that returns the value (with `has_aux`: value and auxiliary results) and the gradients.
    """
    single = isinstance(argnums, int)
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(fun)
    def marked(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        flat, tree = jax.tree.flatten((args, kwargs))

        def flat_loss(*leaves: Any) -> Any:
            given, named = jax.tree.unflatten(tree, leaves)
            return fun(*given, **named)

        loss, shapes = jax.make_jaxpr(flat_loss, return_shape=True)(*flat)
        value_shape = shapes[0] if has_aux else shapes
        if jax.tree.structure(value_shape).num_leaves != 1 or jax.tree.leaves(value_shape)[0].shape != ():
            raise InputError(
                what=f"the function given to value_and_grad returns {jax.tree.map(_spell, value_shape)}",
                why="what is differentiated is a loss, one scalar" + ("" if has_aux else " (or has_aux=True)"),
                fix="return the mean loss of the batch",
                field=getattr(fun, "__name__", "loss"),
            )
        sizes = [jax.tree.structure(arg).num_leaves for arg in args]
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        wrt = tuple(leaf for place in places for leaf in range(starts[place], starts[place] + sizes[place]))
        outputs, found = bind_gradient(loss, flat, wrt)
        values = jax.tree.unflatten(jax.tree.structure(shapes), outputs)
        rest = list(found)
        gradients = []
        for place in places:
            gradients.append(jax.tree.unflatten(jax.tree.structure(args[place]), rest[: sizes[place]]))
            del rest[: sizes[place]]
        return values, gradients[0] if single else tuple(gradients)

    return marked


def bind_gradient(loss: core.ClosedJaxpr, flat: Sequence[Any], wrt: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The mark of a loss: its results, and its gradients.

    Args:
        loss: the loss of flat arguments.
        flat: the arguments.
        wrt: positions of those that are differentiated.
    """
    # Constants of what it calls become its own, which are operands.
    loss = inlined(loss)
    places = tuple(len(loss.consts) + place for place in wrt)
    jaxpr, given = _with_constants_given(loss), [*loss.consts, *flat]
    # What a loss hands through, such as a module's state that it leaves alone, is no result of it.
    handed = {
        at: given[jaxpr.invars.index(atom)]
        for at, atom in enumerate(jaxpr.outvars)
        if at and isinstance(atom, core.Var) and atom in jaxpr.invars
    }
    kept = [at for at in range(len(jaxpr.outvars)) if at not in handed]
    jaxpr = jaxpr.replace(outvars=[jaxpr.outvars[at] for at in kept], debug_info=jaxpr.debug_info.with_unknown_names())
    made = gradient_p.bind(*given, loss=jaxpr, consts=len(loss.consts), wrt=places)
    results = handed | dict(zip(kept, made[: len(kept)], strict=True))
    return [results[at] for at in range(len(results))], list(made[len(kept) :])


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """`jax.grad`, marked for `parallelize`; the same function everywhere else.

    Args:
        fun: a scalar loss; with `has_aux` a pair of the loss and anything else.
        argnums: positions of the arguments to differentiate.
        has_aux: whether `fun` returns a pair.
    """
    both = value_and_grad(fun, argnums, has_aux)

    @wraps(fun)
    def marked(*args: Any, **kwargs: Any) -> Any:
        values, gradients = both(*args, **kwargs)
        return (gradients, values[1]) if has_aux else gradients

    return marked


def marked_forward(fun: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function of flat arguments as one marked equation that differentiates nothing.

    Args:
        fun: returns a list of arrays.
    """

    def marked(*flat: Any) -> list[Any]:
        closed = flat_jaxpr(fun, flat)
        return gradient_p.bind(
            *closed.consts, *flat, loss=_with_constants_given(closed), consts=len(closed.consts), wrt=()
        )

    return marked


def evaluate_gradient(*operands: Any, loss: core.Jaxpr, consts: int, wrt: tuple[int, ...]) -> list[Any]:
    """What the mark stands for: values and gradients of a loss on one device.

    Args:
        operands: constants and arguments of the loss.
        loss: its jaxpr.
        consts: how many operands are constants.
        wrt: positions of the operands to differentiate.
    """
    closed = core.ClosedJaxpr(loss, ())

    def value(*chosen: Any) -> tuple[Any, list[Any]]:
        given = list(operands)
        for place, operand in zip(wrt, chosen, strict=True):
            given[place] = operand
        outputs = core.jaxpr_as_fun(closed)(*given)
        return outputs[0], outputs[1:]

    (first, others), gradients = jax.value_and_grad(value, argnums=tuple(range(len(wrt))), has_aux=True)(
        *(operands[place] for place in wrt)
    )
    return [first, *others, *gradients]


def _with_constants_given(closed: core.ClosedJaxpr) -> core.Jaxpr:
    """A program that takes its constants as its first arguments."""
    jaxpr = closed.jaxpr
    return jaxpr.replace(
        constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars], debug_info=jaxpr.debug_info.with_unknown_names()
    )


def _evaluate(*operands: Any, **parameters: Any) -> list[Any]:
    return jax.jit(partial(evaluate_gradient, **parameters))(*operands)


def _shapes(*operands: Any, loss: core.Jaxpr, consts: int, wrt: tuple[int, ...]) -> list[Any]:
    return [var.aval for var in loss.outvars] + [operands[place] for place in wrt]


def _batched(operands: Sequence[Any], axes: Sequence[Any], **parameters: Any) -> tuple[list[Any], list[int]]:
    results = jax.vmap(partial(evaluate_gradient, **parameters), in_axes=tuple(axes))(*operands)
    return list(results), [0] * len(results)


gradient_p.def_impl(_evaluate)
gradient_p.def_abstract_eval(_shapes)
mlir.register_lowering(gradient_p, mlir.lower_fun(evaluate_gradient, multiple_results=True))
batching.primitive_batchers[gradient_p] = _batched


def _spell(shape: Any) -> str:
    return f"{shape.dtype}[{','.join(map(str, shape.shape))}]"
