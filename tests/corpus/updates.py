"""Steps whose news is in the update: roundings, second gradients, bases, clips and averages of the weights."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax import nnx

from tests.corpus.case import (
    CLASSES,
    CLASSIFIER,
    FEATURES,
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
    with_optimizer,
)


@case
def jax_learned_steps_of_quantization() -> Case:
    """Weights and activations of four bits by straight-through, whose step sizes have scaled gradients of their own."""

    def scaled(x: Any, by: Any) -> Any:
        return jax.lax.stop_gradient(x - x * by) + x * by

    def through(x: Any) -> Any:
        return x + jax.lax.stop_gradient(jnp.round(x) - x)

    def quantized(x: Any, size: Any, low: float, high: float) -> Any:
        size = scaled(size, (x.size * high) ** -0.5 if x.ndim else 1.0)
        return through(jnp.clip(x / size, low, high)) * size

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for place, layer in enumerate(params):
            w = quantized(layer["w"], layer["w_step"], -8.0, 7.0)
            if place:
                size = scaled(layer["x_step"], (WIDTH * 15.0) ** -0.5)
                x = through(jnp.clip(jax.nn.relu(x) / size, 0.0, 15.0)) * size
            x = x @ w + layer["b"]
        return cross_entropy(x, batch["y"])

    params = [
        layer | {"w_step": jnp.abs(layer["w"]).mean() / 4, "x_step": jnp.array(0.2)} for layer in mlp(*CLASSIFIER)
    ]
    return with_optimizer(optax.sgd(0.02), loss, params)


@case
def jax_weights_of_three_values_with_norms_before() -> Case:
    """Weights of -1, 0 and 1 times their mean, activations of eight bits by the largest of each sample."""

    def through(x: Any, y: Any) -> Any:
        return x + jax.lax.stop_gradient(y - x)

    def layer(own: Any, x: Any) -> Any:
        x = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        by = 127.0 / jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-5)
        x = through(x, jnp.clip(jnp.round(x * by), -128, 127) / by)
        mean = jnp.maximum(jnp.abs(own).mean(), 1e-5)
        return x @ through(own, jnp.clip(jnp.round(own / mean), -1, 1) * mean)

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        x = x + layer(params["down"], jax.nn.relu(layer(params["up"], x)) ** 2)
        return cross_entropy(x @ params["head"], batch["next"])

    params = {
        "embed": drawn(WORDS, WIDTH),
        "up": drawn(WIDTH, 2 * WIDTH, seed=1, scale=0.3),
        "down": drawn(2 * WIDTH, WIDTH, seed=2, scale=0.3),
        "head": drawn(WIDTH, WORDS, seed=3, scale=0.3),
    }
    return with_optimizer(adam(), loss, params, sentences())


@case
def jax_gradient_at_the_worst_point_nearby() -> Case:
    """Two gradients in a row: the second where the first, scaled by the weights, leads up."""

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        grads = jax.grad(classifier_loss)(params, batch)
        size = optax.global_norm(jax.tree.map(lambda p, g: jnp.abs(p) * g, params, grads))
        worst = jax.tree.map(lambda p, g: p + 0.05 * p**2 * g / (size + 1e-12), params, grads)
        value, grads = jax.value_and_grad(classifier_loss)(worst, batch)
        updates, opt_state = adam().update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), value

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, adam().init(params)), batch=classified())


@case
def optax_muon_for_matrices_and_adamw_for_the_rest() -> Case:
    """Labels by shape and name, blocks clipped by their own size, a warm-up that falls to zero along a line."""

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(forward(params["body"], params["embed"][batch["ids"]]), batch["next"])

    def labels(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: "matrix" if leaf.ndim == 2 and path[0].key == "body" else "rest", params
        )

    rate = optax.join_schedules([optax.linear_schedule(0.0, 2e-2, 2), optax.linear_schedule(2e-2, 0.0, 20)], [2])
    optimizer = optax.chain(
        optax.clip_by_block_rms(0.5),
        optax.partition(
            {
                "matrix": optax.contrib.muon(rate),
                "rest": optax.adamw(rate, eps=1e-3, mask=lambda p: jax.tree.map(jnp.ndim, p)),
            },
            labels,
        ),
    )
    return with_optimizer(
        optimizer, loss, {"embed": drawn(WORDS, WIDTH), "body": mlp(WIDTH, WIDTH, WORDS)}, sentences()
    )


@case
def optax_gradients_clipped_by_the_weights_they_change() -> Case:
    optimizer = optax.chain(optax.adaptive_grad_clip(0.05), optax.sgd(0.1, momentum=0.9, nesterov=True))
    return with_optimizer(optimizer)


@case
def optax_rates_found_by_prodigy() -> Case:
    return with_optimizer(optax.contrib.prodigy(1.0, eps=1e-3))


@case
def optax_two_averages_of_gradients() -> Case:
    return with_optimizer(optax.contrib.ademamix(1e-2, alpha=optax.linear_schedule(0.0, 2.0, 10), eps=1e-3))


@case
def jax_moments_in_a_basis_turned_by_qr() -> Case:
    """Adam in the eigenvectors of averaged products of gradients, turned every other step."""

    def step(state: Any, batch: Any) -> Any:
        params, held, count = state
        value, grads = jax.value_and_grad(lambda p: cross_entropy(jnp.tanh(batch["x"] @ p["a"]) @ p["b"], batch["y"]))(
            params
        )
        new, kept = {}, {}
        for name, grad in grads.items():
            own = held[name]
            left = 0.9 * own["left"] + 0.1 * grad @ grad.T
            basis = jax.lax.cond(
                count % 2 == 0,
                lambda left=left, basis=own["basis"]: jnp.linalg.qr(left @ basis + 1e-2 * basis)[0],
                lambda basis=own["basis"]: basis,
            )
            turned = basis.T @ grad
            first, second = 0.9 * own["first"] + 0.1 * turned, 0.99 * own["second"] + 0.01 * turned**2
            new[name] = params[name] - 0.01 * basis @ (first / (jnp.sqrt(second) + 1e-2))
            kept[name] = {"left": left, "basis": basis, "first": first, "second": second}
        return (new, kept, count + 1), value

    params = {"a": drawn(FEATURES, WIDTH, scale=0.4), "b": drawn(WIDTH, CLASSES, seed=1, scale=0.4)}
    held = {
        name: {
            "left": jnp.zeros((len(p), len(p))),
            "basis": jnp.eye(len(p)),
            "first": jnp.zeros_like(p),
            "second": jnp.zeros_like(p),
        }
        for name, p in params.items()
    }
    return Case(step=step, state=(params, held, jnp.zeros((), jnp.int32)), batch=classified())


@case
def jax_weights_of_sixteen_bits_rounded_by_chance() -> Case:
    """Weights are kept in bfloat16 alone; updates too small for them are added with a probability."""

    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, now = jax.random.split(key)
        wide = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        value, grads = jax.value_and_grad(classifier_loss)(wide, batch)
        leaves, tree = jax.tree.flatten(sgd(wide, grads, 1e-2))
        rounded = []
        for leaf, own in zip(leaves, jax.random.split(now, len(leaves)), strict=True):
            bits = (
                jax.lax.bitcast_convert_type(leaf, jnp.uint32) + jax.random.bits(own, leaf.shape, jnp.uint32) // 2**16
            )
            rounded.append(
                jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32).astype(jnp.bfloat16)
            )
        return (jax.tree.unflatten(tree, rounded), key), value

    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), mlp(*CLASSIFIER))
    return Case(step=step, state=(params, jax.random.key(0)), batch=classified(), narrow=True, digits=1e-2)


@case
def jax_noise_of_gradients_from_two_halves() -> Case:
    """Gradients of two halves of the batch: their mean is the update, their difference says how large a batch pays."""

    def step(state: Any, batch: Any) -> Any:
        params, average = state
        halves = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), batch)
        values, grads = jax.vmap(jax.value_and_grad(classifier_loss), (None, 0))(params, halves)
        mean = jax.tree.map(lambda g: g.mean(0), grads)
        small = (jax.vmap(optax.global_norm)(grads) ** 2).mean()
        large = optax.global_norm(mean) ** 2
        average = 0.9 * average + 0.1 * jnp.stack([2 * large - small, (small - large) * SAMPLES])
        return (sgd(params, mean), average), (values.mean(), average[1] / (average[0] + 1e-3))

    return Case(step=step, state=(mlp(*CLASSIFIER), jnp.ones(2)), batch=classified())


@case
def jax_directions_and_magnitudes_of_adapters() -> Case:
    """A frozen weight and its low-rank change, normed by column, times a learned size; one rate for each factor."""

    def step(state: Any, batch: Any) -> Any:
        params, frozen, opt_state = state

        def loss(params: Any) -> Any:
            x = batch["x"]
            for own, base in zip(params, frozen, strict=True):
                w = base["w"] + own["a"] @ own["b"]
                norm = jax.lax.stop_gradient(jnp.sqrt((w**2).sum(0) + 1e-8))
                x = jnp.tanh(x @ (w * own["size"] / norm) + base["b"])
            return cross_entropy(x, batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), frozen, opt_state), value

    frozen = mlp(*CLASSIFIER)
    params = [
        {
            "a": drawn(*layer["w"].shape[:1], 2, seed=i, scale=0.3),
            "b": jnp.zeros((2, layer["w"].shape[1])),
            "size": jnp.sqrt((layer["w"] ** 2).sum(0)),
        }
        for i, layer in enumerate(frozen)
    ]
    names = [{"a": "slow", "b": "fast", "size": "slow"} for _ in params]
    optimizer = optax.partition({"slow": adam(), "fast": optax.adam(8e-2, eps=1e-3)}, names)
    return Case(step=step, state=(params, frozen, optimizer.init(params)), batch=classified())


@case
def equinox_integrator_by_a_checkpointed_loop() -> Case:
    """A field followed for as many steps as the accuracy asks, by the loop of Equinox that keeps some of its rounds."""
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        model, opt_state = state

        @eqx.filter_value_and_grad
        def loss(model: Any) -> Any:
            def flow(x: Any) -> Any:
                def more(carry: Any) -> Any:
                    return carry[0] < 1.0

                def on(carry: Any) -> Any:
                    t, x = carry
                    half = x + 0.125 * model["field"](x)
                    return t + 0.25, x + 0.25 * model["field"](half)

                return eqxi.while_loop(more, on, (jnp.zeros((), x.dtype), x), max_steps=8, kind="checkpointed")[1]

            return cross_entropy(jax.vmap(lambda x: model["head"](flow(x)))(batch["x"]), batch["y"])

        value, grads = loss(model)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), opt_state), value

    model = {
        "field": eqx.nn.MLP(FEATURES, FEATURES, WIDTH, 1, key=jax.random.key(0)),
        "head": eqx.nn.Linear(FEATURES, CLASSES, key=jax.random.key(1)),
    }
    state = (model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    return Case(step=step, state=state, batch=classified(), jit=eqx.filter_jit)


@case
def nnx_teacher_moved_toward_its_student() -> Case:
    """A clone whose state is updated in place, with two augmented views and confident labels of the teacher alone."""

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.Sequential(
                nnx.Linear(FEATURES, WIDTH, rngs=rngs), nnx.relu, nnx.Linear(WIDTH, CLASSES, rngs=rngs)
            )
            self.noise = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.layers(self.noise(x))

    student = Net(nnx.Rngs(0, dropout=1))
    teacher = nnx.clone(student)
    teacher.eval()
    optimizer = nnx.Optimizer(student, adam(), wrt=nnx.Param)

    def step(student: Any, teacher: Any, optimizer: Any, batch: Any) -> Any:
        said = jax.nn.softmax(teacher(batch["x"]))
        sure, label = said.max(-1) > 0.3, said.argmax(-1)

        def loss(student: Any) -> Any:
            each = optax.softmax_cross_entropy_with_integer_labels(student(batch["x"]), label)
            return cross_entropy(student(batch["x"]), batch["y"]) + (each * sure).mean(), sure.mean(dtype=said.dtype)

        (value, share), grads = nnx.value_and_grad(loss, has_aux=True)(student)
        optimizer.update(student, grads)
        new = jax.tree.map(lambda s, t: 0.9 * t + 0.1 * s, nnx.state(student, nnx.Param), nnx.state(teacher, nnx.Param))
        nnx.update(teacher, new)
        return value, share

    return Case(
        step=step,
        state=(student, teacher, optimizer),
        batch=classified(),
        jit=nnx.jit,
        after=in_place,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 3},
    )


@case
def jax_nested_prefixes_of_features() -> Case:
    """Heads on the first two, four and eight features, whose losses are a weighted sum."""

    def loss(params: Any, batch: Any) -> Any:
        x = forward(params["body"], batch["x"])
        x = x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
        return sum(
            0.5**i * cross_entropy(x[:, :size] @ params["head"][:size], batch["y"]) for i, size in enumerate((2, 4, 8))
        )

    params = {"body": mlp(FEATURES, WIDTH, WIDTH), "head": drawn(WIDTH, CLASSES, seed=4)}
    return Case(step=trained(adam(), loss), state=(params, adam().init(params)), batch=classified())
