"""Steps that do more with gradients than follow them: clip each, project, estimate curvature, quantize, prune."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from tests.corpus.case import (
    CLASSIFIER,
    FEATURES,
    SAMPLES,
    WIDTH,
    Case,
    case,
    classified,
    classifier_loss,
    cross_entropy,
    drawn,
    forward,
    mlp,
    sgd,
)


@case
def optax_private_aggregate_of_clipped_gradients() -> Case:
    optimizer = optax.contrib.dpsgd(0.1, 1.0, 0.5, 3)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        one = jax.tree.map(lambda x: x[:, None], batch)
        values, grads = jax.vmap(jax.value_and_grad(classifier_loss), in_axes=(None, 0))(params, one)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), values.mean()

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


@case
def jax_conflicting_gradients_projected() -> Case:
    def step(params: Any, batch: Any) -> Any:
        def tasks(p: Any) -> Any:
            out = forward(p, batch["x"])
            return jnp.stack([cross_entropy(out, batch["y"]), (out**2).mean()])

        flat, tree = ravel_pytree(params)
        one, other = jax.jacrev(lambda w: tasks(tree(w)))(flat)
        inner = one @ other
        one_ = one - jnp.minimum(inner, 0) / (other @ other) * other
        other_ = other - jnp.minimum(inner, 0) / (one @ one) * one
        return tree(flat - 0.1 * (one_ + other_)), tasks(params)

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_two_losses_with_gradients_of_their_own() -> Case:
    """The gradients of two losses of the same weights, clipped one by one before they are added."""

    def step(params: Any, batch: Any) -> Any:
        def supervised(p: Any) -> Any:
            return cross_entropy(forward(p, batch["x"]), batch["y"])

        def smooth(p: Any) -> Any:
            return ((forward(p, batch["x"]) - forward(p, batch["x"] + 0.1)) ** 2).mean()

        a, one = jax.value_and_grad(supervised)(params)
        b, other = jax.value_and_grad(smooth)(params)
        clip = optax.clip_by_global_norm(0.1)
        one, other = (clip.update(grads, clip.init(params))[0] for grads in (one, other))
        return sgd(params, jax.tree.map(jnp.add, one, other)), {"supervised": a, "smooth": b}

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_curvature_estimated_every_other_step() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, momentum, curvature, key, count = state
        key, own = jax.random.split(key)

        def loss(p: Any) -> Any:
            return classifier_loss(p, batch)

        value, grads = jax.value_and_grad(loss)(params)

        def measured(_: Any) -> Any:
            signs = jax.tree.map(lambda p: jax.random.rademacher(own, p.shape, p.dtype), params)
            pulled = jax.jvp(jax.grad(loss), (params,), (signs,))[1]
            return jax.tree.map(lambda c, s, h: 0.9 * c + 0.1 * s * h, curvature, signs, pulled)

        curvature = jax.lax.cond(count % 2 == 0, measured, lambda _: curvature, None)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momentum, grads)
        params = jax.tree.map(
            lambda p, m, c: p - 0.1 * jnp.clip(m / jnp.maximum(c, 0.01), -1, 1), params, momentum, curvature
        )
        return (params, momentum, curvature, key, count + 1), value

    params = mlp(*CLASSIFIER)
    zero = jax.tree.map(jnp.zeros_like, params)
    return Case(step=step, state=(params, zero, zero, jax.random.key(0), jnp.int32(0)), batch=classified())


@case
def jax_gauss_newton_by_conjugate_gradients() -> Case:
    def step(params: Any, batch: Any) -> Any:
        flat, tree = ravel_pytree(params)

        def outputs(w: Any) -> Any:
            return forward(tree(w), batch["x"])

        def loss(w: Any) -> Any:
            return ((outputs(w) - batch["y"]) ** 2).mean()

        value, grad = jax.value_and_grad(loss)(flat)

        def product(v: Any) -> Any:
            out, pushed = jax.jvp(outputs, (flat,), (v,))
            return jax.vjp(outputs, flat)[1](2 * pushed / out.size)[0] + 0.1 * v

        way, _ = jax.scipy.sparse.linalg.cg(product, grad, maxiter=5)
        return tree(flat - 0.5 * way), value

    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "y": drawn(SAMPLES, 1, seed=2)}
    return Case(step=step, state=mlp(FEATURES, WIDTH, 1), batch=batch)


@case
def jax_fake_quantization_with_moving_ranges() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, ranges, count = state

        def loss(p: Any) -> Any:
            def rounded(w: Any, most: Any) -> Any:
                q = jnp.clip(jnp.round(w / most * 7), -7, 7) * most / 7
                return w + jax.lax.stop_gradient(q - w)

            x, seen = batch["x"], []
            for layer, own in zip(p, ranges, strict=True):
                x = jnp.tanh(rounded(x, own) @ rounded(layer["w"], jnp.abs(layer["w"]).max()) + layer["b"])
                seen.append(jnp.abs(x).max())
            return cross_entropy(x, batch["y"]), jnp.stack(seen)

        (value, seen), grads = jax.value_and_grad(loss, has_aux=True)(params)
        ranges = jnp.where(count == 0, seen, 0.9 * ranges + 0.1 * seen)
        return (sgd(params, grads), ranges, count + 1), value

    return Case(step=step, state=(mlp(*CLASSIFIER), jnp.full(3, 2.0), jnp.int32(0)), batch=classified())


@case
def jax_small_weights_masked_by_a_quantile() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, masks, count = state
        value, grads = jax.value_and_grad(lambda p: classifier_loss(jax.tree.map(jnp.multiply, p, masks), batch))(
            params
        )
        params = sgd(params, jax.tree.map(jnp.multiply, grads, masks))
        sparsity = jnp.minimum(0.1 * count, 0.5)
        low = jnp.quantile(jnp.abs(ravel_pytree(params)[0]), sparsity)
        masks = jax.tree.map(lambda p: jnp.where(p.ndim < 2, 1.0, (jnp.abs(p) >= low).astype(p.dtype)), params)
        return (params, masks, count + 1), (value, sparsity)

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, jax.tree.map(jnp.ones_like, params), jnp.int32(0)), batch=classified())
