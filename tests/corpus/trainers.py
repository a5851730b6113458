"""Steps as trainers of libraries write them: how they are called, what they return, what surrounds the gradient."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax import nnx, struct
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
    pictures,
    sentences,
    sgd,
    whole,
    with_optimizer,
)


@case
def haiku_loss_scale_that_skips_what_is_not_finite() -> Case:
    def net(x: Any) -> Any:
        return hk.nets.MLP([WIDTH, CLASSES])(x)

    model, optimizer = hk.without_apply_rng(hk.transform(net)), optax.sgd(0.1)
    policy = jmp.get_policy("params=float32,compute=bfloat16,output=float32")

    def loss(params: Any, scale: Any, batch: Any) -> Any:
        params, x = policy.cast_to_compute((params, batch["x"]))
        value = cross_entropy(policy.cast_to_output(model.apply(params, x)), batch["y"])
        return scale.scale(value), value

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, scale = state
        grads, value = jax.grad(loss, has_aux=True)(params, scale, batch)
        grads = scale.unscale(policy.cast_to_param(grads))
        finite = jmp.all_finite(grads)
        scale = scale.adjust(finite)
        updates, new_opt_state = optimizer.update(grads, opt_state)
        new_params = optax.apply_updates(params, updates)
        params, opt_state = jmp.select_tree(finite, (new_params, new_opt_state), (params, opt_state))
        return (params, opt_state, scale), {"loss": value, "scale": scale.loss_scale}

    batch = classified()
    params = model.init(jax.random.PRNGKey(0), batch["x"])
    scale = jmp.DynamicLossScale(jnp.float32(2.0**10), period=3)
    return Case(step=step, state=(params, optimizer.init(params), scale), batch=batch, digits=0.02, narrow=True)


class HubState(train_state.TrainState):
    dropout_rng: Any


@case
def linen_language_model_as_on_the_hub() -> Case:
    """Labels shifted inside of the step, a key in the state, masks of words, the schedule's rate among the metrics."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any, deterministic: bool) -> Any:
            own = nn.LayerNorm()(x)
            x = x + nn.SelfAttention(2, dropout_rate=0.1, deterministic=deterministic)(own, mask)
            own = nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))
            return x + nn.Dropout(0.1)(own, deterministic=deterministic)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, input_ids: Any, attention_mask: Any, deterministic: bool = True) -> Any:
            positions = jnp.cumsum(attention_mask, -1) - 1
            embed = nn.Embed(WORDS, WIDTH)
            x = embed(input_ids) + nn.Embed(LENGTH, WIDTH)(jnp.maximum(positions, 0))
            mask = nn.combine_masks(
                nn.make_causal_mask(input_ids), nn.make_attention_mask(attention_mask, attention_mask)
            )
            for _ in range(2):
                x = Block()(x, mask, deterministic)
            return (embed.attend(nn.LayerNorm()(x)),)

    model = Model()
    rate = optax.join_schedules([optax.linear_schedule(0.0, 1e-2, 2), optax.linear_schedule(1e-2, 0.0, 8)], [2])

    def decayed(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key != "bias" and "LayerNorm" not in str(path), params
        )

    def step(state: Any, batch: Any) -> Any:
        dropout_rng, new_dropout_rng = jax.random.split(state.dropout_rng)

        def compute_loss(params: Any) -> Any:
            batch_ = dict(batch)
            labels = batch_.pop("labels")
            logits = state.apply_fn({"params": params}, **batch_, deterministic=False, rngs={"dropout": dropout_rng})[0]
            shift_logits, shift_labels = logits[..., :-1, :], labels[..., 1:]
            each = optax.softmax_cross_entropy(shift_logits, jax.nn.one_hot(shift_labels, shift_logits.shape[-1]))
            mask = batch_["attention_mask"][..., 1:]
            return (each * mask).sum() / mask.sum()

        value, grad = jax.value_and_grad(compute_loss)(state.params)
        new_state = state.apply_gradients(grads=grad)
        return (
            new_state.replace(dropout_rng=new_dropout_rng),
            {"loss": value, "learning_rate": rate(state.step), "perplexity": jnp.exp(value)},
        )

    ids = whole(WORDS, SAMPLES, LENGTH, seed=1)
    mask = (jnp.arange(LENGTH) < 3 + whole(4, SAMPLES, 1, seed=3)).astype(jnp.int32)
    params = model.init(jax.random.key(0), ids, mask)["params"]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=1e-3, weight_decay=0.1, mask=decayed))
    state = HubState.create(apply_fn=model.apply, params=params, tx=optimizer, dropout_rng=jax.random.PRNGKey(1))
    return Case(step=step, state=state, batch={"input_ids": ids, "attention_mask": mask, "labels": ids})


