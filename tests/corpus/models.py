"""Steps in JAX alone: models, losses, kernels, and functions without a gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
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
    measured,
    mlp,
    sentences,
    sgd,
    whole,
    with_optimizer,
)


@case
def jax_fourier_features() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]]
        x = jnp.fft.fft(jnp.fft.fft(x, axis=-1), axis=-2).real
        return cross_entropy(forward(params["body"], x / LENGTH), batch["next"])

    params = {"table": drawn(WORDS, WIDTH), "body": mlp(WIDTH, WIDTH, WORDS)}
    return with_optimizer(optax.sgd(0.05), loss, params, sentences())


@case
def jax_sorted_features() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(forward(params, jnp.sort(batch["x"], axis=-1)), batch["y"])

    return with_optimizer(optax.sgd(0.1), loss)


@case
def jax_eigenvalues_in_the_loss() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        w = params["w"] + params["w"].T
        values, vectors = jnp.linalg.eigh(w)
        return (((batch["x"] @ vectors) * values) ** 2).mean() + jnp.sum(values**2)

    params = {"w": drawn(FEATURES, FEATURES) + jnp.diag(jnp.arange(6.0) * 3)}
    return with_optimizer(optax.sgd(1e-3), loss, params)


@case
def jax_shampoo_by_eigh() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, left = state
        loss, grads = jax.value_and_grad(lambda w: ((batch["x"] @ w) ** 2).mean() + w.sum() * 0.1)(params)
        left = left + grads @ grads.T
        values, vectors = jnp.linalg.eigh(left + 0.1 * jnp.eye(FEATURES))
        return (params - 0.1 * vectors @ jnp.diag(values**-0.25) @ vectors.T @ grads, left), loss

    return Case(step=step, state=(drawn(FEATURES, WIDTH), jnp.zeros((FEATURES, FEATURES))), batch=classified())


@case
def jax_contrastive() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        one = forward(params["image"], batch["x"])
        other = forward(params["text"], batch["z"])
        one, other = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (one, other))
        logits = one @ other.T * jnp.exp(params["scale"])
        labels = jnp.arange(len(logits))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    params = {"image": mlp(FEATURES, WIDTH, 4), "text": mlp(FEATURES, WIDTH, 4, seed=3), "scale": jnp.float32(0.0)}
    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "z": drawn(SAMPLES, FEATURES, seed=2)}
    return with_optimizer(optax.sgd(0.1), loss, params, batch)


@case
def jax_root_of_a_mean() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.sqrt(((forward(params, batch["x"]) - batch["y"]) ** 2).mean())

    return with_optimizer(optax.sgd(0.1), loss, mlp(FEATURES, WIDTH, 1), measured())


@case
def jax_auxiliary_results() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        logits = forward(params, batch["x"])
        right = logits.argmax(-1) == batch["y"]
        return cross_entropy(logits, batch["y"]), {"logits": logits, "right": right.sum(), "share": right.mean()}

    def step(params: Any, batch: Any) -> Any:
        (value, seen), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        return sgd(params, grads), value, seen

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_sharding_constraints() -> Case:
    def step(params: Any, batch: Any) -> Any:
        mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

        def loss(p: Any) -> Any:
            x = jax.lax.with_sharding_constraint(batch["x"], split)
            return cross_entropy(forward(p, x), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_shard_map_inside() -> Case:
    def step(params: Any, batch: Any) -> Any:
        mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec

        @partial(jax.shard_map, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec())
        def mean_loss(p: Any, batch: Any) -> Any:
            return jax.lax.pmean(classifier_loss(p, batch), "data")

        value, grads = jax.value_and_grad(mean_loss)(params, batch)
        return sgd(params, grads), value

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_pallas_kernel_inside() -> Case:
    from jax.experimental import pallas as pl

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    twice.defvjp(lambda x: (twice(x), None), lambda _, g: (twice(g),))

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(forward(params[1:], twice(jnp.tanh(batch["x"] @ params[0]["w"]))), batch["y"])

    return with_optimizer(optax.sgd(0.1), loss)


@case
def jax_nanogpt() -> Case:
    def block(p: Any, x: Any) -> Any:
        q, k, v = jnp.split(norm(x) @ p["qkv"], 3, axis=-1)
        q, k, v = (t.reshape(*t.shape[:2], 2, -1) for t in (q, k, v))
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ p["out"]
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]] + params["places"]
        for p in params["blocks"]:
            x = block(p, x)
        return cross_entropy(norm(x) @ params["table"].T, batch["next"])

    def weights(i: int) -> Any:
        shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 16), "down": (16, WIDTH)}
        return {name: drawn(*shape, seed=i + at, scale=0.2) for at, (name, shape) in enumerate(shapes.items())}

    params = {"table": drawn(WORDS, WIDTH), "places": drawn(LENGTH, WIDTH), "blocks": [weights(0), weights(9)]}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, eps=1e-3))
    return with_optimizer(optimizer, loss, params, sentences(), narrow=True)


@case
def jax_mixture_of_experts() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]]
        gate = jax.nn.softmax(x @ params["gate"])
        weight, chosen = jax.lax.top_k(gate, 2)
        mix = (jax.nn.one_hot(chosen, 4) * weight[..., None]).sum(-2)
        y = jnp.einsum("bte,btef->btf", mix, jax.nn.relu(jnp.einsum("btd,edf->btef", x, params["experts"])))
        return cross_entropy(y @ params["out"], batch["next"])

    params = {
        "table": drawn(WORDS, WIDTH),
        "gate": drawn(WIDTH, 4),
        "experts": drawn(4, WIDTH, WIDTH),
        "out": drawn(WIDTH, WORDS),
    }
    return with_optimizer(optax.sgd(0.1), loss, params, sentences())


@case
def jax_switch_balance_loss() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]]
        gate = jax.nn.softmax(x @ params["gate"])
        chosen = jax.nn.one_hot(gate.argmax(-1), 4)
        y = jnp.einsum("bte,btd,edf->btf", chosen * gate, x, params["experts"])
        balance = 4 * (chosen.mean((0, 1)) * gate.mean((0, 1))).sum()
        return cross_entropy(y @ params["out"], batch["next"]) + 0.01 * balance

    params = {
        "table": drawn(WORDS, WIDTH),
        "gate": drawn(WIDTH, 4),
        "experts": drawn(4, WIDTH, WIDTH),
        "out": drawn(WIDTH, WORDS),
    }
    return with_optimizer(optax.sgd(0.1), loss, params, sentences())


@case
def jax_low_rank_adapters() -> Case:
    def step(state: Any, batch: Any) -> Any:
        def loss(adapters: Any) -> Any:
            layers = [
                {"w": p["w"] + a["down"] @ a["up"], "b": p["b"]} for p, a in zip(state["base"], adapters, strict=True)
            ]
            return classifier_loss(layers, batch)

        value, grads = jax.value_and_grad(loss)(state["adapters"])
        return state | {"adapters": sgd(state["adapters"], grads)}, value

    base = mlp(*CLASSIFIER)
    adapters = [
        {"down": drawn(p["w"].shape[0], 2, seed=i), "up": jnp.zeros((2, p["w"].shape[1]))} for i, p in enumerate(base)
    ]
    return Case(step=step, state={"base": base, "adapters": adapters}, batch=classified())


@case
def jax_preference_pairs() -> Case:
    def step(state: Any, batch: Any) -> Any:
        def logp(params: Any, ids: Any) -> Any:
            logits = jax.nn.log_softmax(forward(params["body"], params["table"][ids[:, :-1]]))
            return jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0].sum(-1)

        fixed = [logp(state["reference"], batch[name]) for name in ("chosen", "rejected")]

        def loss(params: Any) -> Any:
            one, other = (logp(params, batch[name]) for name in ("chosen", "rejected"))
            return -jax.nn.log_sigmoid(0.1 * ((one - fixed[0]) - (other - fixed[1]))).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        return state | {"params": sgd(state["params"], grads)}, value

    params = {"table": drawn(WORDS, WIDTH), "body": mlp(WIDTH, WIDTH, WORDS)}
    batch = {"chosen": whole(WORDS, SAMPLES, LENGTH, seed=1), "rejected": whole(WORDS, SAMPLES, LENGTH, seed=2)}
    return Case(step=step, state={"params": params, "reference": jax.tree.map(jnp.copy, params)}, batch=batch)


@case
def jax_distillation() -> Case:
    def step(state: Any, batch: Any) -> Any:
        teacher = jax.nn.softmax(forward(state["teacher"], batch["x"]))

        def loss(p: Any) -> Any:
            return -(teacher * jax.nn.log_softmax(forward(p, batch["x"]))).sum(-1).mean()

        value, grads = jax.value_and_grad(loss)(state["student"])
        return state | {"student": sgd(state["student"], grads)}, value

    return Case(step=step, state={"teacher": mlp(*CLASSIFIER, seed=7), "student": mlp(*CLASSIFIER)}, batch=classified())


@case
def jax_evaluation_without_gradient() -> Case:
    def evaluate(params: Any, batch: Any) -> Any:
        logits = forward(params, batch["x"])
        return {
            "loss": cross_entropy(logits, batch["y"]),
            "right": (logits.argmax(-1) == batch["y"]).sum(),
            "logits": logits,
        }

    return Case(step=evaluate, state=mlp(*CLASSIFIER), batch=classified(), after=lambda state, result: state)


@case
def jax_generation_by_scan() -> Case:
    def generate(params: Any, batch: Any) -> Any:
        def one(carried: Any, _: Any) -> Any:
            word, hidden = carried
            hidden = jnp.tanh(params["table"][word] + hidden @ params["h"])
            word = (hidden @ params["out"]).argmax(-1).astype(jnp.int32)
            return (word, hidden), word

        start = batch["ids"][:, 0]
        return jax.lax.scan(one, (start, jnp.zeros((len(start), WIDTH))), None, length=5)[1].T

    params = {"table": drawn(WORDS, WIDTH), "h": drawn(WIDTH, WIDTH), "out": drawn(WIDTH, WORDS)}
    return Case(step=generate, state=params, batch=sentences(), after=lambda state, result: state)


@case
def jax_state_alone() -> Case:
    def step(state: Any) -> Any:
        params, key = state
        key, own = jax.random.split(key)
        x = jax.random.normal(own, (SAMPLES, FEATURES))
        loss, grads = jax.value_and_grad(lambda p: ((forward(p, x) - x.sum(-1, keepdims=True)) ** 2).mean())(params)
        return (sgd(params, grads), key), loss

    return Case(
        step=step, state=(mlp(FEATURES, WIDTH, 1), jax.random.key(0)), call=lambda run, state, batch: run(state)
    )
