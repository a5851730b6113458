"""Steps in JAX alone: loops, keys, rules of derivation, trees of state."""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
    CLASSES,
    CLASSIFIER,
    FEATURES,
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
    with_optimizer,
)


@case
def jax_own_accumulation_by_scan() -> Case:
    def step(params: Any, batch: Any) -> Any:
        parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)

        def one(total: Any, part: Any) -> Any:
            loss, grads = jax.value_and_grad(classifier_loss)(params, part)
            return jax.tree.map(jnp.add, total, grads), loss

        total, losses = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), parts)
        return sgd(params, jax.tree.map(lambda g: g / 4, total)), losses.mean()

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_epochs_by_fori_loop() -> Case:
    def step(params: Any, batch: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, p: sgd(p, jax.grad(classifier_loss)(p, batch)), params)

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())


@case
def jax_private_gradients_by_vmap() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, noise = jax.random.split(key)

        def one(x: Any, y: Any) -> Any:
            return jax.grad(classifier_loss)(params, {"x": x[None], "y": y[None]})

        each = jax.vmap(one)(batch["x"], batch["y"])
        norms = jax.vmap(optax.tree.norm)(each)
        scale = 1 / jnp.maximum(1.0, norms / 0.5)
        total = jax.tree.map(lambda g: jnp.einsum("b,b...->...", scale, g), each)
        keys = iter(jax.random.split(noise, len(jax.tree.leaves(total))))
        noisy = jax.tree.map(lambda g: (g + 0.1 * jax.random.normal(next(keys), g.shape)) / len(scale), total)
        return (sgd(params, noisy), key), norms.mean()

    return Case(step=step, state=(mlp(*CLASSIFIER), jax.random.key(0)), batch=classified())


@case
def jax_dropout_key_in_state() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, own = jax.random.split(key)

        def loss(p: Any) -> Any:
            hidden = jnp.tanh(batch["x"] @ p[0]["w"] + p[0]["b"])
            kept = jax.random.bernoulli(own, 0.8, hidden.shape)
            return cross_entropy(forward(p[1:], jnp.where(kept, hidden / 0.8, 0)), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads), key), value

    return Case(step=step, state=(mlp(*CLASSIFIER), jax.random.key(0)), batch=classified())


@case
def jax_key_in_the_batch() -> Case:
    def step(params: Any, batch: Any) -> Any:
        def loss(p: Any) -> Any:
            x = batch["x"] + 0.1 * jax.random.normal(batch["rng"], batch["x"].shape)
            return cross_entropy(forward(p, x), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified() | {"rng": jax.random.PRNGKey(3)})


@case
def jax_mixed_precision() -> Case:
    def step(params: Any, batch: Any) -> Any:
        def loss(p: Any) -> Any:
            half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
            return cross_entropy(forward(half, batch["x"].astype(jnp.bfloat16)).astype(jnp.float32), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified(), digits=0.01)


@chex.dataclass
class Learner:
    params: Any
    opt_state: Any
    steps: Any
    name: str


@case
def chex_dataclass_with_a_string() -> Case:
    optimizer = optax.adam(1e-2, eps=1e-3)

    def step(state: Learner, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(classifier_loss)(state.params, batch)
        updates, opt = optimizer.update(grads, state.opt_state)
        return Learner(
            params=optax.apply_updates(state.params, updates), opt_state=opt, steps=state.steps + 1, name=state.name
        ), loss

    def unnamed(fun: Any) -> Any:
        @jax.jit
        def run(params: Any, opt: Any, steps: Any, batch: Any) -> Any:
            after, loss = fun(Learner(params=params, opt_state=opt, steps=steps, name="a"), batch)
            return after.params, after.opt_state, after.steps, loss

        def named(state: Learner, batch: Any) -> Any:
            params, opt, steps, loss = run(state.params, state.opt_state, state.steps, batch)
            return Learner(params=params, opt_state=opt, steps=steps, name=state.name), loss

        return named

    params = mlp(*CLASSIFIER)
    state = Learner(params=params, opt_state=optimizer.init(params), steps=jnp.int32(0), name="learner")
    return Case(step=step, state=state, batch=classified(), jit=unnamed)


class Frozen(NamedTuple):
    trained: Any
    fixed: Any
    on: Any
    count: Any


@case
def jax_frozen_integer_and_boolean_leaves() -> Case:
    def step(state: Frozen, batch: Any) -> Any:
        def loss(p: Any) -> Any:
            return cross_entropy(forward([*state.fixed, *p], batch["x"]), batch["y"])

        value, grads = jax.value_and_grad(loss)(state.trained)
        params = jax.tree.map(lambda p, g: jnp.where(state.on, p - 0.1 * g, p), state.trained, grads)
        return state._replace(trained=params, count=state.count + 1), value

    layers = mlp(*CLASSIFIER)
    return Case(step=step, state=Frozen(layers[1:], layers[:1], jnp.array(True), jnp.int32(0)), batch=classified())


@case
def jax_gradient_penalty() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        slope = jax.vmap(jax.grad(lambda x: forward(params, x).sum()))(batch["x"])
        return ((forward(params, batch["x"]) - batch["y"]) ** 2).mean() + 0.1 * ((slope**2).sum(-1)).mean()

    return with_optimizer(optax.sgd(0.05), loss, mlp(FEATURES, WIDTH, 1), measured())


@case
def jax_custom_vjp_clips() -> Case:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-3, 1e-3),))

    def loss(params: Any, batch: Any) -> Any:
        hidden = clipped(jnp.tanh(batch["x"] @ params[0]["w"] + params[0]["b"]))
        return optax.softmax_cross_entropy_with_integer_labels(forward(params[1:], hidden), batch["y"]).sum()

    return with_optimizer(optax.sgd(0.1), loss)


