"""Steps in JAX alone: ways to take a gradient and to call a step."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
    CLASSES,
    CLASSIFIER,
    FEATURES,
    SAMPLES,
    WIDTH,
    WORDS,
    Case,
    case,
    classified,
    classifier_loss,
    cross_entropy,
    drawn,
    forward,
    measured,
    mlp,
    sentences,
    sgd,
    with_optimizer,
)


@case
def jax_grad_sgd() -> Case:
    def update(params: Any, batch: Any) -> Any:
        return sgd(params, jax.grad(classifier_loss)(params, batch))

    return Case(step=update, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_linear_regression_two_arguments() -> Case:
    def update(params: Any, x: Any, y: Any) -> Any:
        def mse(p: Any) -> Any:
            return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)

        loss, grads = jax.value_and_grad(mse)(params)
        return sgd(params, grads), loss

    batch = measured()
    return Case(
        step=update,
        state={"w": jnp.zeros((FEATURES, 1)), "b": jnp.zeros(1)},
        batch=batch,
        call=lambda run, state, batch: run(state, batch["x"], batch["y"]),
        options={"batch_argnums": (1, 2)},
    )


@case
def jax_vjp_by_hand() -> Case:
    def update(params: Any, batch: Any) -> Any:
        loss, pullback = jax.vjp(lambda p: classifier_loss(p, batch), params)
        (grads,) = pullback(jnp.ones_like(loss))
        return sgd(params, grads), loss

    return Case(step=update, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_vjp_of_logits() -> Case:
    def update(params: Any, batch: Any) -> Any:
        logits, pullback = jax.vjp(lambda p: forward(p, batch["x"]), params)
        labels = jax.nn.one_hot(batch["y"], CLASSES)
        (grads,) = pullback((jax.nn.softmax(logits) - labels) / logits.shape[0])
        return sgd(params, grads), logits.argmax(-1)

    return Case(step=update, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_two_arguments_differentiated() -> Case:
    def loss(encoder: Any, decoder: Any, x: Any) -> Any:
        return ((forward(decoder, forward(encoder, x)) - x) ** 2).mean()

    def update(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(*state, batch["x"])
        return sgd(state, grads), value

    state = (mlp(FEATURES, WIDTH, 3), mlp(3, WIDTH, FEATURES, seed=5))
    return Case(step=update, state=state, batch=classified())


@case
def jax_jitted_gradient_inside() -> Case:
    gradient = jax.jit(jax.value_and_grad(classifier_loss))

    def update(params: Any, batch: Any) -> Any:
        loss, grads = gradient(params, batch)
        return sgd(params, grads), loss

    return Case(step=update, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_keyword_batch() -> Case:
    def update(params: Any, *, batch: Any, rate: float) -> Any:
        loss, grads = jax.value_and_grad(classifier_loss)(params, batch)
        return sgd(params, grads, rate), loss

    return Case(
        step=update,
        state=mlp(*CLASSIFIER),
        batch=classified(),
        call=lambda run, state, batch: run(state, batch=batch, rate=0.1),
    )


@case
def jax_static_arguments() -> Case:
    def update(params: Any, batch: Any, activation: str, depth: int) -> Any:
        act = {"relu": jax.nn.relu, "tanh": jnp.tanh}[activation]

        def loss(p: Any) -> Any:
            x = batch["x"]
            for layer in p[:depth]:
                x = act(x @ layer["w"] + layer["b"])
            return cross_entropy(x, batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    return Case(
        step=update,
        state=mlp(*CLASSIFIER),
        batch=classified(),
        jit=partial(jax.jit, static_argnums=(2, 3)),
        call=lambda run, state, batch: run(state, batch, "tanh", 3),
        options={"static_argnums": (2, 3)},
    )


@case
def jax_rate_in_the_batch() -> Case:
    def update(params: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(classifier_loss)(params, batch)
        return sgd(params, grads, batch["rate"]), loss

    return Case(step=update, state=mlp(*CLASSIFIER), batch=classified() | {"rate": jnp.float32(0.05)})


@case
def jax_metrics_of_the_batch() -> Case:
    def update(params: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(classifier_loss)(params, batch)
        params = sgd(params, grads)
        right = (forward(params, batch["x"]).argmax(-1) == batch["y"]).mean()
        return params, {"loss": loss, "accuracy after": right}

    return Case(step=update, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_weighted_by_the_batch() -> Case:
    def update(params: Any, batch: Any) -> Any:
        def loss(p: Any) -> Any:
            each = optax.softmax_cross_entropy_with_integer_labels(forward(p, batch["x"]), batch["y"])
            return jnp.sum(each * batch["weight"]) / jnp.sum(batch["weight"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    batch = classified() | {"weight": jnp.abs(drawn(SAMPLES, seed=9))}
    return Case(step=update, state=mlp(*CLASSIFIER), batch=batch)


@case
def jax_masked_language_model() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        logits = forward(params["body"], params["table"][batch["ids"]])
        mask = (batch["ids"] > 2).astype(jnp.float32)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"])
        return (each * mask).sum() / mask.sum()

    params = {"table": drawn(WORDS, WIDTH), "body": mlp(WIDTH, WIDTH, WORDS)}
    return with_optimizer(optax.sgd(0.1, momentum=0.9), loss, params, sentences())


@case
def jax_sum_of_squares() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        return 0.5 * jnp.sum((forward(params, batch["x"]) - batch["y"]) ** 2)

    return with_optimizer(optax.sgd(1e-3), loss, mlp(FEATURES, WIDTH, 1), measured())


@case
def jax_weight_decay_in_the_loss() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        return classifier_loss(params, batch) + 1e-2 * sum(jnp.sum(w**2) for w in jax.tree.leaves(params))

    return with_optimizer(optax.sgd(0.1), loss)
