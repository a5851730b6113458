"""Small losses drawn at random: sums, means, masks, maxima, roots, dropout, positions and what stands beside them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SAMPLES, LENGTH, WIDTH = 8, 3, 4
Draw = Callable[[Random, Any, Any, "Values"], Any]


def weights() -> Any:
    """Two matrices and a row."""
    drawn = np.random.RandomState(2)
    return {
        "one": jnp.asarray(drawn.randn(WIDTH, WIDTH) / 2),
        "two": jnp.asarray(drawn.randn(WIDTH, WIDTH) / 2),
        "row": jnp.asarray(drawn.randn(WIDTH)),
    }


def batch() -> Any:
    """Numbers, whole numbers of which some are 0, and labels."""
    drawn = np.random.RandomState(3)
    return {
        "x": jnp.asarray(drawn.randn(SAMPLES, LENGTH, WIDTH)),
        "ids": jnp.asarray(drawn.randint(0, 3, (SAMPLES, LENGTH))),
        "label": jnp.asarray(drawn.randint(0, WIDTH, SAMPLES)),
    }


class Values:
    """What a loss has computed so far: of each sample, and of all."""

    def __init__(self, random: Random, own: Any, given: Any) -> None:
        self.random, self.own, self.given = random, own, given
        self.each: list[Any] = [given["x"], given["x"] @ own["one"]]
        """[samples, length, width]"""
        self.masks: list[Any] = [given["ids"] > 0]
        """[samples, length]"""
        self.numbers: list[Any] = [(own["row"] ** 2).sum(), jnp.asarray(2.0)]
        self.beside: list[Any] = []

    def any_of(self, values: list[Any]) -> Any:
        return self.random.choice(values)


def _layer(v: Values) -> None:
    v.each.append(jnp.tanh(v.any_of(v.each) @ v.own[v.random.choice(("one", "two"))]))


def _loop(v: Values) -> None:
    layer = lambda x, row: (jnp.sin(x + row), x.sum(-1))  # noqa: E731
    if v.random.random() < 0.5:
        layer = jax.checkpoint(layer)
    made, rows = jax.lax.scan(layer, v.any_of(v.each), v.own["two"])
    v.each.append(made)
    v.each.append(made * rows.mean(0)[..., None])


def _over_time(v: Values) -> None:
    x = v.any_of(v.each)
    carry, out = jax.lax.scan(
        lambda c, row: (0.5 * c + row, jnp.tanh(c)), jnp.zeros((SAMPLES, WIDTH)), x.swapaxes(0, 1)
    )
    v.each.append(out.swapaxes(0, 1) + carry[:, None])


def _added(v: Values) -> None:
    one, other = v.any_of(v.each), v.any_of(v.each)
    v.each.append(v.random.choice((lambda: one + other, lambda: one * other, lambda: jnp.maximum(one, other)))())


def _scaled(v: Values) -> None:
    number = v.any_of(v.numbers)
    x = v.any_of(v.each)
    v.each.append(v.random.choice((lambda: x * number, lambda: x / (1 + number**2), lambda: x + number))())


def _dropped(v: Values) -> None:
    x = v.any_of(v.each)
    kept = jax.random.bernoulli(jax.random.key(v.random.randrange(9)), 0.5, x.shape)
    v.each.append(jnp.where(kept, x, 0.0))


def _masked(v: Values) -> None:
    v.each.append(v.any_of(v.each) * v.any_of(v.masks)[..., None])


def _mask(v: Values) -> None:
    v.masks.append(
        v.random.choice(
            (
                lambda: v.any_of(v.each).sum(-1) > 0,
                lambda: v.given["ids"] == 1,
                lambda: v.any_of(v.masks) & ~v.any_of(v.masks),
                lambda: jnp.broadcast_to((jnp.arange(SAMPLES) % 2 == 0)[:, None], (SAMPLES, LENGTH)),
            )
        )()
    )


def _positions(v: Values) -> None:
    v.each.append(v.any_of(v.each) + jnp.linspace(0, 1, SAMPLES)[:, None, None])


def _picked(v: Values) -> None:
    scores = jax.nn.log_softmax(v.any_of(v.each).mean(1))
    v.each.append(v.any_of(v.each) * scores[jnp.arange(SAMPLES), v.given["label"]][:, None, None])


def _centred(v: Values) -> None:
    x = v.given["x"] if v.random.random() < 0.7 else v.any_of(v.each)
    v.each.append((x - x.mean(0)) / (1e-2 + x.std()))


def _shifted(v: Values) -> None:
    x = v.any_of(v.each)
    v.each.append(
        v.random.choice(
            (
                lambda: jax.lax.pad(x, 0.0, ((1, -1, 0), (0, 0, 0), (0, 0, 0))),
                lambda: jnp.roll(x, 1, 0),
                lambda: jax.lax.pad(x, 0.0, ((0, 0, 0), (1, -1, 0), (0, 0, 0))),
                lambda: jnp.sort(x, 1),
                lambda: jnp.cumsum(x, 1),
                lambda: jnp.sort(x, 0),
                lambda: x[::-1],
                lambda: jnp.flip(x, 2),
            )
        )()
    )


def _chosen(v: Values) -> None:
    which = v.random.choice((v.own["row"].sum(), v.any_of(v.numbers)))
    v.each.append(jax.lax.cond(which > 0, jnp.sin, lambda x: x * 0.5, v.any_of(v.each)))


def _summed(v: Values) -> None:
    x, mask = v.any_of(v.each), v.any_of(v.masks)
    v.numbers.append(
        v.random.choice(
            (
                lambda: x.sum(),
                lambda: x.mean(),
                lambda: (x**2).mean(),
                lambda: mask.sum() * 1.0,
                lambda: (1.0 * mask).mean(),
                lambda: (x * mask[..., None]).sum() / jnp.maximum(mask.sum(), 1),
                lambda: jnp.vdot(x, x) / x.size,
                lambda: (x.sum((1, 2)) * (1.0 * mask).mean(1)).sum() / (1e-3 + (1.0 * mask).mean(1).sum()),
                lambda: jnp.einsum("btw,w->", x, v.own["row"]),
                lambda: x.max(),
                lambda: (x.reshape(-1, WIDTH) ** 2).sum() / SAMPLES,
            )
        )()
    )


def _of_numbers(v: Values) -> None:
    one, other = v.any_of(v.numbers), v.any_of(v.numbers)
    v.numbers.append(
        v.random.choice(
            (
                lambda: one + other,
                lambda: one - 0.3 * other,
                lambda: jnp.sqrt(1 + one**2),
                lambda: jnp.log1p(other**2),
                lambda: one / (1 + other**2),
                lambda: one * other,
                lambda: jax.lax.stop_gradient(one) * 0.5,
                lambda: jnp.maximum(one, other),
            )
        )()
    )


def _beside(v: Values) -> None:
    x, mask = v.any_of(v.each), v.any_of(v.masks)
    v.beside.append(
        v.random.choice(
            (
                lambda: mask.sum(),
                lambda: mask.all(),
                lambda: mask.any(),
                lambda: mask.sum(0),
                lambda: x.max(0),
                lambda: x.min(),
                lambda: x.mean((0, 1)),
                lambda: x.swapaxes(0, 2),
                lambda: x[:, 0],
                lambda: v.any_of(v.numbers),
                lambda: (mask.sum(), 3),
                lambda: jnp.argmax(x, -1),
                lambda: (1 + x / 9).prod(),
                lambda: jnp.argmax(x.sum((1, 2))),
                lambda: jnp.zeros((2, 2)).at[0].add(x.sum()),
                lambda: jnp.bincount(v.given["label"], length=WIDTH),
                lambda: jax.ops.segment_sum(x[:, 0], v.given["label"], WIDTH),
            )
        )()
    )


STEPS = (
    _layer,
    _layer,
    _loop,
    _over_time,
    _added,
    _scaled,
    _dropped,
    _masked,
    _mask,
    _positions,
    _picked,
    _centred,
    _shifted,
    _chosen,
    _summed,
    _summed,
    _summed,
    _of_numbers,
    _of_numbers,
    _beside,
    _beside,
)


def random_loss(seed: int) -> Callable[[Any, Any], Any]:
    """A loss and what stands beside it, the same for the same seed."""

    def loss(own: Any, given: Any) -> Any:
        random = Random(seed)
        values = Values(random, own, given)
        for _ in range(random.randrange(2, 9)):
            random.choice(STEPS)(values)
        _summed(values)
        if random.random() < 0.4:
            _of_numbers(values)
        return values.numbers[-1], values.beside

    return loss