@case
def jax_straight_through() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch["x"] @ params[0]["w"] + params[0]["b"])
        hidden = hidden + jax.lax.stop_gradient(jnp.sign(hidden) - hidden)
        return cross_entropy(forward(params[1:], hidden), batch["y"])

    return with_optimizer(optax.sgd(0.1), loss)


@case
def jax_checkpoint_policies() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for layer in params[:-1]:
            block = jax.checkpoint(
                lambda p, x: jnp.tanh(x @ p["w"] + p["b"]),
                policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
            )
            x = block(layer, x)
        return cross_entropy(x @ params[-1]["w"] + params[-1]["b"], batch["y"])

    return with_optimizer(optax.sgd(0.1), loss)


@case
def jax_scan_over_layers_checkpointed() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        @jax.checkpoint
        def layer(x: Any, w: Any) -> Any:
            return jnp.tanh(x @ w), None

        x, _ = jax.lax.scan(layer, batch["x"] @ params["in"], params["layers"])
        return cross_entropy(x @ params["out"], batch["y"])

    params = {"in": drawn(FEATURES, WIDTH), "layers": drawn(4, WIDTH, WIDTH, scale=0.3), "out": drawn(WIDTH, CLASSES)}
    return with_optimizer(optax.adam(1e-2, eps=1e-3), loss, params)


@case
def jax_checkpointed_scan() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        @jax.checkpoint
        def body(x: Any, layers: Any) -> Any:
            return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)[0]

        return cross_entropy(body(batch["x"] @ params["in"], params["layers"]) @ params["out"], batch["y"])

    params = {"in": drawn(FEATURES, WIDTH), "layers": drawn(4, WIDTH, WIDTH, scale=0.3), "out": drawn(WIDTH, CLASSES)}
    return with_optimizer(optax.sgd(0.1), loss, params)


@case
def jax_recurrent_by_scan() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        words = params["table"][batch["ids"]]

        def cell(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ params["x"] + h @ params["h"])
            return h, h

        _, hidden = jax.lax.scan(cell, jnp.zeros((words.shape[0], WIDTH)), words.swapaxes(0, 1))
        return cross_entropy(hidden.swapaxes(0, 1) @ params["out"], batch["next"])

    params = {
        "table": drawn(WORDS, WIDTH),
        "x": drawn(WIDTH, WIDTH, scale=0.3),
        "h": drawn(WIDTH, WIDTH, scale=0.3),
        "out": drawn(WIDTH, WORDS),
    }
    return with_optimizer(optax.sgd(0.1), loss, params, sentences())


@case
def jax_loss_by_chunks() -> Case:
    """Logits of a part of the positions at a time, computed again for their gradients."""

    def loss(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(params["table"][batch["ids"]])
        parts = hidden.reshape(len(hidden), 3, -1, WIDTH).swapaxes(0, 1)
        wanted = batch["next"].reshape(len(hidden), 3, -1).swapaxes(0, 1)

        @jax.checkpoint
        def one(total: Any, part: Any) -> Any:
            own, words = part
            return total + optax.softmax_cross_entropy_with_integer_labels(own @ params["out"], words).sum(), None

        total, _ = jax.lax.scan(one, jnp.zeros((), hidden.dtype), (parts, wanted))
        return total / batch["ids"].size

    return with_optimizer(optax.sgd(0.1), loss, {"table": drawn(WORDS, WIDTH), "out": drawn(WIDTH, WORDS)}, sentences())


@case
def jax_fixed_point_by_fori_loop() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        z = jnp.zeros((batch["x"].shape[0], WIDTH))
        z = jax.lax.fori_loop(0, 4, lambda _, z: jnp.tanh(batch["x"] @ params["x"] + z @ params["z"]), z)
        return cross_entropy(z @ params["out"], batch["y"])

    params = {"x": drawn(FEATURES, WIDTH), "z": drawn(WIDTH, WIDTH, scale=0.2), "out": drawn(WIDTH, CLASSES)}
    return with_optimizer(optax.sgd(0.1), loss, params)


@case
def jax_branch_by_step_number() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, count = state

        def loss(p: Any) -> Any:
            logits = jax.lax.cond(count < 2, lambda: forward(p, batch["x"]), lambda: forward(p, 0.5 * batch["x"]))
            return cross_entropy(logits, batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads), count + 1), value

    return Case(step=step, state=(mlp(*CLASSIFIER), jnp.int32(0)), batch=classified())


@case
def jax_line_search_by_while_loop() -> Case:
    def step(params: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(classifier_loss)(params, batch)

        def worse(rate: Any) -> Any:
            return (classifier_loss(sgd(params, grads, rate), batch) > loss) & (rate > 1e-3)

        rate = jax.lax.while_loop(worse, lambda rate: rate / 2, jnp.float32(2.0))
        return sgd(params, grads, rate), rate

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())
