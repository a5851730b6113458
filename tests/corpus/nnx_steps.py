"""Steps in Flax NNX, as its guides and examples write them: objects that are changed in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

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
    in_place,
    pictures,
    sentences,
)


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, dropout: float = 0.0, normed: bool = False) -> None:
        self.one = nnx.Linear(FEATURES, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs) if normed else None
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None
        self.two = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.three = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.one(x)
        x = x if self.norm is None else self.norm(x)
        x = nnx.relu(x)
        x = x if self.dropout is None else self.dropout(x)
        return self.three(nnx.relu(self.two(x)))


def objects(model: Any, optimizer: Any = None, *others: Any) -> Any:
    return (model, nnx.Optimizer(model, optimizer or adam(), wrt=nnx.Param), *others)


def of_objects(step: Any, state: Any, batch: Any, *, narrow: bool = False) -> Case:
    return Case(
        step=step,
        state=state,
        batch=batch,
        after=in_place,
        jit=nnx.jit,
        narrow=narrow,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": len(state)},
    )


def train_step(model: Any, optimizer: Any, batch: Any) -> Any:
    def loss_fn(model: Any) -> Any:
        return cross_entropy(model(batch["x"]), batch["y"])

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


@case
def nnx_train_step() -> Case:
    return of_objects(train_step, objects(Classifier(nnx.Rngs(0))), classified())


@case
def nnx_jitted_train_step() -> Case:
    return of_objects(nnx.jit(train_step), objects(Classifier(nnx.Rngs(0))), classified())


@case
def nnx_mnist_with_metrics() -> Case:
    class CNN(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.conv1 = nnx.Conv(2, 4, kernel_size=(3, 3), rngs=rngs)
            self.conv2 = nnx.Conv(4, 4, kernel_size=(3, 3), rngs=rngs)
            self.linear = nnx.Linear(36, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.avg_pool(nnx.relu(self.conv1(x)), window_shape=(2, 2), strides=(2, 2))
            x = nnx.relu(self.conv2(x))
            return self.linear(x.reshape(x.shape[0], -1))

    def loss_fn(model: Any, batch: Any) -> Any:
        logits = model(batch["image"])
        return cross_entropy(logits, batch["label"]), logits

    def train_step(model: Any, optimizer: Any, metrics: Any, batch: Any) -> Any:
        grad_fn = nnx.value_and_grad(loss_fn, has_aux=True)
        (loss, logits), grads = grad_fn(model, batch)
        metrics.update(loss=loss, logits=logits, labels=batch["label"])
        optimizer.update(model, grads)

    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    return of_objects(train_step, objects(CNN(nnx.Rngs(0)), None, metrics), pictures())


@case
def nnx_dropout() -> Case:
    return of_objects(train_step, objects(Classifier(nnx.Rngs(0), dropout=0.2)), classified())


@case
def nnx_batch_norm() -> Case:
    return of_objects(train_step, objects(Classifier(nnx.Rngs(0), normed=True)), classified())


@case
def nnx_split_and_merge() -> Case:
    model, optimizer = objects(Classifier(nnx.Rngs(0)))
    graph, state = nnx.split((model, optimizer))

    def step(state: Any, batch: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss = train_step(model, optimizer, batch)
        return nnx.state((model, optimizer)), loss

    return Case(step=step, state=state, batch=classified())


@case
def nnx_functional_parameters() -> Case:
    model = Classifier(nnx.Rngs(0))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        params, opt = state

        def loss_fn(params: Any) -> Any:
            return cross_entropy(nnx.merge(graph, params, rest)(batch["x"]), batch["y"])

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


class Counter(nnx.Variable):
    pass


@case
def nnx_counter() -> Case:
    class Counting(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(FEATURES, CLASSES, rngs=rngs)
            self.calls = Counter(jnp.int32(0))

        def __call__(self, x: Any) -> Any:
            self.calls[...] = self.calls[...] + 1
            return self.linear(x)

    return of_objects(train_step, objects(Counting(nnx.Rngs(0))), classified())


@case
def nnx_transformer() -> Case:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=WIDTH, decode=False, rngs=rngs)
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + self.attention(self.norm(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(x)))

    class Decoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.table = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])

        def __call__(self, ids: Any) -> Any:
            x = self.table(ids)
            for block in self.blocks:
                x = block(x)
            return self.table.attend(x)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: cross_entropy(m(batch["ids"]), batch["next"]))(model)
        optimizer.update(model, grads)
        return loss

    return of_objects(step, objects(Decoder(nnx.Rngs(0))), sentences(), narrow=True)


@case
def nnx_trained_in_part() -> Case:
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        head = nnx.PathContains("three")
        loss, grads = nnx.value_and_grad(
            lambda m: cross_entropy(m(batch["x"]), batch["y"]), argnums=nnx.DiffState(0, nnx.All(nnx.Param, head))
        )(model)
        optimizer.update(model, grads)
        return loss

    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, adam(), wrt=nnx.All(nnx.Param, nnx.PathContains("three")))
    return of_objects(step, (model, optimizer), classified())


@case
def nnx_variational_autoencoder() -> Case:
    class VAE(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.encoder = nnx.Linear(FEATURES, 2 * WIDTH, rngs=rngs)
            self.decoder = nnx.Linear(WIDTH, FEATURES, rngs=rngs)
            self.rngs = rngs

        def __call__(self, x: Any) -> Any:
            mean, spread = jnp.split(self.encoder(x), 2, axis=-1)
            z = mean + jnp.exp(spread) * jax.random.normal(self.rngs(), mean.shape)
            return self.decoder(nnx.tanh(z)), mean, spread

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            found, mean, spread = model(batch["x"])
            divergence = 0.5 * (mean**2 + jnp.exp(2 * spread) - 1 - 2 * spread).sum(-1)
            return (((found - batch["x"]) ** 2).sum(-1) + divergence).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    return of_objects(step, objects(VAE(nnx.Rngs(0))), classified())


@case
def nnx_evaluation() -> Case:
    def evaluate(model: Any, batch: Any) -> Any:
        logits = model(batch["x"])
        return cross_entropy(logits, batch["y"]), logits.argmax(-1)

    return of_objects(evaluate, (Classifier(nnx.Rngs(0)),), classified())
