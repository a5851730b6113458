"""What to write instead of code that JAX cannot trace, by the error that JAX raises."""

from __future__ import annotations

import re

_SHAPES = "arrays whose shapes fit; print(jax.tree.map(jax.numpy.shape, arguments)) shows those that are passed"
_SIZE = "a size that is known before: name its argument in static_argnums or static_argnames, or give size="
REMEDIES = {
    r"(item|tolist)\(\) method": "return the value, and call .{0}() on what the step returns",
    r"the `(float|int|bool|complex)` function": "return the value, and call {0}() on what the step returns; inside,"
    " value.astype({0})",
    r"TracerBoolConversionError": "jax.numpy.where(condition, one, other), or jax.lax.cond; a loop is"
    " jax.lax.while_loop or jax.lax.fori_loop",
    r"TracerArrayConversionError": "jax.numpy instead of numpy",
    r"TracerIntegerConversionError": "jax.numpy.take or jax.lax.dynamic_slice of arrays; name what is a size in"
    " static_argnums or static_argnames",
    r"NonConcreteBooleanIndexError": "weigh what is chosen: jax.numpy.where(mask, values, 0).sum() / mask.sum()",
    r"jnp\.arange argument|size argument|the size argument|Shapes must be 1D sequences": _SIZE,
    r"immutable": "array = array.at[index].set(value), or .add(value)",
    r"__format__": "jax.debug.print('{{x}}', x=value), or return the value and print it after the step",
    r"scalar-output functions\. Output was \(": "value_and_grad(loss, has_aux=True) where more is returned",
    r"scalar-output": "the gradient of losses.mean(); jax.vmap(jax.grad(loss_of_one), (None, 0)) has that of each",
    r"grad requires real": "weights of floating point, such as weights.astype(jax.numpy.float32)",
    r"Non-hashable static|unhashable type: '(list|dict|set|\S*ndarray)'": "a tuple or a frozen dataclass as static"
    " argument",
    r"unhashable type: '\w*Tracer": "an array in place of the dictionary, as table[index]",
    r"(block_until_ready|copy_to_host_async|device_buffer)": "call it on what the step returns",
    r"missing \d+ required positional argument": "call it with all its arguments",
    r"valid JAX (?:array )?type": "pass arrays; close over what is none, or name its argument in static_argnums",
    r"unsupported operand type.*'list'": "jax.numpy.asarray(numbers) in place of a list",
    r"no attribute '(mu|nu|count|trace|inner_state|hyperparams)'": "optimizer.update(gradients, opt_state, params),"
    " with the state that optimizer.init(params) has made",
    r"^KeyError": "the names that the state and the batch have",
    r"incompatible shapes|contracting dimensions|must have equal shapes|Incompatible shapes": _SHAPES,
    r"must have equal (?:output )?types": "one type for both, as value.astype(other.dtype) or jax.numpy.float32(1)",
}
"""Words of an error behind the name of its class, and what is written instead; the first that is found holds."""


def remedy(error: BaseException, otherwise: str) -> str:
    """What to write instead.

    Args:
        error: the error that ended a trace.
        otherwise: the remedy where the error is none of those known.
    """
    said = f"{type(error).__name__} {error}"
    for words, fix in REMEDIES.items():
        if found := re.search(words, said):
            return fix.format(*found.groups())
    return otherwise