@case
def linen_encoder_decoder_with_relative_positions() -> Case:
    def buckets(n: int, m: int) -> Any:
        far = jnp.arange(m)[None] - jnp.arange(n)[:, None]
        near = jnp.abs(far)
        big = 2 + (jnp.log(jnp.maximum(near, 1) / 2) / np.log(4) * 2).astype(jnp.int32)
        return jnp.where(far > 0, 4, 0) + jnp.where(near < 2, near, jnp.minimum(big, 3))

    class Attention(nn.Module):
        relative: bool

        @nn.compact
        def __call__(self, x: Any, y: Any, mask: Any) -> Any:
            q, k, v = (nn.DenseGeneral((2, 4), use_bias=False, name=n)(z) for n, z in (("q", x), ("k", y), ("v", y)))
            bias = jnp.where(mask, 0.0, -1e9)
            if self.relative:
                bias = bias + nn.Embed(8, 2)(buckets(x.shape[1], y.shape[1])).transpose(2, 0, 1)[None]
            scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias)
            return nn.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=False)(jnp.einsum("bhqk,bkhd->bqhd", scores, v))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, source: Any, target: Any) -> Any:
            embed = nn.Embed(WORDS, WIDTH)
            there = (source != 0)[:, None, None]
            x = embed(source)
            x = x + Attention(relative=True)(nn.RMSNorm()(x), nn.RMSNorm()(x), there)
            x = nn.RMSNorm()(x + nn.Dense(WIDTH)(nn.relu(nn.Dense(WIDTH)(x))))
            y = embed(jnp.pad(target[:, :-1], ((0, 0), (1, 0))))
            own = nn.RMSNorm()(y)
            y = y + Attention(relative=True)(own, own, nn.make_causal_mask(target) > 0)
            y = y + Attention(relative=False)(nn.RMSNorm()(y), x, there)
            return embed.attend(nn.RMSNorm()(y) * WIDTH**-0.5)

    model = Model()

    def loss(params: Any, batch: Any) -> Any:
        logits = model.apply({"params": params}, batch["source"], batch["target"])
        hot = optax.smooth_labels(jax.nn.one_hot(batch["target"], WORDS), 0.1)
        each, there = optax.softmax_cross_entropy(logits, hot), batch["target"] > 0
        return jnp.where(there, each, 0).sum() / there.sum()

    batch = {"source": whole(WORDS, SAMPLES, LENGTH, seed=1), "target": whole(WORDS, SAMPLES, 4, seed=2)}
    params = model.init(jax.random.key(0), batch["source"], batch["target"])["params"]
    return with_optimizer(optax.chain(optax.adaptive_grad_clip(0.1), adam()), loss, params, batch)


@case
def jax_loss_in_front_and_arguments_one_by_one() -> Case:
    optimizer = optax.chain(optax.add_noise(0.01, 0.55, 0), optax.adam(optax.cosine_onecycle_schedule(10, 1e-2)))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, opt_state: Any, x: Any, y: Any, key: Any) -> Any:
        def loss(p: Any, x: Any, y: Any) -> Any:
            kept = jax.random.bernoulli(key, 0.9, x.shape)
            return cross_entropy(forward(p, x * kept / 0.9), y)

        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return value, optax.apply_updates(params, updates), opt_state

    params, batch = mlp(*CLASSIFIER), classified()
    return Case(
        step=update,
        state=(params, optimizer.init(params)),
        batch=batch,
        call=lambda run, state, batch: run(*state, batch["x"], batch["y"], jax.random.key(3)),
        after=lambda state, result: jax.tree.map(jnp.copy, result[1:]),
        options={"batch_argnums": (2, 3)},
    )


@case
def jax_pictures_of_bytes_from_numpy() -> Case:
    """What loaders hand out: NumPy, bytes, booleans, a number of Python and nothing at all."""

    def loss(params: Any, batch: Any) -> Any:
        image, label, mask = batch["image"], batch["label"], batch["mask"]
        x = image.astype(jnp.float32).reshape(len(image), -1) / 255.0 - 0.5
        each = optax.softmax_cross_entropy(forward(params, x), jax.nn.one_hot(label, CLASSES)) * batch["weight"]
        return jnp.sum(each, where=mask) / jnp.count_nonzero(mask)

    rng = np.random.RandomState(0)
    batch = {
        "image": rng.randint(0, 256, (SAMPLES, 2, 3, 1)).astype(np.uint8),
        "label": rng.randint(0, CLASSES, SAMPLES),
        "mask": rng.rand(SAMPLES) < 0.7,
        "weight": 2.0,
        "text": None,
    }
    return with_optimizer(adam(), loss, mlp(*CLASSIFIER), batch)


