"""K-FAC: the Kronecker factors of every matrix of the layers, their inverses, and the update that they precondition.

A product y = x W hands out two more gradients beside those of x and W: the mean of x x^T over tokens in the place of
the gradient of one factor, and the mean of g g^T of the tokens' own losses in that of the other. So factors are summed
over micro-batches, ranks and stages as gradients are, and made where weight gradients are.

Source: Martens and Grosse 2015 (arXiv 1503.05671), sections 3 and 6.3; Osawa et al. 2023, PipeFisher (arXiv
2211.14133), section 3: inverses are made in the bubbles of a step, of the factors of one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from meshwright.zoo.blocks import WholeTensors
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model
from meshwright.zoo.training import Adam

MATRICES = {"attention": ("q", "k", "v", "out"), "mlp": ("up", "gate", "down")}
"""Matrices of a layer by its parts; `out` and `down` lead back to the stream."""
_BACK = ("out", "down")


class KfacFactors(NamedTuple):
    """Two square matrices that belong to a matrix: of what enters its product, and of what leaves it."""

    inputs: jax.Array
    outputs: jax.Array


class FactoredMatrix(NamedTuple):
    """A matrix, and where the gradients stand that its product makes of its factors."""

    matrix: jax.Array
    factors: KfacFactors


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoredTensors(WholeTensors):
    """Products that hand out factors with their gradients, of matrices that have any."""

    def into(self, x: jax.Array, *matrices: Any, ranks: int = 1) -> list[jax.Array]:
        """Products of `WholeTensors.into`, of `FactoredMatrix`; others are multiplied as there."""
        if not all(isinstance(one, FactoredMatrix) for one in matrices):
            return WholeTensors.into(self, x, *matrices, ranks=ranks)
        return [self._product(x, one, 1) for one in matrices]

    def out(self, x: jax.Array, w: Any) -> jax.Array:
        """The product of `WholeTensors.out`, of `FactoredMatrix`."""
        return self._product(x, w, w.matrix.ndim - 1)

    def _product(self, x: jax.Array, one: FactoredMatrix, entering: int) -> jax.Array:
        shape = one.matrix.shape
        flat = one.matrix.reshape(prod(shape[:entering]), -1)
        rows = x.reshape(*x.shape[: x.ndim - entering], -1)
        return _product(rows, flat, one.factors).reshape(*rows.shape[:-1], *shape[entering:])


def _plain(x: jax.Array, matrix: jax.Array, factors: KfacFactors) -> jax.Array:
    return x @ matrix


def _kept(x: jax.Array, matrix: jax.Array, factors: KfacFactors) -> tuple[jax.Array, Any]:
    return x @ matrix, (x, matrix)


def _gradients(kept: Any, slope: jax.Array) -> tuple[jax.Array, jax.Array, KfacFactors]:
    x, matrix = kept
    over = tuple(range(x.ndim - 1))
    tokens = prod(x.shape[:-1])

    def summed(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.tensordot(a, b, (over, over))

    # The loss is a mean over tokens: the slope of a token's own loss is as many times as large.
    factors = KfacFactors(inputs=summed(x, x) / tokens, outputs=summed(slope, slope) * tokens)
    return slope @ matrix.T, summed(x, slope), factors


_product_with_factors = jax.custom_vjp(_plain)
_product_with_factors.defvjp(_kept, _gradients)
_product = cast(Callable[[jax.Array, jax.Array, KfacFactors], jax.Array], _product_with_factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kfac(Adam):
    """Adam of gradients between the inverses of both factors: (A + d)^-1 G (B + d)^-1."""

    every: int = 1
    """Steps from new factors to new ones."""
    damping: float = 1e-2
    """The number d on the diagonal of a factor."""
    behind: bool = False
    """Whether inverses are made of the factors of the step before, so that they may run where workers wait."""

    def differentiated(self, weights: Any, moments: Any) -> Any:
        """Weights, and the factors whose gradients are the new ones."""
        return {"weights": weights, "factors": moments["factors"]}

    def loss_of(self, model: Model) -> Callable[[Any, Any, Any], jax.Array]:
        """The loss of weights and factors."""
        assert isinstance(model, Decoder)
        factored = replace(model, held=FactoredTensors())

        def loss(both: Any, batch: Any, key: jax.Array) -> jax.Array:
            layers = [
                _each_matrix(own, made, lambda _, matrix, factors: FactoredMatrix(matrix, factors))
                for own, made in zip(both["weights"]["layers"], both["factors"], strict=True)
            ]
            return factored.loss(both["weights"] | {"layers": layers}, batch, key)

        return loss

    def init(self, weights: Any) -> Any:
        """Two moments, and unit matrices for factors and inverses."""

        def units(name: str, matrix: jax.Array) -> KfacFactors:
            rows, columns = _sides(name, matrix)
            return KfacFactors(jnp.eye(rows, dtype=matrix.dtype), jnp.eye(columns, dtype=matrix.dtype))

        factors = [_of_matrices(own, units) for own in weights["layers"]]
        return Adam.init(self, weights) | {"factors": factors, "inverses": jax.tree.map(jnp.copy, factors)}

    def update(self, weights: Any, moments: Any, gradients: Any, step: jax.Array) -> tuple[Any, Any]:
        """Weights, moments, factors and inverses after a step."""
        since = step % self.every
        old = moments["factors"]
        factors = jax.tree.map(lambda new, before: jnp.where(since == 0, new, before), gradients["factors"], old)
        source, due = (old, since == 1 % self.every) if self.behind else (factors, since == 0)

        def inverted(factor: jax.Array, before: jax.Array) -> jax.Array:
            return jax.lax.cond(due, self._inverse, lambda _: before, factor)

        inverses = jax.tree.map(inverted, source, moments["inverses"])
        layers = [
            _each_matrix(own, made, _between)
            for own, made in zip(gradients["weights"]["layers"], inverses, strict=True)
        ]
        own = {name: moments[name] for name in ("mean", "square")}
        moved, after = Adam.update(self, weights, own, gradients["weights"] | {"layers": layers}, step)
        return moved, after | {"factors": factors, "inverses": inverses}

    def _inverse(self, factor: jax.Array) -> jax.Array:
        unit = jnp.eye(len(factor), dtype=factor.dtype)
        root = jax.lax.linalg.cholesky(factor + self.damping * unit)
        part = jax.lax.linalg.triangular_solve(root, unit, left_side=True, lower=True)
        return part.T @ part


def _between(name: str, gradient: jax.Array, inverses: KfacFactors) -> jax.Array:
    """A matrix's gradient between the inverses of its factors."""
    flat = gradient.reshape(_sides(name, gradient))
    return (inverses.inputs @ flat @ inverses.outputs).reshape(gradient.shape)


def _sides(name: str, matrix: jax.Array) -> tuple[int, int]:
    """Elements that enter the product of a matrix, and that leave it."""
    entering = matrix.ndim - 1 if name in _BACK else 1
    return prod(matrix.shape[:entering]), prod(matrix.shape[entering:])


def _each_matrix(
    layer: dict[str, Any], of: dict[str, KfacFactors], change: Callable[[str, Any, KfacFactors], Any]
) -> dict[str, Any]:
    """A layer with its matrices changed, each with what belongs to it."""
    return layer | {
        part: layer[part] | {name: change(name, layer[part][name], of[name]) for name in names if name in layer[part]}
        for part, names in MATRICES.items()
    }


def _of_matrices(layer: dict[str, Any], made: Callable[[str, jax.Array], KfacFactors]) -> dict[str, KfacFactors]:
    """What belongs to the matrices of a layer, by their names."""
    return {
        name: made(name, layer[part][name]) for part, names in MATRICES.items() for name in names if name in layer[part]
    }
