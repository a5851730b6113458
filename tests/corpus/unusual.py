"""Steps with what few use: rules of their own, calls of Python, keys and numbers in unusual places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from jax import lax
from jax.experimental import checkify, io_callback

from tests.corpus.case import (
    CLASSES,
    FEATURES,
    SAMPLES,
    WIDTH,
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
    sgd,
    whole,
    with_optimizer,
)


@case
def linen_products_in_8_bits_with_histories_in_place_of_gradients() -> Case:
    size, kept = 16, "_overwrite_with_gradient"
    model = nn.Sequential(
        [nn.Dense(size, dot_general_cls=nn.Fp8DotGeneralOp), nn.relu, nn.Dense(4, dot_general_cls=nn.Fp8DotGeneralOp)]
    )
    optimizer = optax.sgd(0.1)

    def step(state: Any, batch: Any) -> Any:
        variables, opt_state = state
        loss, grads = jax.value_and_grad(lambda v: ((model.apply(v, batch["x"]) - batch["y"]) ** 2).mean())(variables)
        updates, opt_state = optimizer.update(grads["params"], opt_state)
        params = optax.apply_updates(variables["params"], updates)
        return ({"params": params, kept: grads[kept]}, opt_state), loss

    variables = dict(model.init(jax.random.key(0), jnp.ones((SAMPLES, size))))
    batch = {"x": drawn(SAMPLES, size, seed=1), "y": drawn(SAMPLES, 4, seed=2)}
    state = (variables, optimizer.init(variables["params"]))
    return Case(step=step, state=state, batch=batch, digits=3e-2, narrow=True)


@jax.custom_vjp
def _centred(x: Any) -> Any:
    return x * 1.0


@jax.custom_vjp
def _held(w: Any) -> Any:
    return w * 1.0


_centred.defvjp(lambda x: (x * 1.0, None), lambda _, g: (g - g.mean(0),))
_held.defvjp(lambda w: (w * 1.0, None), lambda _, g: (jnp.clip(g, -1e-3, 1e-3),))


@case
def jax_slopes_of_weights_clipped_and_of_samples_centred_on_the_way() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(_centred(jnp.tanh(batch["x"] @ _held(params["in"]))) @ params["out"], batch["y"])

    return with_optimizer(adam(), loss, {"in": drawn(FEATURES, WIDTH), "out": drawn(WIDTH, CLASSES, seed=1)})


@jax.custom_vjp
def _rounded(w: Any, size: Any) -> Any:
    return jnp.clip(jnp.round(w / size), -8, 7) * size


def _rounded_back(kept: Any, slope: Any) -> Any:
    w, size = kept
    inside = jnp.abs(w / size) <= 7.5
    places = jnp.clip(jnp.round(w / size), -8, 7) - jnp.where(inside, w / size, 0.0)
    return jnp.where(inside, slope, 0.0), (slope * places).sum(0, keepdims=True) / jnp.sqrt(7.0 * w.shape[0])


_rounded.defvjp(lambda w, size: (_rounded(w, size), (w, size)), _rounded_back)


@case
def jax_scanned_weights_rounded_to_4_bits_with_learned_steps() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"] @ params["in"]
        x, _ = lax.scan(lambda x, layer: (jnp.tanh(x @ _rounded(*layer)), None), x, (params["w"], params["size"]))
        return cross_entropy(x @ params["out"], batch["y"])

    params = {
        "in": drawn(FEATURES, WIDTH),
        "w": drawn(3, WIDTH, WIDTH, seed=1, scale=0.4),
        "size": jnp.full((3, 1, WIDTH), 0.083),
        "out": drawn(WIDTH, CLASSES, seed=2),
    }
    return with_optimizer(adam(), loss, params)


@case
def jax_graphs_of_nodes_and_edges_in_one_batch() -> Case:
    nodes, edges, graphs = 24, 40, 8

    def loss(params: Any, batch: Any) -> Any:
        state = jnp.tanh(batch["nodes"] @ params["node"])
        for layer in params["layers"]:
            sent = jnp.concatenate([state[batch["senders"]], batch["edges"]], axis=-1)
            messages = jax.nn.relu(sent @ layer["edge"])
            state = state + jax.ops.segment_sum(messages, batch["receivers"], nodes) @ layer["node"]
        pooled = jax.ops.segment_sum(state, batch["graph"], graphs) / 3
        return cross_entropy(pooled @ params["out"], batch["label"])

    layers = [
        {"edge": drawn(WIDTH + 3, WIDTH, seed=s, scale=0.3), "node": drawn(WIDTH, WIDTH, seed=s + 1, scale=0.3)}
        for s in (1, 5)
    ]
    params = {"node": drawn(FEATURES, WIDTH, scale=0.3), "layers": layers, "out": drawn(WIDTH, CLASSES, seed=9)}
    batch = {
        "nodes": drawn(nodes, FEATURES, seed=1),
        "edges": drawn(edges, 3, seed=2),
        "senders": whole(nodes, edges, seed=3),
        "receivers": whole(nodes, edges, seed=4),
        "graph": jnp.repeat(jnp.arange(graphs), 3),
        "label": whole(CLASSES, graphs, seed=5),
    }
    return with_optimizer(adam(), loss, params, batch)


@case
def nnx_scanned_layers_with_dropout_streams_of_their_own() -> Case:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + self.drop(nnx.gelu(self.linear(self.norm(x))))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            @nnx.split_rngs(splits=2)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def blocks(rngs: nnx.Rngs) -> Block:
                return Block(rngs)

            self.first, self.last = nnx.Linear(FEATURES, WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)
            self.blocks = blocks(rngs)

        def __call__(self, x: Any) -> Any:
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def through(x: Any, block: Block) -> Any:
                return block(x)

            return self.last(through(self.first(x), self.blocks))

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(batch["x"]), batch["y"]))(model)
        optimizer.update(model, grads)
        return loss

    model = Model(nnx.Rngs(0))
    return Case(
        step=step,
        state=(model, nnx.Optimizer(model, adam(), wrt=nnx.Param)),
        batch=classified(),
        after=in_place,
        jit=nnx.jit,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 2},
        narrow=True,
    )


@case
def jax_half_weights_with_a_rate_that_is_a_number_of_python() -> Case:
    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return cross_entropy(forward(params, batch["x"].astype(jnp.bfloat16)).astype(jnp.float32), batch["y"])

        value, grads = jax.value_and_grad(loss)(state["params"])
        params = jax.tree.map(lambda p, g: p - state["rate"] * g, state["params"], grads)
        return {"params": params, "rate": state["rate"] * state["decay"], "decay": state["decay"]}, value

    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), mlp(FEATURES, WIDTH, CLASSES))
    state = {"params": params, "rate": 0.1, "decay": jnp.asarray(0.9)}
    return Case(step=step, state=state, batch=classified(), digits=3e-2, narrow=True)


@case
def jax_errors_checked_and_losses_written_through_callbacks() -> Case:
    optimizer, written = adam(), []

    def inner(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, grads = jax.value_and_grad(classifier_loss)(params, batch)
        checkify.check(jnp.isfinite(loss), "a loss of {loss}", loss=loss)
        io_callback(lambda value: written.append(float(value)), None, loss, ordered=True)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    def step(state: Any, batch: Any) -> Any:
        _, results = checkify.checkify(inner)(state, batch)
        return results

    params = mlp(FEATURES, WIDTH, CLASSES)
    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


@case
def jax_weights_of_samples_asked_of_numpy() -> Case:
    def step(state: Any, batch: Any) -> Any:
        form = jax.ShapeDtypeStruct(batch["y"].shape, batch["x"].dtype)
        weights = jax.pure_callback(lambda y: (1 + np.asarray(y) % 2).astype(form.dtype), form, batch["y"])

        def loss(params: Any) -> Any:
            losses = optax.softmax_cross_entropy_with_integer_labels(forward(params, batch["x"]), batch["y"])
            return (losses * weights).mean(), {"kind": "weighted", "rows": 2, "weights": weights}

        (value, beside), grads = jax.value_and_grad(loss, has_aux=True)(state)
        return sgd(state, grads), (value, beside["weights"].reshape(beside["rows"], -1).sum(1))

    return Case(step=step, state=mlp(FEATURES, WIDTH, CLASSES), batch=classified())


def _spline(x: Any, widths: Any, heights: Any, slopes: Any) -> Any:
    """A rational spline on [-2, 2], and the logarithm of its slope."""
    widths, heights = 4 * jax.nn.softmax(widths), 4 * jax.nn.softmax(heights)
    left, low = (jnp.concatenate([jnp.zeros(1), jnp.cumsum(one)]) - 2 for one in (widths, heights))
    slopes = jnp.concatenate([jnp.ones(1), jax.nn.softplus(slopes) + 1e-2, jnp.ones(1)])
    held = jnp.clip(x, -1.999, 1.999)
    at = jnp.clip(jnp.searchsorted(left, held, side="right") - 1, 0, widths.shape[0] - 1)
    mean, t = heights[at] / widths[at], (held - left[at]) / widths[at]
    below = mean + (slopes[at + 1] + slopes[at] - 2 * mean) * t * (1 - t)
    y = low[at] + heights[at] * (mean * t * t + slopes[at] * t * (1 - t)) / below
    steep = slopes[at + 1] * t * t + 2 * mean * t * (1 - t) + slopes[at] * (1 - t) ** 2
    change = 2 * jnp.log(mean) + jnp.log(steep) - 2 * jnp.log(below)
    return jnp.where(abs(x) < 2, y, x), jnp.where(abs(x) < 2, change, 0.0)


@case
def jax_flow_of_splines_found_by_searching() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def of_one(x: Any) -> Any:
            total = jnp.zeros((), x.dtype)
            for layers in params:
                kept, moved = x[:2], x[2:]
                given = forward(layers, kept).reshape(2, -1)
                moved, change = jax.vmap(_spline)(moved, given[:, :4], given[:, 4:8], given[:, 8:])
                x, total = jnp.concatenate([moved, kept]), total + change.sum()
            return -(jax.scipy.stats.norm.logpdf(x).sum() + total)

        return jax.vmap(of_one)(batch["x"]).mean()

    params = [mlp(2, WIDTH, 22, seed=seed) for seed in (0, 5, 9)]
    return with_optimizer(adam(), loss, params, {"x": drawn(SAMPLES, 4, seed=1)})


@case
def linen_batch_norm_in_scanned_layers() -> Case:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(nn.Dense(WIDTH)(x))), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layers = nn.scan(
                Layer, variable_axes={"params": 0, "batch_stats": 0}, split_rngs={"params": True}, length=2
            )
            x, _ = layers()(nn.Dense(WIDTH)(x), None)
            return nn.Dense(CLASSES)(x)

    model, optimizer = Model(), optax.sgd(0.1, momentum=0.9)

    def step(state: Any, batch: Any) -> Any:
        params, statistics, opt_state = state

        def loss(params: Any) -> Any:
            given = {"params": params, "batch_stats": statistics}
            logits, after = model.apply(given, batch["x"], mutable=["batch_stats"])
            return cross_entropy(logits, batch["y"]), after["batch_stats"]

        (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), statistics, opt_state), value

    made = model.init(jax.random.key(0), classified()["x"])
    return Case(
        step=step, state=(made["params"], made["batch_stats"], optimizer.init(made["params"])), batch=classified()
    )


@case
def jax_matrices_of_samples_decomposed() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        made = forward(params, batch["x"]).reshape(-1, 3, 3) + 2 * jnp.eye(3)
        q, r = jnp.linalg.qr(made)
        total = (jnp.log(jnp.linalg.svd(made, compute_uv=False)) ** 2).mean() + jnp.linalg.slogdet(made)[1].mean()
        total = total + 0.1 * (jnp.linalg.inv(made) ** 2).mean() + (q[:, 0] * r[:, :, 0]).mean()
        return total + jax.vmap(jax.scipy.linalg.expm)(0.1 * made).mean()

    return with_optimizer(adam(), loss, mlp(FEATURES, WIDTH, 9))