@case
def jax_what_a_recurrence_remembers_carried_between_calls() -> Case:
    """Truncated backpropagation: the state holds something of every sample."""

    def step(state: Any, batch: Any) -> Any:
        params, hidden = state

        def loss(p: Any) -> Any:
            def cell(h: Any, x: Any) -> Any:
                h = jnp.tanh(p["table"][x] + h @ p["own"])
                return h, h

            end, seen = jax.lax.scan(cell, hidden, batch["ids"].T)
            return cross_entropy(seen.swapaxes(0, 1) @ p["out"], batch["next"]), end

        (value, end), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return (sgd(params, grads), jax.lax.stop_gradient(end)), value

    params = {"table": drawn(WORDS, WIDTH), "own": drawn(WIDTH, WIDTH, seed=1, scale=0.3), "out": drawn(WIDTH, WORDS)}
    return Case(step=step, state=(params, jnp.zeros((SAMPLES, WIDTH))), batch=sentences())


@case
def jax_energies_with_samples_kept_and_moved() -> Case:
    """Chains in the state, moved by gradients with respect to what they are, in a loop within the step."""

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, chains, key = state
        key, own = jax.random.split(key)

        def energy(p: Any, x: Any) -> Any:
            return forward(p, x)[..., 0]

        def moved(x: Any, key: Any) -> Any:
            slope = jax.grad(lambda x: energy(params, x).sum())(x)
            return x - 0.1 * slope + 0.05 * jax.random.normal(key, x.shape), None

        chains, _ = jax.lax.scan(moved, chains, jax.random.split(own, 3))

        def loss(p: Any) -> Any:
            real, fake = energy(p, batch["x"]), energy(p, chains)
            return real.mean() - fake.mean() + 0.1 * ((real**2).mean() + (fake**2).mean())

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = adam().update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, chains, key), value

    params = mlp(FEATURES, WIDTH, 1)
    state = (params, adam().init(params), drawn(SAMPLES, FEATURES, seed=5), jax.random.key(0))
    return Case(step=step, state=state, batch={"x": drawn(SAMPLES, FEATURES, seed=1)})


