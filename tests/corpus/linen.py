"""Steps in Flax Linen, as its guides and examples write them."""

from __future__ import annotations

from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import dynamic_scale, train_state

from tests.corpus.case import (
    CLASSES,
    LENGTH,
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


class Classifier(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.relu(nn.Dense(WIDTH)(x))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        x = nn.relu(nn.Dense(WIDTH)(x))
        return nn.Dense(CLASSES)(x)


class Convolutions(nn.Module):
    normed: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.Conv(4, (3, 3))(x)
        if self.normed:
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.avg_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(4, (3, 3))(x))
        return nn.Dense(CLASSES)(x.reshape(x.shape[0], -1))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any, mask: Any = None) -> Any:
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))


class Decoder(nn.Module):
    layers: int = 2

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        table = nn.Embed(WORDS, WIDTH)
        x = table(ids) + self.param("places", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        for _ in range(self.layers):
            x = Block()(x, nn.make_causal_mask(ids))
        return table.attend(nn.LayerNorm()(x))


def state_of(model: nn.Module, x: Any, optimizer: Any) -> Any:
    variables = model.init(jax.random.key(0), x)
    return train_state.TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optimizer)


@case
def linen_train_state() -> Case:
    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return cross_entropy(state.apply_fn({"params": params}, batch["x"]), batch["y"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Case(step=train_step, state=state_of(Classifier(), classified()["x"], adam()), batch=classified())


@case
def linen_mnist_gradients_and_update_apart() -> Case:
    @jax.jit
    def apply_model(state: Any, images: Any, labels: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, images)
            one_hot = jax.nn.one_hot(labels, CLASSES)
            return jnp.mean(optax.softmax_cross_entropy(logits=logits, labels=one_hot)), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return grads, loss, jnp.mean(jnp.argmax(logits, -1) == labels)

    def train_step(state: Any, batch: Any) -> Any:
        grads, loss, accuracy = apply_model(state, batch["image"], batch["label"])
        return state.apply_gradients(grads=grads), loss, accuracy

    return Case(
        step=train_step,
        state=state_of(Convolutions(), pictures()["image"], optax.sgd(0.1, momentum=0.9)),
        batch=pictures(),
    )


@flax.struct.dataclass
class Metrics:
    loss: Any
    accuracy: Any


@case
def linen_metrics_by_struct() -> Case:
    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch["x"])
            return cross_entropy(logits, batch["y"]), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads)
        return state, Metrics(loss=loss, accuracy=jnp.mean(logits.argmax(-1) == batch["y"]))

    return Case(step=train_step, state=state_of(Classifier(), classified()["x"], adam()), batch=classified())


class NormedState(train_state.TrainState):
    batch_stats: Any


