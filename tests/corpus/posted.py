"""Steps as users post them in threads and notebooks: adapters, averages, recurrences, preferences, sampling."""

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
from jax.ad_checkpoint import checkpoint_name

from tests.corpus.case import (
    CLASSES,
    CLASSIFIER,
    FEATURES,
    LENGTH,
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
    in_place,
    mlp,
    sentences,
    sgd,
    trained,
    whole,
    with_optimizer,
)


def adam() -> Any:
    return optax.adam(1e-2, eps=1e-3)


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

    return Case(step=step, state=(model, optimizer), batch=classified(), jit=nnx.jit, after=in_place,
                call=lambda run, state, batch: run(*state, batch), options={"batch_argnums": 2})  # fmt: skip


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
        metrics = {"loss": loss, "grad_norm": optax.global_norm(grads), "param_norm": optax.global_norm(state.params),
                   "accuracy": jnp.mean(jnp.argmax(logits, -1) == batch["y"])}  # fmt: skip
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
        return {"dt": drawn(WIDTH, WIDTH, seed=seed, scale=0.3), "a": drawn(WIDTH, 3, seed=seed + 1, scale=0.3),
                "b": drawn(WIDTH, 3, seed=seed + 2, scale=0.3), "c": drawn(WIDTH, 3, seed=seed + 3, scale=0.3),
                "gate": drawn(WIDTH, WIDTH, seed=seed + 4, scale=0.3)}  # fmt: skip

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

    layers = [{"router": drawn(WIDTH, 1, seed=s), "w": drawn(WIDTH, WIDTH, seed=s + 1, scale=0.3),
               "v": drawn(WIDTH, WIDTH, seed=s + 2, scale=0.3)} for s in (11, 21)]  # fmt: skip
    params = {"table": drawn(WORDS, WIDTH), "at": drawn(LENGTH, WIDTH, seed=4), "layers": layers,
              "out": drawn(WIDTH, WORDS)}  # fmt: skip
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
        tasks = {"class": cross_entropy(hidden @ params["class"], batch["y"]),
                 "value": ((hidden @ params["value"] - batch["v"]) ** 2).mean()}  # fmt: skip
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

    params = {"body": drawn(FEATURES, WIDTH), "class": drawn(WIDTH, CLASSES), "value": drawn(WIDTH, 1),
              "log_var": {"class": jnp.float32(0.0), "value": jnp.float32(0.1)}}  # fmt: skip
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
    batch = {"inputs": {"tokens": words["ids"], "positions": positions, "segments": whole(2, SAMPLES, LENGTH)},
             "targets": {"tokens": words["next"], "weights": jnp.abs(drawn(SAMPLES, LENGTH, seed=7))}}  # fmt: skip
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


def block(p: Any, x: Any) -> Any:
    """Attention and a perceptron, as in a decoder."""
    h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    scores = jnp.einsum("bqd,bkd->bqk", h @ p["q"], h @ p["k"]) / WIDTH**0.5
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    x = x + jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ (h @ p["v"])
    return x + jax.nn.gelu(checkpoint_name(x @ p["up"], "up")) @ p["down"]


def blocks(count: int) -> Any:
    """Weights of such layers, stacked."""
    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "up": (WIDTH, 16), "down": (16, WIDTH)}
    return {name: drawn(count, *shape, seed=ord(name[0]), scale=0.3) for name, shape in shapes.items()}


@case
def jax_checkpoint_saves_names_over_scanned_layers() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        policy = jax.checkpoint_policies.save_only_these_names("up")
        body = jax.checkpoint(lambda x, p: (block(p, x), None), policy=policy, prevent_cse=False)
        x, _ = jax.lax.scan(body, params["table"][batch["ids"]], params["layers"], unroll=2)
        return cross_entropy(x @ params["table"].T, batch["next"])

    return with_optimizer(adam(), loss, {"table": drawn(WORDS, WIDTH), "layers": blocks(4)}, sentences())


def log_probability(params: Any, ids: Any, mask: Any) -> Any:
    """Of each sequence, summed over the words of its answer."""
    logits = block(params["layer"], params["table"][ids[:, :-1]]) @ params["table"].T
    each = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], -1)[..., 0]
    return (each * mask[:, 1:]).sum(-1)


def small_decoder() -> Any:
    return {"table": drawn(WORDS, WIDTH, scale=0.5), "layer": jax.tree.map(lambda w: w[0], blocks(1))}


@case
def jax_direct_preferences_with_a_frozen_reference() -> Case:
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, reference = state

        def loss_fn(params: Any) -> Any:
            def gain(side: str) -> Any:
                given = batch[side], batch["mask"]
                return log_probability(params, *given) - jax.lax.stop_gradient(log_probability(reference, *given))

            chosen, rejected = gain("chosen"), gain("rejected")
            loss = -jax.nn.log_sigmoid(0.1 * (chosen - rejected)).mean()
            return loss, {"margin": 0.1 * (chosen - rejected).mean(), "accuracy": (chosen > rejected).mean()}

        (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, reference), (loss, aux)

    params = small_decoder()
    mask = (jnp.arange(LENGTH) >= 2).astype(jnp.float32) * jnp.ones((SAMPLES, 1))
    batch = {
        "chosen": whole(WORDS, SAMPLES, LENGTH, seed=1),
        "rejected": whole(WORDS, SAMPLES, LENGTH, seed=2),
        "mask": mask,
    }
    return Case(step=step, state=(params, optimizer.init(params), jax.tree.map(lambda w: w * 0.9, params)), batch=batch)


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