@case
def equinox_spectral_norm_with_state() -> Case:
    class Judge(eqx.Module):
        first: eqx.nn.SpectralNorm
        last: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            a, b, c = jax.random.split(key, 3)
            self.first = eqx.nn.SpectralNorm(eqx.nn.Linear(FEATURES, WIDTH, key=a), "weight", key=b)
            self.last = eqx.nn.Linear(WIDTH, CLASSES, key=c)

        def __call__(self, x: Any, state: Any) -> Any:
            x, state = self.first(x, state)
            return self.last(jax.nn.relu(x)), state

    model, start = eqx.nn.make_with_state(Judge)(jax.random.key(0))
    optimizer = adam()

    @eqx.filter_value_and_grad(has_aux=True)
    def loss(model: Any, state: Any, batch: Any) -> Any:
        run = jax.vmap(model, in_axes=(0, None), out_axes=(0, None))
        logits, state = run(batch["x"], state)
        return cross_entropy(logits, batch["y"]), state

    def step(everything: Any, batch: Any) -> Any:
        model, state, opt_state = everything
        (value, state), grads = loss(model, state, batch)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), state, opt_state), value

    state = (model, start, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    return Case(step=step, state=state, batch=classified(), jit=eqx.filter_jit)


@case
def nnx_recurrent_both_ways_with_one_object_for_model_and_moments() -> Case:
    class Tagger(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.table = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.there = nnx.RNN(nnx.GRUCell(WIDTH, WIDTH, rngs=rngs))
            self.back = nnx.RNN(nnx.OptimizedLSTMCell(WIDTH, WIDTH, rngs=rngs), reverse=True, keep_order=True)
            self.drop = nnx.Dropout(0.1, rngs=rngs)
            self.out = nnx.Linear(2 * WIDTH, WORDS, rngs=rngs)

        def __call__(self, ids: Any, lengths: Any) -> Any:
            x = self.table(ids)
            both = jnp.concatenate([self.there(x, seq_lengths=lengths), self.back(x, seq_lengths=lengths)], -1)
            return self.out(self.drop(both))

    def loss(model: Any, batch: Any) -> Any:
        each = optax.softmax_cross_entropy_with_integer_labels(model(batch["ids"], batch["len"]), batch["next"])
        there = jnp.arange(LENGTH)[None] < batch["len"][:, None]
        return (each * there).sum() / there.sum()

    def step(optimizer: Any, batch: Any) -> Any:
        value, grads = nnx.value_and_grad(loss)(optimizer.model, batch)
        optimizer.update(grads)
        return value

    optimizer = nnx.ModelAndOptimizer(Tagger(nnx.Rngs(0)), adam())
    batch = {**sentences(), "len": 1 + whole(LENGTH, SAMPLES, seed=4)}
    return Case(step=step, state=optimizer, batch=batch, after=in_place, jit=nnx.jit, narrow=True)


@case
def linen_frozen_statistics_with_pooling_and_standardized_kernels() -> Case:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.WeightNorm(nn.Conv(4, (3, 3)))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=True)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
            x = nn.relu(nn.GroupNorm(2)(nn.Conv(4, (3, 3), feature_group_count=2)(x)))
            return nn.Dense(CLASSES)(nn.avg_pool(x, (3, 3)).reshape(len(x), -1))

    model = Net()
    batch = pictures()
    held = model.init(jax.random.key(0), batch["image"])

    def loss(params: Any, batch: Any) -> Any:
        logits = model.apply({"params": params, "batch_stats": held["batch_stats"]}, batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    return with_optimizer(
        optax.chain(optax.centralize(), adam()) if hasattr(optax, "centralize") else adam(), loss, held["params"], batch
    )


@struct.dataclass
class Confusion:
    table: Any
    top: Any
    logits: Any


@case
def linen_metrics_that_return_every_prediction() -> Case:
    def step(params: Any, batch: Any) -> Any:
        def loss(p: Any) -> Any:
            logits = forward(p, batch["x"])
            return cross_entropy(logits, batch["y"]), logits

        (value, logits), grads = jax.value_and_grad(loss, has_aux=True)(params)
        guess = logits.argmax(-1)
        table = jnp.zeros((CLASSES, CLASSES), jnp.int32).at[batch["y"], guess].add(1)
        top = (jax.lax.top_k(logits, 2)[1] == batch["y"][:, None]).any(-1).mean()
        norms = jax.tree.map(jnp.linalg.norm, grads)
        return sgd(params, grads), (value, Confusion(table=table, top=top, logits=logits), norms)

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_step_of_a_class_with_partial_arguments() -> Case:
    class Trainer:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer, self.scale = optimizer, 0.5

        def step(self, state: Any, batch: Any, *, smoothing: float, train: bool = True) -> Any:
            params, opt_state = state
            x, y = batch

            def loss(p: Any) -> Any:
                hot = optax.smooth_labels(jax.nn.one_hot(y, CLASSES, dtype=x.dtype), smoothing)
                return self.scale * optax.softmax_cross_entropy(forward(p, x), hot).mean()

            value, grads = jax.value_and_grad(loss)(params)
            updates, opt_state = self.optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), value

    optimizer = optax.MultiSteps(optax.chain(optax.clip_by_block_rms(1.0), adam()), every_k_schedule=2)
    trainer, params, batch = Trainer(optimizer), mlp(*CLASSIFIER), classified()
    return Case(
        step=functools.partial(trainer.step, smoothing=0.1),
        state=(params, optimizer.init(params)),
        batch=(batch["x"], batch["y"]),
        narrow=True,
    )


@case
def jax_step_for_pmap_with_a_named_axis() -> Case:
    """As older guides have it: gradients averaged over an axis that `pmap` names."""

    def step(params: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(classifier_loss)(params, batch)
        grads = jax.lax.pmean(grads, "batch")
        return sgd(params, grads), jax.lax.pmean(value, "batch")

    def jit(fun: Any) -> Any:
        return jax.jit(jax.vmap(fun, in_axes=(None, None), axis_size=1, axis_name="batch", out_axes=None))

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified(), jit=jit)


@case
def jax_activations_offloaded_by_name() -> Case:
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["kept"],
        names_which_can_be_offloaded=["sent"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def loss(params: Any, batch: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            x = checkpoint_name(jnp.tanh(x @ p["one"]), "sent")
            return checkpoint_name(jnp.tanh(x @ p["two"]), "kept"), None

        x, _ = jax.lax.scan(jax.checkpoint(layer, policy=policy), batch["x"] @ params["in"], params["layers"])
        return cross_entropy(x @ params["out"], batch["y"])

    params = {
        "in": drawn(FEATURES, WIDTH),
        "layers": {"one": drawn(3, WIDTH, WIDTH, scale=0.3), "two": drawn(3, WIDTH, WIDTH, seed=1, scale=0.3)},
        "out": drawn(WIDTH, CLASSES),
    }
    return with_optimizer(adam(), loss, params)
