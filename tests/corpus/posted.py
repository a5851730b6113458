"""Steps as users post them in threads and notebooks: adapters, averages, recurrences, packed sequences, rewards."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training import train_state

from tests.corpus.case import (
    CLASSES,
    CLASSIFIER,
    FEATURES,
    LENGTH,
    SAMPLES,
    WIDTH,
    WORDS,
    Case,
    adam,
    case,
    classified,
    classifier_loss,
    cross_entropy,
    drawn,
    forward,
    in_place,
    mlp,
    sentences,
    sgd,
    trained,
    whole,
    with_optimizer,
)


def padded() -> dict[str, Any]:
    """Words behind which zeros stand."""
    lengths = whole(LENGTH, SAMPLES, seed=5) + 1
    ids = 1 + whole(WORDS - 1, SAMPLES, LENGTH, seed=1)
    return {
        "ids": jnp.where(jnp.arange(LENGTH) < lengths[:, None], ids, 0),
        "next": whole(WORDS, SAMPLES, LENGTH, seed=2),
    }


@case
def nnx_lora_fine_tune() -> Case:
    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.base = nnx.Linear(FEATURES, WIDTH, rngs=rngs)
            self.lora = nnx.LoRA(FEATURES, 2, WIDTH, rngs=rngs)
            self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(nnx.relu(self.base(x) + self.lora(x)))

    model = Net(nnx.Rngs(0))
    model.lora.lora_b.set_value(drawn(2, WIDTH, seed=9, scale=0.1))
    optimizer = nnx.Optimizer(model, adam(), wrt=nnx.LoRAParam)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            return cross_entropy(model(batch["x"]), batch["y"])

        loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
        optimizer.update(model, grads)
        return loss

    return Case(
        step=step,
        state=(model, optimizer),
        batch=classified(),
        jit=nnx.jit,
        after=in_place,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 2},
    )


@case
def linen_clip_by_global_norm_and_reported_norms() -> Case:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(CLASSES)(nn.gelu(nn.LayerNorm()(nn.Dense(WIDTH)(x))))

    model = Net()
    params = model.init(jax.random.key(0), drawn(1, FEATURES))["params"]
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=1e-3))
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch["x"])
            return cross_entropy(logits, batch["y"]), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        metrics = {
            "loss": loss,
            "grad_norm": optax.global_norm(grads),
            "param_norm": optax.global_norm(state.params),
            "accuracy": jnp.mean(jnp.argmax(logits, -1) == batch["y"]),
        }
        return state.apply_gradients(grads=grads), metrics

    return Case(step=step, state=state, batch=classified())


@case
def jax_label_smoothing_with_padding() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        logits = jnp.tanh(params["table"][batch["ids"]]) @ params["out"]
        smooth = optax.smooth_labels(jax.nn.one_hot(batch["next"], WORDS), 0.1)
        each = optax.softmax_cross_entropy(logits, smooth)
        mask = (batch["ids"] > 0).astype(logits.dtype)
        return (each * mask).sum() / jnp.maximum(mask.sum(), 1)

    params = {"table": drawn(WORDS, WIDTH), "out": drawn(WIDTH, WORDS)}
    return with_optimizer(adam(), loss, params, padded())


@case
def equinox_variational_autoencoder() -> Case:
    class Vae(eqx.Module):
        encoder: eqx.nn.MLP
        decoder: eqx.nn.MLP

        def __call__(self, x: Any, key: Any) -> Any:
            mean, log_var = jnp.split(self.encoder(x), 2)
            z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
            return self.decoder(z), mean, log_var

    one, other = jax.random.split(jax.random.key(0))
    model = Vae(eqx.nn.MLP(FEATURES, 4, WIDTH, 1, key=one), eqx.nn.MLP(2, FEATURES, WIDTH, 1, key=other))
    optimizer = adam()

    def loss_fn(model: Any, batch: Any, key: Any) -> Any:
        out, mean, log_var = jax.vmap(model)(batch["x"], jax.random.split(key, len(batch["x"])))
        kl = -0.5 * jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), axis=-1)
        return jnp.mean(jnp.sum((out - batch["x"]) ** 2, -1) + 0.5 * kl), {"kl": kl.mean()}

    def step(state: Any, batch: Any) -> Any:
        model, opt_state, key = state
        key, own = jax.random.split(key)
        (loss, aux), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, batch, own)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        return (eqx.apply_updates(model, updates), opt_state, key), (loss, aux)

    state = (model, optimizer.init(eqx.filter(model, eqx.is_array)), jax.random.key(1))
    return Case(step=step, state=state, batch=classified(), jit=eqx.filter_jit)


@case
def haiku_gru_over_padded_sequences() -> Case:
    def network(ids: Any) -> Any:
        core = hk.GRU(WIDTH)
        words = hk.Embed(WORDS, WIDTH)(ids)
        hidden, _ = hk.dynamic_unroll(core, words, core.initial_state(len(ids)), time_major=False)
        return hk.Linear(WORDS)(hidden)

    model = hk.without_apply_rng(hk.transform(network))

    def loss(params: Any, batch: Any) -> Any:
        each = optax.softmax_cross_entropy_with_integer_labels(model.apply(params, batch["ids"]), batch["next"])
        mask = batch["ids"] != 0
        return jnp.sum(jnp.where(mask, each, 0.0)) / jnp.sum(mask)

    return with_optimizer(adam(), loss, model.init(jax.random.key(0), padded()["ids"]), padded())


@case
def jax_selective_state_space_by_associative_scan() -> Case:
    def mixed(params: Any, x: Any) -> Any:
        step = jax.nn.softplus(x @ params["dt"])
        decay = jnp.exp(-step[..., None] * jnp.exp(params["a"]))
        into = (step * x)[..., None] * (x @ params["b"])[:, :, None, :]

        def combine(one: Any, other: Any) -> Any:
            return one[0] * other[0], other[0] * one[1] + other[1]

        _, hidden = jax.lax.associative_scan(combine, (decay, into), axis=1)
        return jnp.einsum("blds,bls->bld", hidden, x @ params["c"]) * jax.nn.silu(x @ params["gate"])

    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]]
        for layer in params["layers"]:
            x = x + mixed(layer, x)
        return cross_entropy(x @ params["table"].T, batch["next"])

    def layer(seed: int) -> Any:
        return {
            "dt": drawn(WIDTH, WIDTH, seed=seed, scale=0.3),
            "a": drawn(WIDTH, 3, seed=seed + 1, scale=0.3),
            "b": drawn(WIDTH, 3, seed=seed + 2, scale=0.3),
            "c": drawn(WIDTH, 3, seed=seed + 3, scale=0.3),
            "gate": drawn(WIDTH, WIDTH, seed=seed + 4, scale=0.3),
        }

    params = {"table": drawn(WORDS, WIDTH), "layers": [layer(10), layer(20)]}
    return with_optimizer(adam(), loss, params, sentences(length=8))


@case
def jax_mixture_of_depths() -> Case:
    """Of each sequence the words with the highest score go through a layer."""

    def layer(p: Any, x: Any) -> Any:
        score = (x @ p["router"])[..., 0]
        top, at = jax.lax.top_k(score, LENGTH // 2)
        chosen = jnp.take_along_axis(x, at[..., None], axis=1)
        made = jax.nn.gelu(chosen @ p["w"]) @ p["v"] * jax.nn.sigmoid(top)[..., None]
        return jax.vmap(lambda x, at, made: x.at[at].add(made))(x, at, made)

    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]] + params["at"]
        for p in params["layers"]:
            x = layer(p, x)
        return cross_entropy(x @ params["out"], batch["next"])

    layers = [
        {
            "router": drawn(WIDTH, 1, seed=s),
            "w": drawn(WIDTH, WIDTH, seed=s + 1, scale=0.3),
            "v": drawn(WIDTH, WIDTH, seed=s + 2, scale=0.3),
        }
        for s in (11, 21)
    ]
    params = {
        "table": drawn(WORDS, WIDTH),
        "at": drawn(LENGTH, WIDTH, seed=4),
        "layers": layers,
        "out": drawn(WIDTH, WORDS),
    }
    return with_optimizer(adam(), loss, params, sentences())


@case
def jax_physics_informed_second_derivatives() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def u(x: Any, t: Any) -> Any:
            return forward(params, jnp.stack([x, t]))[0]

        u_t = jax.vmap(jax.grad(u, 1))(batch["x"], batch["t"])
        u_xx = jax.vmap(jax.grad(jax.grad(u, 0), 0))(batch["x"], batch["t"])
        start = jax.vmap(u, (0, None))(batch["x"], 0.0) - jnp.sin(batch["x"])
        return ((u_t - 0.1 * u_xx) ** 2).mean() + (start**2).mean()

    batch = {"x": drawn(SAMPLES, seed=1), "t": drawn(SAMPLES, seed=2)}
    return with_optimizer(adam(), loss, mlp(2, WIDTH, WIDTH, 1), batch)


@case
def jax_tasks_weighted_by_learned_uncertainty() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch["x"] @ params["body"])
        tasks = {
            "class": cross_entropy(hidden @ params["class"], batch["y"]),
            "value": ((hidden @ params["value"] - batch["v"]) ** 2).mean(),
        }
        total = sum(
            jnp.exp(-params["log_var"][name]) * value + params["log_var"][name] for name, value in tasks.items()
        )
        return total, tasks

    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        (value, tasks), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), {"total": value, **tasks}

    params = {
        "body": drawn(FEATURES, WIDTH),
        "class": drawn(WIDTH, CLASSES),
        "value": drawn(WIDTH, 1),
        "log_var": {"class": jnp.float32(0.0), "value": jnp.float32(0.1)},
    }
    return Case(
        step=step, state=(params, optimizer.init(params)), batch=classified() | {"v": drawn(SAMPLES, 1, seed=3)}
    )


@case
def jax_loader_dictionary_with_weights_and_segments() -> Case:
    """Packed sequences: documents see themselves only, and each word has a weight."""

    def loss(params: Any, batch: Any) -> Any:
        inputs, targets = batch["inputs"], batch["targets"]
        x = params["table"][inputs["tokens"]] + params["at"][inputs["positions"]]
        scores = jnp.einsum("bqd,bkd->bqk", x @ params["q"], x @ params["k"])
        same = inputs["segments"][:, :, None] == inputs["segments"][:, None, :]
        seen = same & jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        x = x + jax.nn.softmax(jnp.where(seen, scores, -1e9)) @ (x @ params["v"])
        each = optax.softmax_cross_entropy_with_integer_labels(x @ params["table"].T, targets["tokens"])
        return jnp.sum(each * targets["weights"]) / jnp.sum(targets["weights"])

    params = {"table": drawn(WORDS, WIDTH), "at": drawn(LENGTH, WIDTH, seed=1)}
    params |= {name: drawn(WIDTH, WIDTH, seed=ord(name), scale=0.3) for name in "qkv"}
    words = sentences()
    positions = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32) % 3, (SAMPLES, 1))
    batch = {
        "inputs": {"tokens": words["ids"], "positions": positions, "segments": whole(2, SAMPLES, LENGTH)},
        "targets": {"tokens": words["next"], "weights": jnp.abs(drawn(SAMPLES, LENGTH, seed=7))},
    }
    return with_optimizer(adam(), loss, params, batch)


@case
def optax_schedule_free_adamw() -> Case:
    optimizer = optax.contrib.schedule_free_adamw(learning_rate=1e-2, warmup_steps=2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        state, loss = trained(optimizer)(state, batch)
        return state, (loss, classifier_loss(optax.contrib.schedule_free_eval_params(state[1], state[0]), batch))

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


@case
def jax_cond_skips_gradients_that_are_not_finite() -> Case:
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, skipped = state
        loss, grads = jax.value_and_grad(classifier_loss)(params, batch)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))

        def update(_: Any) -> Any:
            updates, new = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), new, skipped

        return jax.lax.cond(finite, update, lambda _: (params, opt_state, skipped + 1), None), loss

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, optimizer.init(params), jnp.int32(0)), batch=classified())


@case
def jax_policy_gradient_with_a_moving_baseline() -> Case:
    class Learner(NamedTuple):
        params: Any
        baseline: Any
        key: Any

    def step(state: Learner, batch: Any) -> Any:
        key, own = jax.random.split(state.key)

        def loss_fn(params: Any) -> Any:
            logits = forward(params, batch["x"])
            actions = jax.random.categorical(own, logits)
            reward = (actions == batch["y"]).astype(logits.dtype)
            logp = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], 1)[:, 0]
            entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1)
            return -(jax.lax.stop_gradient(reward - state.baseline) * logp + 0.01 * entropy).mean(), reward.mean()

        (_, reward), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        baseline = 0.9 * state.baseline + 0.1 * reward
        return Learner(sgd(state.params, grads), baseline, key), reward

    return Case(step=step, state=Learner(mlp(*CLASSIFIER), jnp.float32(0.0), jax.random.key(4)), batch=classified())
