"""Steps in Equinox, as its documentation writes them: modules are trees with functions and numbers in them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tests.corpus.case import (
    CLASSES,
    FEATURES,
    WIDTH,
    WORDS,
    Case,
    adam,
    case,
    classified,
    cross_entropy,
    pictures,
    sentences,
)


def with_adam(model: Any, make: Any, batch: Any) -> Case:
    optimizer = adam()

    def update(model: Any, opt_state: Any, grads: Any) -> Any:
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state

    state = (model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    return Case(step=make(update), state=state, batch=batch, jit=eqx.filter_jit)


def network() -> Any:
    return eqx.nn.MLP(FEATURES, CLASSES, WIDTH, 2, key=jax.random.key(0))


@case
def equinox_mlp() -> Case:
    def make(update: Any) -> Any:
        def loss_fn(model: Any, x: Any, y: Any) -> Any:
            return cross_entropy(jax.vmap(model)(x), y)

        def step(state: Any, batch: Any) -> Any:
            model, opt_state = state
            loss, grads = eqx.filter_value_and_grad(loss_fn)(model, batch["x"], batch["y"])
            return update(model, opt_state, grads), loss

        return step

    return with_adam(network(), make, classified())


@case
def equinox_make_step_as_in_its_guide() -> Case:
    optimizer = adam()

    @eqx.filter_jit
    def make_step(model: Any, opt_state: Any, x: Any, y: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss(model: Any) -> Any:
            return cross_entropy(jax.vmap(model)(x), y)

        value, grads = loss(model)
        updates, opt_state = optimizer.update(grads, opt_state, model)
        return eqx.apply_updates(model, updates), opt_state, value

    model = network()
    state = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    return Case(
        step=make_step,
        state=state,
        batch=classified(),
        jit=lambda fun: fun,
        call=lambda run, state, batch: run(*state, batch["x"], batch["y"]),
        after=lambda state, result: result[:2],
        options={"batch_argnums": (2, 3)},
    )


class Convolutions(eqx.Module):
    layers: list[Any]
    scale: float = eqx.field(static=True)
    name: str = "cnn"

    def __init__(self, key: Any) -> None:
        one, two = jax.random.split(key)
        self.layers = [
            eqx.nn.Conv2d(2, 3, kernel_size=3, key=one),
            jax.nn.relu,
            eqx.nn.MaxPool2d(kernel_size=2),
            jnp.ravel,
            eqx.nn.Linear(27, CLASSES, key=two),
        ]
        self.scale = 0.5

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.scale * x


@case
def equinox_cnn_with_functions_and_strings() -> Case:
    def make(update: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            model, opt_state = state
            images = jnp.moveaxis(batch["image"], -1, 1)
            loss, grads = eqx.filter_value_and_grad(lambda m: cross_entropy(jax.vmap(m)(images), batch["label"]))(model)
            return update(model, opt_state, grads), loss

        return step

    return with_adam(Convolutions(jax.random.key(0)), make, pictures())


@case
def equinox_recurrent() -> Case:
    class RNN(eqx.Module):
        table: Any
        cell: Any
        head: Any

        def __call__(self, ids: Any) -> Any:
            words = jax.vmap(self.table)(ids)
            hidden, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(WIDTH), words)
            return self.head(hidden)

    def make(update: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            model, opt_state = state
            loss, grads = eqx.filter_value_and_grad(
                lambda m: cross_entropy(jax.vmap(m)(batch["ids"]), batch["next"][:, 0])
            )(model)
            return update(model, opt_state, grads), loss

        return step

    keys = jax.random.split(jax.random.key(0), 3)
    model = RNN(
        eqx.nn.Embedding(WORDS, WIDTH, key=keys[0]),
        eqx.nn.GRUCell(WIDTH, WIDTH, key=keys[1]),
        eqx.nn.Linear(WIDTH, WORDS, key=keys[2]),
    )
    return with_adam(model, make, sentences())


@case
def equinox_batch_norm_with_state() -> Case:
    class Normed(eqx.Module):
        one: Any
        norm: Any
        two: Any

        def __call__(self, x: Any, state: Any) -> Any:
            x, state = self.norm(self.one(x), state)
            return self.two(jax.nn.relu(x)), state

    one, two = jax.random.split(jax.random.key(0))
    model, norm_state = eqx.nn.make_with_state(
        lambda: Normed(
            eqx.nn.Linear(FEATURES, WIDTH, key=one),
            eqx.nn.BatchNorm(WIDTH, axis_name="batch", mode="batch"),
            eqx.nn.Linear(WIDTH, CLASSES, key=two),
        )
    )()
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        model, norm_state, opt_state = state

        def loss_fn(model: Any, norm_state: Any) -> Any:
            logits, norm_state = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
                batch["x"], norm_state
            )
            return cross_entropy(logits, batch["y"]), norm_state

        (loss, norm_state), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, norm_state)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (eqx.apply_updates(model, updates), norm_state, opt_state), loss

    state = (model, norm_state, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    return Case(step=step, state=state, batch=classified(), jit=eqx.filter_jit)


@case
def equinox_partition_and_combine() -> Case:
    model = network()
    params, static = eqx.partition(model, eqx.is_inexact_array)
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, grads = jax.value_and_grad(
            lambda p: cross_entropy(jax.vmap(eqx.combine(p, static))(batch["x"]), batch["y"])
        )(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (eqx.apply_updates(params, updates), opt_state), loss

    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


@case
def equinox_frozen_by_tree_at() -> Case:
    def make(update: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            model, opt_state = state
            trained = jax.tree.map(lambda _: False, model)
            trained = eqx.tree_at(lambda m: (m.layers[-1].weight, m.layers[-1].bias), trained, replace=(True, True))

            @eqx.filter_value_and_grad
            def loss_fn(own: Any, rest: Any) -> Any:
                return cross_entropy(jax.vmap(eqx.combine(own, rest))(batch["x"]), batch["y"])

            loss, grads = loss_fn(*eqx.partition(model, trained))
            return (eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), opt_state), loss

        return step

    return with_adam(network(), make, classified())


@case
def equinox_dropout_with_keys_of_samples() -> Case:
    class Noisy(eqx.Module):
        one: Any
        dropout: Any
        two: Any

        def __call__(self, x: Any, key: Any) -> Any:
            return self.two(self.dropout(jax.nn.relu(self.one(x)), key=key))

    def make(update: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            (model, opt_state), key = state
            key, own = jax.random.split(key)
            keys = jax.random.split(own, len(batch["x"]))
            loss, grads = eqx.filter_value_and_grad(lambda m: cross_entropy(jax.vmap(m)(batch["x"], keys), batch["y"]))(
                model
            )
            return (update(model, opt_state, grads), key), loss

        return step

    one, two = jax.random.split(jax.random.key(0))
    model = Noisy(eqx.nn.Linear(FEATURES, WIDTH, key=one), eqx.nn.Dropout(0.2), eqx.nn.Linear(WIDTH, CLASSES, key=two))
    made = with_adam(model, make, classified())
    return Case(step=made.step, state=(made.state, jax.random.key(3)), batch=made.batch, jit=made.jit)


@case
def equinox_attention() -> Case:
    class Encoder(eqx.Module):
        table: Any
        attention: Any
        norm: Any
        head: Any

        def __call__(self, ids: Any) -> Any:
            x = jax.vmap(self.table)(ids)
            y = jax.vmap(self.norm)(x)
            return jax.vmap(self.head)(x + self.attention(y, y, y))

    def make(update: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            model, opt_state = state
            loss, grads = eqx.filter_value_and_grad(lambda m: cross_entropy(jax.vmap(m)(batch["ids"]), batch["next"]))(
                model
            )
            return update(model, opt_state, grads), loss

        return step

    keys = jax.random.split(jax.random.key(0), 3)
    model = Encoder(
        eqx.nn.Embedding(WORDS, WIDTH, key=keys[0]),
        eqx.nn.MultiheadAttention(2, WIDTH, key=keys[1]),
        eqx.nn.LayerNorm(WIDTH),
        eqx.nn.Linear(WIDTH, WORDS, key=keys[2]),
    )
    return with_adam(model, make, sentences())


@case
def equinox_score_matching() -> Case:
    def make(update: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            (model, opt_state), key = state
            key, when, noise = jax.random.split(key, 3)

            def one(model: Any, x: Any, t: Any, key: Any) -> Any:
                drawn = jax.random.normal(key, x.shape)
                noisy = x * jnp.exp(-0.5 * t) + jnp.sqrt(1 - jnp.exp(-t)) * drawn
                return jnp.mean((model(jnp.append(noisy, t)) * jnp.sqrt(1 - jnp.exp(-t)) + drawn) ** 2)

            def loss_fn(model: Any) -> Any:
                n = len(batch["x"])
                t = jax.random.uniform(when, (n,), minval=0.1, maxval=1.0)
                return jnp.mean(jax.vmap(one, (None, 0, 0, 0))(model, batch["x"], t, jax.random.split(noise, n)))

            loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
            return (update(model, opt_state, grads), key), loss

        return step

    made = with_adam(eqx.nn.MLP(FEATURES + 1, FEATURES, WIDTH, 2, key=jax.random.key(0)), make, classified())
    return Case(step=made.step, state=(made.state, jax.random.key(3)), batch=made.batch, jit=made.jit)