@case
def jax_speculative_acceptance() -> Case:
    """Which words of a small model a large one accepts, and what it puts behind them."""

    def step(params: Any, batch: Any, key: Any) -> Any:
        draft, target = (
            jax.nn.softmax(params[name]["table"][batch["ids"]] @ params[name]["out"]) for name in ("draft", "target")
        )
        u = jax.random.uniform(key, batch["next"].shape)
        p, q = (jnp.take_along_axis(one, batch["next"][..., None], -1)[..., 0] for one in (target, draft))
        accepted = jnp.cumprod((u < p / q).astype(jnp.int32), axis=1)
        count = accepted.sum(1)
        at = jnp.minimum(count, LENGTH - 1)[:, None, None]
        left = jnp.maximum(jnp.take_along_axis(target - draft, at, 1)[:, 0], 0)
        return {"accepted": count, "next": jnp.argmax(left, -1), "rate": count.mean()}

    params = {name: {"table": drawn(WORDS, WIDTH, seed=s), "out": drawn(WIDTH, WORDS, seed=s + 1)}
              for name, s in (("draft", 1), ("target", 5))}  # fmt: skip
    return Case(step=step, state=params, batch=sentences(), after=lambda state, result: state,
                call=lambda run, state, batch: run(state, batch, jax.random.key(2)))  # fmt: skip


@case
def jax_generation_with_a_cache_of_keys_and_values() -> Case:
    def step(params: Any, batch: Any) -> Any:
        samples, prompt = batch["ids"].shape
        total = prompt + 3
        p, dtype = params["layer"], params["table"].dtype

        def one(carry: Any, t: Any) -> Any:
            words, keys, values, last = carry
            ids = jnp.where(t < prompt, jax.lax.dynamic_index_in_dim(words, t, 1, keepdims=False), last)
            x = params["table"][ids]
            keys = jax.lax.dynamic_update_slice(keys, (x @ p["k"])[:, None], (0, t, 0))
            values = jax.lax.dynamic_update_slice(values, (x @ p["v"])[:, None], (0, t, 0))
            scores = jnp.einsum("bd,bkd->bk", x @ p["q"], keys)
            weights = jax.nn.softmax(jnp.where(jnp.arange(total) <= t, scores, -jnp.inf))
            x = x + jnp.einsum("bk,bkd->bd", weights, values)
            last = jnp.argmax(x @ params["table"].T, -1).astype(ids.dtype)
            return (words.at[:, t].set(ids), keys, values, last), last

        empty = jnp.zeros((samples, total, WIDTH), dtype)
        words = jnp.pad(batch["ids"], ((0, 0), (0, 3)))
        (words, *_), last = jax.lax.scan(one, (words, empty, empty, jnp.zeros_like(words[:, 0])), jnp.arange(total))
        return {"words": words, "last": last.T}

    return Case(step=step, state=small_decoder(), batch={"ids": sentences()["ids"]}, after=lambda state, result: state)


@case
def jax_dropless_experts_by_sorting() -> Case:
    """Words sorted by expert, a product for each group, and back."""

    def experts(p: Any, x: Any) -> Any:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = jax.lax.top_k(jax.nn.softmax(tokens @ p["router"]), 2)
        weights = weights / weights.sum(-1, keepdims=True)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=4)
        made = jax.nn.silu(jax.lax.ragged_dot(tokens[order // 2], p["up"], sizes))
        made = jax.lax.ragged_dot(made, p["down"], sizes)
        back = made[jnp.argsort(order)].reshape(-1, 2, WIDTH)
        return x + (back * weights[..., None]).sum(1).reshape(x.shape)

    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]]
        for p in params["layers"]:
            x = experts(p, x)
        return cross_entropy(x @ params["out"], batch["next"])

    layers = [{"router": drawn(WIDTH, 4, seed=s), "up": drawn(4, WIDTH, 16, seed=s + 1, scale=0.3),
               "down": drawn(4, 16, WIDTH, seed=s + 2, scale=0.3)} for s in (11, 21)]  # fmt: skip
    params = {"table": drawn(WORDS, WIDTH), "layers": layers, "out": drawn(WIDTH, WORDS)}
    return with_optimizer(adam(), loss, params, sentences())


@case
def jax_dropless_experts_scattered_back() -> Case:
    """The same with sums into the words that the rows came from."""

    def experts(p: Any, x: Any) -> Any:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = jax.lax.top_k(jax.nn.softmax(tokens @ p["router"]), 2)
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        rows = order // 2
        sizes = jnp.sum(jax.nn.one_hot(chosen.reshape(-1), 4, dtype=jnp.int32), axis=0)
        made = jax.lax.ragged_dot(jnp.take(tokens, rows, axis=0), p["up"], sizes)
        made = jax.lax.ragged_dot(jax.nn.gelu(made), p["down"], sizes) * weights.reshape(-1)[order][:, None]
        return x + jnp.zeros_like(tokens).at[rows].add(made).reshape(x.shape)

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(experts(params["moe"], params["table"][batch["ids"]]) @ params["out"], batch["next"])

    moe = {"router": drawn(WIDTH, 4, seed=3), "up": drawn(4, WIDTH, 16, seed=4, scale=0.3),
           "down": drawn(4, 16, WIDTH, seed=5, scale=0.3)}  # fmt: skip
    params = {"table": drawn(WORDS, WIDTH), "moe": moe, "out": drawn(WIDTH, WORDS)}
    return with_optimizer(adam(), loss, params, sentences())
