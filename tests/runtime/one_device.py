"""What a step computes on one device, made once for all that is held against it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

_COMPUTED: dict[Hashable, Any] = {}


def on_one_device(step: Callable[..., Any], *given: Any) -> Any:
    """Results of `jax.jit(step)`, which every method under test must reach.

    Args:
        step: a function; the same one to be found again.
        given: its arguments, trees of arrays.
    """
    leaves, form = jax.tree.flatten(given)
    values = tuple((str(leaf.dtype), leaf.shape, leaf.tobytes()) for leaf in map(np.asarray, leaves))
    asked = (step, form, values, jax.config.jax_enable_x64)
    if asked not in _COMPUTED:
        _COMPUTED[asked] = jax.jit(step)(*given)
    return _COMPUTED[asked]
