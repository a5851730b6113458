"""A training step as its library's users write it, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

SAMPLES, FEATURES, CLASSES, WIDTH, LENGTH, WORDS = 16, 6, 4, 8, 6, 12


def first_result(state: Any, result: Any) -> Any:
    """The state behind a step that returns it, alone or in front of anything else."""
    return result[0] if isinstance(result, tuple) else result


def in_place(state: Any, result: Any) -> Any:
    """The state behind a step that changes it where it is."""
    return state


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """One step."""

    step: Callable[..., Any]
    state: Any
    batch: Any = None
    call: Callable[..., Any] = field(default=lambda run, state, batch: run(state, batch))
    """How users call it."""
    after: Callable[[Any, Any], Any] = first_result
    """State for the next call, of the one before and the results."""
    jit: Callable[..., Any] = jax.jit
    """What users put above the step on one device."""
    digits: float | None = None
    """Largest difference of steps that compute with 16 bits, whose rounding depends on the order of sums."""
    narrow: bool = False
    """Whether its library carries numbers of 32 bits whatever it is given."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of `parallelize`, beside the method."""


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    """Name a case after its function."""
    assert build.__name__ not in CASES
    CASES[build.__name__] = build
    return build


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    """Numbers of a normal distribution."""
    return jnp.asarray(np.random.RandomState(seed).randn(*shape) * scale, jnp.float32)


def whole(most: int, *shape: int, seed: int = 0) -> Any:
    """Whole numbers below a bound."""
    return jnp.asarray(np.random.RandomState(seed).randint(0, most, shape), jnp.int32)


def classified(samples: int = SAMPLES) -> dict[str, Any]:
    """Samples and their classes."""
    return {"x": drawn(samples, FEATURES, seed=1), "y": whole(CLASSES, samples, seed=2)}


def measured(samples: int = SAMPLES) -> dict[str, Any]:
    """Samples and a number of each."""
    return {"x": drawn(samples, FEATURES, seed=1), "y": drawn(samples, 1, seed=2)}


def sentences(samples: int = SAMPLES, length: int = LENGTH) -> dict[str, Any]:
    """Words and those behind them."""
    return {"ids": whole(WORDS, samples, length, seed=1), "next": whole(WORDS, samples, length, seed=2)}


def pictures(samples: int = SAMPLES, size: int = 6, channels: int = 2) -> dict[str, Any]:
    """Pictures and their classes."""
    return {"image": drawn(samples, size, size, channels, seed=1), "label": whole(CLASSES, samples, seed=2)}


def mlp(*widths: int, seed: int = 0) -> list[dict[str, Any]]:
    """Weights of layers in a row."""
    return [
        {"w": drawn(a, b, seed=seed + i, scale=a**-0.5), "b": jnp.zeros((b,))}
        for i, (a, b) in enumerate(pairwise(widths))
    ]


def forward(layers: list[dict[str, Any]], x: Any) -> Any:
    """What these layers make of samples."""
    for layer in layers[:-1]:
        x = jax.nn.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Mean over everything."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


CLASSIFIER = (FEATURES, WIDTH, WIDTH, CLASSES)


def adam(rate: Any = 1e-2) -> Any:
    return optax.adam(rate, eps=1e-3)


def sgd(params: Any, grads: Any, rate: float = 0.1) -> Any:
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def classifier_loss(params: Any, batch: Any) -> Any:
    return cross_entropy(forward(params, batch["x"]), batch["y"])


def trained(optimizer: Any, loss: Any = classifier_loss) -> Any:
    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return step


def with_optimizer(
    optimizer: Any, loss: Any = classifier_loss, params: Any = None, batch: Any = None, *, narrow: bool = False
) -> Case:
    params = mlp(*CLASSIFIER) if params is None else params
    state = (params, optimizer.init(params))
    return Case(step=trained(optimizer, loss), state=state, batch=batch or classified(), narrow=narrow)
