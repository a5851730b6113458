"""Whole recipes: what users put together of several libraries' parts in one training step."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

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
    whole,
)
from tests.corpus.nnx_steps import adam

LAYERS, EXPERTS, AVERAGE = 2, 8, 0.9


# ---- 16 bits with a scale of the loss that adapts


class Scaled(NamedTuple):
    """Weights of 32 bits, an average of them, and the scale of the loss."""

    params: Any
    moments: Any
    average: Any
    scale: jax.Array
    good: jax.Array
    key: jax.Array


@case
def jax_half_precision_with_an_adaptive_scale_and_dropout() -> Case:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adam())

    def loss(params: Any, batch: Any, key: jax.Array, scale: jax.Array) -> Any:
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        x = batch["x"].astype(jnp.bfloat16)
        for number, layer in enumerate(half):
            x = x @ layer["w"] + layer["b"]
            if number < len(half) - 1:
                x = jax.nn.gelu(x)
                keep = jax.random.bernoulli(jax.random.fold_in(key, number), 0.8, x.shape)
                x = jnp.where(keep, x / 0.8, 0)
        value = cross_entropy(x.astype(jnp.float32), batch["y"])
        return value * scale, value

    @partial(jax.jit, donate_argnums=0)
    def step(state: Scaled, batch: Any) -> Any:
        key, now = jax.random.split(state.key)
        (_, value), grads = jax.value_and_grad(loss, has_aux=True)(state.params, batch, now, state.scale)
        grads = jax.tree.map(lambda g: g / state.scale, grads)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        changes, moments = optimizer.update(grads, state.moments, state.params)
        params = optax.apply_updates(state.params, changes)
        params, moments = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (params, moments), (state.params, state.moments)
        )
        good = jnp.where(finite, state.good + 1, 0)
        scale = jnp.where(finite, jnp.where(good % 2 == 0, state.scale * 2, state.scale), state.scale / 2)
        average = jax.tree.map(lambda a, p: AVERAGE * a + (1 - AVERAGE) * p, state.average, params)
        return Scaled(params, moments, average, scale, good, key), {"loss": value, "finite": finite}

    params = mlp(*CLASSIFIER)
    state = Scaled(
        params, optimizer.init(params), mlp(*CLASSIFIER), jnp.float32(1024.0), jnp.int32(0), jax.random.key(7)
    )
    return Case(step=step.__wrapped__, state=state, batch=classified(), digits=1e-2)


# ---- experts sent over a mesh of the user's own


@case
def jax_experts_sent_by_shard_map() -> Case:
    mesh = jax.make_mesh((8,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(spec("expert"), spec("expert"), spec("expert"), spec("expert")),
        out_specs=spec("expert"),
    )
    def experts(up: Any, down: Any, words: Any, gates: Any) -> Any:
        # Each device holds some words for every expert, and afterwards every word for its own expert.
        sent = jax.lax.all_to_all(jnp.einsum("tm,te->etm", words, gates), "expert", 0, 0, tiled=True)
        out = jax.nn.relu(sent.reshape(-1, sent.shape[-1]) @ up[0]) @ down[0]
        back = jax.lax.all_to_all(out.reshape(sent.shape), "expert", 0, 0, tiled=True)
        return back.sum(0)

    def loss(params: Any, batch: Any) -> Any:
        words = jnp.tanh(batch["x"] @ params["into"])
        logits = words @ params["router"]
        best, chosen = jax.lax.top_k(jax.nn.softmax(logits), 2)
        gates = (jax.nn.one_hot(chosen, EXPERTS, dtype=best.dtype) * best[..., None]).sum(1)
        out = words + experts(params["up"], params["down"], words, gates)
        steady = 1e-3 * (jax.nn.logsumexp(logits, -1) ** 2).mean()
        return cross_entropy(out @ params["head"], batch["y"]) + steady

    optimizer = adam()
    params = {
        "into": drawn(FEATURES, WIDTH, seed=3),
        "router": drawn(WIDTH, EXPERTS, seed=4),
        "up": drawn(EXPERTS, WIDTH, 2 * WIDTH, seed=5, scale=0.3),
        "down": drawn(EXPERTS, 2 * WIDTH, WIDTH, seed=6, scale=0.3),
        "head": drawn(WIDTH, CLASSES, seed=7),
    }

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        changes, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, changes), moments), value

    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


# ---- tasks of their own batches


@case
def jax_tasks_with_batches_of_their_own() -> Case:
    """Words predicted, pictures classified and pairs ranked by one trunk, a batch of each."""
    optimizer = optax.partition(
        {"trunk": optax.adamw(1e-2, eps=1e-3), "heads": optax.sgd(0.05, momentum=0.9), "frozen": optax.set_to_zero()},
        {"trunk": "trunk", "words": "heads", "pictures": "heads", "rank": "heads", "table": "frozen"},
    )

    def loss(params: Any, batch: Any) -> Any:
        def trunk(x: Any) -> Any:
            return jnp.tanh(forward(params["trunk"], x))

        words = trunk(params["table"][batch["text"]["ids"]]) @ params["words"]
        present = batch["text"]["mask"]
        lost = optax.softmax_cross_entropy_with_integer_labels(words, batch["text"]["next"])
        text = (lost * present).sum() / jnp.maximum(present.sum(), 1)
        pictures = trunk(batch["pictures"]["x"]) @ params["pictures"]
        seen = optax.sigmoid_binary_cross_entropy(pictures, batch["pictures"]["many"]).sum(-1).mean()
        better, worse = ((trunk(batch["pairs"][name]) @ params["rank"]).sum(-1) for name in ("better", "worse"))
        ranked = -jax.nn.log_sigmoid(better - worse).mean()
        each = {"text": text, "pictures": seen, "pairs": ranked}
        return text + 0.5 * seen + 0.25 * ranked, each

    @jax.jit
    def step(params: Any, moments: Any, batch: Any) -> Any:
        (value, each), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        changes, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, changes), moments, each | {"loss": value, "norm": optax.tree.norm(grads)}

    batch = {
        "text": {**sentences(), "mask": (whole(4, SAMPLES, LENGTH, seed=9) > 0).astype(jnp.float32)},
        "pictures": {
            "x": drawn(SAMPLES, FEATURES, seed=10),
            "many": (whole(2, SAMPLES, CLASSES, seed=11) > 0).astype(jnp.float32),
        },
        "pairs": {"better": drawn(SAMPLES, FEATURES, seed=12), "worse": drawn(SAMPLES, FEATURES, seed=13)},
    }
    params = {
        "trunk": mlp(FEATURES, WIDTH, WIDTH),
        "words": drawn(WIDTH, WORDS, seed=14, scale=0.3),
        "pictures": drawn(WIDTH, CLASSES, seed=15, scale=0.3),
        "rank": drawn(WIDTH, 1, seed=16, scale=0.3),
        "table": drawn(WORDS, FEATURES, seed=17),
    }
    return Case(
        step=step,
        state=(params, optimizer.init(params)),
        batch=batch,
        call=lambda run, state, batch: run(*state, batch),
        after=lambda state, result: result[:2],
    )


# ---- accumulation of the user's own with dropout and words counted


@case
def jax_words_counted_over_accumulated_parts_with_dropout() -> Case:
    parts = 4
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adam())

    def lost(params: Any, part: Any, key: jax.Array) -> Any:
        x = params["table"][part["ids"]]
        x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)
        logits = jnp.tanh(x @ params["wide"]) @ params["head"]
        mask = part["next"] != 0
        each = optax.softmax_cross_entropy_with_integer_labels(logits, part["next"])
        return (each * mask).sum(), mask.sum(dtype=jnp.int32)

    def step(state: Any, batch: Any) -> Any:
        params, moments, key = state
        key, own = jax.random.split(key)
        cut = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)

        def one(carry: Any, now: Any) -> Any:
            part, key = now
            grads, total, count = carry
            (value, words), new = jax.value_and_grad(lost, has_aux=True)(params, part, key)
            return (jax.tree.map(jnp.add, grads, new), total + value, count + words), None

        start = jax.tree.map(jnp.zeros_like, params), jnp.zeros((), params["wide"].dtype), jnp.int32(0)
        (grads, total, count), _ = jax.lax.scan(one, start, (cut, jax.random.split(own, parts)))
        grads = jax.tree.map(lambda g: g / count, grads)
        changes, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, changes), moments, key), {"loss": total / count, "words": count}

    params = {
        "table": drawn(WORDS, WIDTH, seed=3),
        "wide": drawn(WIDTH, 2 * WIDTH, seed=4, scale=0.3),
        "head": drawn(2 * WIDTH, WORDS, seed=5, scale=0.3),
    }
    return Case(step=step, state=(params, optimizer.init(params), jax.random.key(3)), batch=sentences())


# ---- a checkpoint of Orbax between every two calls


@case
def jax_written_and_read_by_orbax_between_steps() -> Case:
    matrices = partial(jax.tree.map, lambda leaf: leaf.ndim > 1)
    decay = optax.masked(optax.add_decayed_weights(0.1), matrices)
    optimizer = optax.chain(decay, optax.ema(0.9), optax.sgd(0.1))

    def step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(classifier_loss)(state["params"], batch)
        changes, moments = optimizer.update(grads, state["moments"], state["params"])
        return {
            "params": optax.apply_updates(state["params"], changes),
            "moments": moments,
            "step": state["step"] + 1,
        }, value

    def again(state: Any, result: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpoints:
            checkpoints.save(Path(folder) / "step", result[0])
            checkpoints.wait_until_finished()
            return checkpoints.restore(Path(folder) / "step", jax.tree.map(ocp.utils.to_shape_dtype_struct, result[0]))

    params = mlp(*CLASSIFIER)
    state = {"params": params, "moments": optimizer.init(params), "step": jnp.int32(0)}
    return Case(step=step, state=state, batch=classified(), after=again)


# ---- numbers of 8 bits with a history of the largest


@case
def jax_eight_bits_scaled_by_a_history() -> Case:
    """Inputs and weights of products rounded to 8 bits, scaled by the largest of the steps before."""
    most = float(jnp.finfo(jnp.float8_e4m3fn).max)

    @jax.custom_vjp
    def rounded(x: Any, scale: Any) -> Any:
        return (jnp.clip(x / scale, -most, most).astype(jnp.float8_e4m3fn).astype(x.dtype)) * scale

    rounded.defvjp(lambda x, scale: (rounded(x, scale), scale), lambda scale, given: (given, jnp.zeros_like(scale)))

    def loss(params: Any, history: Any, batch: Any) -> Any:
        x, largest = batch["x"], []
        for layer, seen in zip(params, history, strict=True):
            scale = jnp.maximum(seen.max(1), 1e-3) / most
            largest.append(jnp.stack([jnp.abs(x).max(), jnp.abs(layer["w"]).max()]))
            x = rounded(x, scale[0]) @ rounded(layer["w"], scale[1]) + layer["b"]
            x = jax.nn.silu(x) if layer is not params[-1] else x
        return cross_entropy(x, batch["y"]), largest

    optimizer = optax.adam(1e-2, eps=1e-2)

    def step(state: Any, batch: Any) -> Any:
        params, moments, history = state
        (value, largest), grads = jax.value_and_grad(loss, has_aux=True)(params, history, batch)
        changes, moments = optimizer.update(grads, moments, params)
        history = [jnp.concatenate([seen[:, 1:], now[:, None]], 1) for seen, now in zip(history, largest, strict=True)]
        return (optax.apply_updates(params, changes), moments, history), value

    params = mlp(*CLASSIFIER)
    state = params, optimizer.init(params), [jnp.ones((2, 3))] * len(params)
    return Case(step=step, state=state, batch=classified(), digits=1e-5)


# ---- flow matching


@case
def nnx_flow_matching_with_dropped_labels() -> Case:
    class Modulated(nnx.Module):
        """Shifted and scaled by time and label."""

        def __init__(self, rngs: nnx.Rngs):
            self.norm = nnx.LayerNorm(WIDTH, use_bias=False, use_scale=False, rngs=rngs)
            self.by = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
            self.wide, self.narrow = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Any, about: Any) -> Any:
            shift, scale, gate = jnp.split(self.by(nnx.silu(about)), 3, -1)
            return x + gate * self.narrow(nnx.gelu(self.wide(self.norm(x) * (1 + scale) + shift)))

    class Velocity(nnx.Module):
        """Equal layers by scan of nnx."""

        def __init__(self, rngs: nnx.Rngs):
            self.into, self.out = nnx.Linear(FEATURES, WIDTH, rngs=rngs), nnx.Linear(WIDTH, FEATURES, rngs=rngs)
            self.labels = nnx.Embed(CLASSES + 1, WIDTH, rngs=rngs)

            @nnx.split_rngs(splits=LAYERS)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def made(rngs: nnx.Rngs) -> Any:
                return Modulated(rngs)

            self.layers = made(rngs)

        def __call__(self, x: Any, time: Any, label: Any) -> Any:
            waves = time[:, None] * jnp.exp(jnp.linspace(0, 3, WIDTH // 2, dtype=time.dtype))
            about = self.labels(label) + jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1)

            @nnx.scan(in_axes=(0, nnx.Carry, None), out_axes=nnx.Carry)
            def along(layer: Any, x: Any, about: Any) -> Any:
                return layer(x, about)

            return self.out(along(self.layers, self.into(x), about))

    model, average = Velocity(nnx.Rngs(0)), Velocity(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, adam(), wrt=nnx.Param)
    noise = nnx.Rngs(noise=3)

    def step(state: Any, batch: Any) -> Any:
        key = state["rngs"].noise()
        keys = jax.random.split(key, 3)
        x = batch["x"]
        start = jax.random.normal(keys[0], x.shape, x.dtype)
        time = jax.random.uniform(keys[1], (x.shape[0],), x.dtype)
        label = jnp.where(jax.random.bernoulli(keys[2], 0.1, (x.shape[0],)), CLASSES, batch["y"])

        def loss(model: Any) -> Any:
            now = (1 - time[:, None]) * start + time[:, None] * x
            return ((model(now, time, label) - (x - start)) ** 2).mean()

        value, grads = nnx.value_and_grad(loss)(state["model"])
        state["optimizer"].update(state["model"], grads)
        new = jax.tree.map(
            lambda a, p: AVERAGE * a + (1 - AVERAGE) * p,
            nnx.state(state["average"], nnx.Param),
            nnx.state(state["model"], nnx.Param),
        )
        nnx.update(state["average"], new)
        return value

    state = nnx.Dict({"model": model, "average": average, "optimizer": optimizer, "rngs": noise})
    return Case(step=step, state=state, batch=classified(), after=in_place, jit=nnx.jit, narrow=True)


# ---- adapters on weights of 4 bits


@case
def jax_adapters_on_quantized_weights() -> Case:
    def packed(seed: int, rows: int, columns: int) -> dict[str, Any]:
        numbers = np.random.RandomState(seed).randint(-8, 8, (rows, columns))
        return {"low": jnp.asarray(numbers, jnp.int8), "scale": jnp.full((1, columns), 0.05)}

    def product(x: Any, base: Any, adapter: Any) -> Any:
        weights = jax.lax.stop_gradient(base["low"].astype(x.dtype) * base["scale"])
        return x @ weights + 2.0 * (x @ adapter["a"]) @ adapter["b"]

    def loss(adapters: Any, base: Any, batch: Any) -> Any:
        x = base["table"][batch["ids"]]
        for weights, adapter in zip(base["layers"], adapters, strict=True):
            x = x + jnp.tanh(product(x, weights, adapter))
        logits = x @ base["table"].T
        return cross_entropy(logits, batch["next"])

    optimizer = optax.chain(optax.clip(0.5), adam())

    def step(state: Any, base: Any, batch: Any) -> Any:
        adapters, moments = state
        value, grads = jax.value_and_grad(loss)(adapters, base, batch)
        changes, moments = optimizer.update(grads, moments, adapters)
        return (optax.apply_updates(adapters, changes), moments), value

    base = {"table": drawn(WORDS, WIDTH, seed=3), "layers": [packed(i, WIDTH, WIDTH) for i in range(LAYERS)]}
    adapters = [{"a": drawn(WIDTH, 2, seed=8 + i, scale=0.3), "b": jnp.zeros((2, WIDTH))} for i in range(LAYERS)]
    return Case(
        step=step,
        state=((adapters, optimizer.init(adapters)), base),
        batch=sentences(),
        call=lambda run, state, batch: run(*state, batch),
        after=lambda state, result: (result[0], state[1]),
    )