@case
def linen_batch_norm() -> Case:
    model = Convolutions(normed=True)

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits, changed = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                batch["image"],
                train=True,
                mutable=["batch_stats"],
            )
            return cross_entropy(logits, batch["label"]), changed

        (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss

    variables = model.init(jax.random.key(0), pictures()["image"])
    state = NormedState.create(
        apply_fn=model.apply, params=variables["params"], tx=optax.sgd(0.1), batch_stats=variables["batch_stats"]
    )
    return Case(step=train_step, state=state, batch=pictures())


class KeyedState(train_state.TrainState):
    key: Any


@case
def linen_dropout_folded_in_by_step() -> Case:
    model = Classifier(dropout=0.2)

    def train_step(state: Any, batch: Any, dropout_key: Any) -> Any:
        key = jax.random.fold_in(key=dropout_key, data=state.step)

        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, x=batch["x"], train=True, rngs={"dropout": key})
            return cross_entropy(logits, batch["y"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Case(
        step=train_step,
        state=state_of(model, classified()["x"], adam()),
        batch=classified(),
        call=lambda run, state, batch: run(state, batch, jax.random.key(7)),
    )


@case
def linen_key_in_train_state() -> Case:
    model = Classifier(dropout=0.2)

    def train_step(state: Any, batch: Any) -> Any:
        key, own = jax.random.split(state.key)

        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch["x"], train=True, rngs={"dropout": own})
            return cross_entropy(logits, batch["y"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads).replace(key=key), loss

    params = model.init(jax.random.key(0), classified()["x"])["params"]
    state = KeyedState.create(apply_fn=model.apply, params=params, tx=adam(), key=jax.random.key(1))
    return Case(step=train_step, state=state, batch=classified())


@case
def linen_frozen_dict() -> Case:
    model = Classifier()
    optimizer = optax.sgd(0.1)

    def train_step(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(model.apply({"params": p}, batch["x"]), batch["y"]))(
            params
        )
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    params = flax.core.freeze(model.init(jax.random.key(0), classified()["x"])["params"])
    return Case(step=train_step, state=(params, optimizer.init(params)), batch=classified())


@case
def linen_decoder() -> Case:
    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return cross_entropy(state.apply_fn({"params": params}, batch["ids"]), batch["next"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        norm = optax.tree.norm(grads)
        return state.apply_gradients(grads=grads), {"loss": loss, "norm": norm}

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-3))
    return Case(step=train_step, state=state_of(Decoder(), sentences()["ids"], optimizer), batch=sentences())


class ScannedDecoder(nn.Module):
    layers: int = 4

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        x = nn.Embed(WORDS, WIDTH)(ids)

        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x: Any, _: Any) -> Any:
                return Block()(x), None

        stack = nn.scan(
            nn.remat(Layer, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.layers,
        )
        x, _ = stack()(x, None)
        return nn.Dense(WORDS)(nn.LayerNorm()(x))


@case
def linen_scanned_and_rematerialized_layers() -> Case:
    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return cross_entropy(state.apply_fn({"params": params}, batch["ids"]), batch["next"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Case(step=train_step, state=state_of(ScannedDecoder(), sentences()["ids"], adam()), batch=sentences())


@case
def linen_dynamic_scale() -> Case:
    def train_step(state: Any, batch: Any) -> Any:
        train, scale = state

        def loss_fn(params: Any) -> Any:
            half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
            logits = train.apply_fn({"params": half}, batch["x"].astype(jnp.float16))
            return cross_entropy(logits.astype(jnp.float32), batch["y"])

        scale, finite, loss, grads = scale.value_and_grad(loss_fn)(train.params)
        after = train.apply_gradients(grads=grads)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after.params, train.params)
        return (after.replace(params=kept), scale), loss

    state = state_of(Classifier(), classified()["x"], optax.sgd(0.1))
    return Case(
        step=train_step, state=(state, dynamic_scale.DynamicScale(scale=128.0)), batch=classified(), digits=0.01
    )


@case
def linen_lstm() -> Case:
    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            return nn.Dense(WORDS)(nn.RNN(nn.LSTMCell(WIDTH))(nn.Embed(WORDS, WIDTH)(ids)))

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return cross_entropy(state.apply_fn({"params": params}, batch["ids"]), batch["next"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Case(step=train_step, state=state_of(Tagger(), sentences()["ids"], adam()), batch=sentences(), narrow=True)


@case
def linen_partitioned_parameters() -> Case:
    class Split(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
            x = nn.relu(nn.Dense(WIDTH, kernel_init=dense)(x))
            return nn.Dense(CLASSES, kernel_init=dense)(nn.with_logical_constraint(x, ("batch", "hidden")))

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return cross_entropy(state.apply_fn({"params": params}, batch["x"]), batch["y"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Case(step=train_step, state=state_of(Split(), classified()["x"], adam()), batch=classified())


@case
def linen_encoder_decoder() -> Case:
    class Translator(nn.Module):
        @nn.compact
        def __call__(self, source: Any, target: Any) -> Any:
            memory = Block()(nn.Embed(WORDS, WIDTH)(source))
            x = Block()(nn.Embed(WORDS, WIDTH)(target), nn.make_causal_mask(target))
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(x, memory)
            return nn.Dense(WORDS)(x)

    model = Translator()

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch["ids"], batch["next"])
            weights = jnp.where(batch["next"] > 0, 1.0, 0.0)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"])
            return (each * weights).sum() / weights.sum()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    batch = sentences()
    params = model.init(jax.random.key(0), batch["ids"], batch["next"])["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=adam())
    return Case(step=train_step, state=state, batch=batch)


@case
def linen_vision_transformer() -> Case:
    class Vision(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(WIDTH, (2, 2), strides=(2, 2))(x)
            x = x.reshape(x.shape[0], -1, WIDTH)
            token = self.param("token", nn.initializers.zeros, (1, 1, WIDTH))
            x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
            x = x + self.param("places", nn.initializers.normal(0.02), (1, x.shape[1], WIDTH))
            return nn.Dense(CLASSES)(Block()(x)[:, 0])

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch["image"])
            labels = optax.smooth_labels(jax.nn.one_hot(batch["label"], CLASSES), 0.1)
            return optax.softmax_cross_entropy(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Case(step=train_step, state=state_of(Vision(), pictures()["image"], adam()), batch=pictures())


@case
def linen_intermediates_sown() -> Case:
    class Sowing(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.Dense(WIDTH)(x))
            self.sow("intermediates", "penalty", (x**2).mean())
            return nn.Dense(CLASSES)(x)

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits, kept = state.apply_fn({"params": params}, batch["x"], mutable=["intermediates"])
            penalty = sum(jax.tree.leaves(kept["intermediates"]))
            return cross_entropy(logits, batch["y"]) + 0.1 * penalty, penalty

        (loss, penalty), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads), loss, penalty

    return Case(step=train_step, state=state_of(Sowing(), classified()["x"], adam()), batch=classified())


@case
def linen_decoding_with_a_cache() -> Case:
    class Cached(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            x = nn.Embed(WORDS, WIDTH)(ids)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2, decode=True)(x)
            return nn.Dense(WORDS)(x)

    model = Cached()
    variables = model.init(jax.random.key(0), sentences()["ids"])

    def generate(params: Any, batch: Any) -> Any:
        def one(carried: Any, _: Any) -> Any:
            cache, word = carried
            logits, changed = model.apply({"params": params, "cache": cache}, word, mutable=["cache"])
            word = logits.argmax(-1).astype(jnp.int32)
            return (changed["cache"], word), word[:, 0]

        return jax.lax.scan(one, (batch["cache"], batch["ids"][:, :1]), None, length=LENGTH)[1].T

    batch = {"ids": sentences()["ids"], "cache": variables["cache"]}
    return Case(step=generate, state=variables["params"], batch=batch, after=lambda state, result: state)
