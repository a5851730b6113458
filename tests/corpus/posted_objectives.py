"""Steps whose losses look at more than one sample, word or layer at a time, as users post them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.experimental.ode import odeint

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
    sgd,
    trained,
    whole,
    with_optimizer,
)

GROUP, NODES, EDGES, FRAMES, LABELS = 4, 5, 8, 10, 3


def word_model(seed: int = 0) -> dict[str, Any]:
    return {"embed": drawn(WORDS, WIDTH, seed=seed), "head": drawn(WIDTH, WORDS, seed=seed + 1, scale=0.3)}


def log_probabilities(params: Any, ids: Any) -> Any:
    """Of each word behind the first, given the one before it."""
    logits = jnp.tanh(params["embed"][ids[..., :-1]]) @ params["head"]
    return jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., 1:, None], -1)[..., 0]


def group_relative(params: Any, batch: Any) -> Any:
    """Advantages among the answers to one prompt, the ratio clipped, and a penalty for leaving the reference."""
    rewards = batch["reward"].reshape(-1, GROUP)
    advantage = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)
    advantage = advantage.reshape(-1)[:, None]
    new = log_probabilities(params, batch["ids"])
    ratio = jnp.exp(new - batch["old"])
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    apart = jnp.exp(batch["reference"] - new) - (batch["reference"] - new) - 1
    mask = batch["mask"]
    return -(((gain - 0.04 * apart) * mask).sum(1) / mask.sum(1)).mean()


@case
def jax_group_relative_rewards() -> Case:
    mask = (jnp.arange(LENGTH - 1) < 1 + whole(LENGTH - 1, SAMPLES, seed=5)[:, None]).astype(jnp.float32)
    batch = {
        "ids": whole(WORDS, SAMPLES, LENGTH, seed=1),
        "reward": drawn(SAMPLES, seed=2),
        "mask": mask,
        "old": drawn(SAMPLES, LENGTH - 1, seed=3, scale=0.1) - 2.0,
        "reference": drawn(SAMPLES, LENGTH - 1, seed=4, scale=0.1) - 2.0,
    }
    return with_optimizer(adam(), group_relative, word_model(), batch)


@case
def optax_connectionist_loss_over_padded_frames() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        logits = forward(params, batch["frames"])
        return optax.ctc_loss(logits, batch["frame_pad"], batch["labels"], batch["label_pad"]).mean()

    frames = (jnp.arange(FRAMES) >= FRAMES - whole(3, SAMPLES, seed=3)[:, None]).astype(jnp.float32)
    labels = (jnp.arange(LABELS) >= LABELS - whole(2, SAMPLES, seed=4)[:, None]).astype(jnp.float32)
    batch = {
        "frames": drawn(SAMPLES, FRAMES, FEATURES, seed=1),
        "frame_pad": frames,
        "labels": 1 + whole(CLASSES - 1, SAMPLES, LABELS, seed=2),
        "label_pad": labels,
    }
    return with_optimizer(adam(), loss, batch=batch)


@case
def jax_transducer_over_a_lattice() -> Case:
    """The sum over all alignments of frames and labels, row by row."""

    def of_one(joint: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(joint)
        blank = scores[..., 0]
        emit = jnp.take_along_axis(scores[:, :-1], labels[None, :, None], -1)[..., 0]

        def along(before: Any, row: Any) -> Any:
            blank_before, emit_now = row
            over = before + blank_before

            def add(left: Any, now: Any) -> Any:
                value = jnp.logaddexp(left + now[0], now[1])
                return value, value

            _, rest = jax.lax.scan(add, over[0], (emit_now, over[1:]))
            return jnp.concatenate([over[:1], rest]), None

        first = jnp.concatenate([jnp.zeros(1, scores.dtype), jnp.cumsum(emit[0])])
        last, _ = jax.lax.scan(along, first, (blank[:-1], emit[1:]))
        return -(last[-1] + blank[-1, -1])

    def loss(params: Any, batch: Any) -> Any:
        heard = forward(params["heard"], batch["frames"])
        said = params["said"][jnp.pad(batch["labels"], ((0, 0), (1, 0)))]
        joint = jnp.tanh(heard[:, :, None] + said[:, None]) @ params["joint"]
        return jax.vmap(of_one)(joint, batch["labels"]).mean()

    params = {
        "heard": mlp(FEATURES, WIDTH, WIDTH),
        "said": drawn(CLASSES, WIDTH, seed=7),
        "joint": drawn(WIDTH, CLASSES, seed=8, scale=0.3),
    }
    batch = {"frames": drawn(SAMPLES, FRAMES, FEATURES, seed=1), "labels": 1 + whole(CLASSES - 1, SAMPLES, LABELS)}
    return with_optimizer(adam(), loss, params, batch)


def passed_on(params: Any, nodes: Any, sender: Any, receiver: Any, count: int) -> Any:
    """Messages along edges, summed where they arrive, twice."""
    for layer in params["message"]:
        sent = jax.nn.relu(nodes[sender] @ layer["w"] + layer["b"])
        nodes = nodes + jax.ops.segment_sum(sent, receiver, count)
    return nodes


def graph_params() -> dict[str, Any]:
    return {"message": mlp(FEATURES, FEATURES, FEATURES), "head": drawn(FEATURES, CLASSES, seed=3, scale=0.4)}


@case
def jax_graphs_by_segment_sum() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def one(nodes: Any, sender: Any, receiver: Any) -> Any:
            return passed_on(params, nodes, sender, receiver, NODES).mean(0) @ params["head"]

        return cross_entropy(jax.vmap(one)(batch["nodes"], batch["from"], batch["to"]), batch["y"])

    batch = {
        "nodes": drawn(SAMPLES, NODES, FEATURES, seed=1),
        "from": whole(NODES, SAMPLES, EDGES, seed=2),
        "to": whole(NODES, SAMPLES, EDGES, seed=3),
        "y": whole(CLASSES, SAMPLES, seed=4),
    }
    return with_optimizer(adam(), loss, graph_params(), batch)


@case
def jax_one_graph_of_many_packed() -> Case:
    """Nodes of all graphs behind each other: which of them belong together is known when it runs."""

    def loss(params: Any, batch: Any) -> Any:
        nodes = passed_on(params, batch["nodes"], batch["from"], batch["to"], SAMPLES)
        return cross_entropy(nodes @ params["head"], batch["y"])

    batch = {
        "nodes": drawn(SAMPLES, FEATURES, seed=1),
        "from": whole(SAMPLES, SAMPLES, seed=2),
        "to": whole(SAMPLES, SAMPLES, seed=3),
        "y": whole(CLASSES, SAMPLES, seed=4),
    }
    return with_optimizer(adam(), loss, graph_params(), batch)


@case
def jax_momentum_contrast_with_a_queue() -> Case:
    """Keys of the batch replace the oldest of a queue in the state; the queue holds the negatives."""

    def step(state: Any, batch: Any) -> Any:
        keys = forward(state["slow"], batch["x"] + 0.1)
        keys = jax.lax.stop_gradient(keys / jnp.linalg.norm(keys, axis=1, keepdims=True))

        def loss(params: Any) -> Any:
            query = forward(params, batch["x"])
            query = query / jnp.linalg.norm(query, axis=1, keepdims=True)
            near = (query * keys).sum(1, keepdims=True)
            logits = jnp.concatenate([near, query @ state["queue"].T], 1) / 0.2
            return -jax.nn.log_softmax(logits)[:, 0].mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        params = sgd(state["params"], grads)
        slow = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["slow"], params)
        queue = jnp.concatenate([keys, state["queue"][: -keys.shape[0]]])
        return {"params": params, "slow": slow, "queue": queue}, value

    params = mlp(*CLASSIFIER)
    state = {"params": params, "slow": params, "queue": drawn(2 * SAMPLES, CLASSES, seed=6)}
    return Case(step=step, state=state, batch={"x": drawn(SAMPLES, FEATURES, seed=1)})


@case
def linen_stochastic_depth() -> Case:
    class Block(nn.Module):
        kept: float

        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.Dense(WIDTH)(nn.gelu(nn.LayerNorm()(x)))
            alive = jax.random.bernoulli(self.make_rng("depth"), self.kept, (x.shape[0], 1))
            return x + jnp.where(alive, y / self.kept, 0.0)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(WIDTH)(x)
            for depth in range(3):
                x = Block(1.0 - 0.2 * depth)(x)
            return nn.Dense(CLASSES)(x)

    model, optimizer = Net(), adam()
    params = model.init({"params": jax.random.key(0), "depth": jax.random.key(1)}, jnp.zeros((1, FEATURES)))["params"]

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, key = state
        key, now = jax.random.split(key)

        def loss(params: Any) -> Any:
            return cross_entropy(model.apply({"params": params}, batch["x"], rngs={"depth": now}), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, key), value

    return Case(step=step, state=(params, optimizer.init(params), jax.random.key(3)), batch=classified())


@case
def jax_scheduled_sampling() -> Case:
    """The model's own word in place of the right one, more often the longer it has been trained."""

    def step(state: Any, batch: Any) -> Any:
        params, count = state
        key = jax.random.fold_in(jax.random.key(0), count)
        own_rate = jnp.minimum(0.1 * count, 0.5)

        def loss(params: Any) -> Any:
            def word(carry: Any, given: Any) -> Any:
                hidden, before = carry
                right, wanted, place = given
                own = jax.random.uniform(jax.random.fold_in(key, place), right.shape) < own_rate
                hidden = jnp.tanh(params["embed"][jnp.where(own, before, right)] + hidden @ params["carry"])
                logits = hidden @ params["head"]
                value = optax.softmax_cross_entropy_with_integer_labels(logits, wanted)
                return (hidden, logits.argmax(-1).astype(right.dtype)), value

            start = jnp.zeros((batch["ids"].shape[0], WIDTH), params["embed"].dtype), batch["ids"][:, 0]
            given = batch["ids"].T, batch["next"].T, jnp.arange(LENGTH)
            return jax.lax.scan(word, start, given)[1].mean()

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads), count + 1), value

    params = word_model() | {"carry": drawn(WIDTH, WIDTH, seed=4, scale=0.3)}
    batch = {"ids": whole(WORDS, SAMPLES, LENGTH, seed=1), "next": whole(WORDS, SAMPLES, LENGTH, seed=2)}
    return Case(step=step, state=(params, jnp.zeros((), jnp.int32)), batch=batch)


@case
def jax_mixup_of_shuffled_samples() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, by, order = jax.random.split(key, 3)
        share = jax.random.beta(by, 0.4, 0.4)
        other = jax.random.permutation(order, batch["x"].shape[0])
        x = share * batch["x"] + (1 - share) * batch["x"][other]
        hot = jax.nn.one_hot(batch["y"], CLASSES)
        y = share * hot + (1 - share) * hot[other]
        value, grads = jax.value_and_grad(lambda own: optax.softmax_cross_entropy(forward(own, x), y).mean())(params)
        return (sgd(params, grads), key), value

    return Case(step=step, state=(mlp(*CLASSIFIER), jax.random.key(4)), batch=classified())


@case
def jax_codes_by_moving_averages() -> Case:
    """The nearest code of each sample, by straight-through; codes follow the averages of what chose them."""

    def step(state: Any, batch: Any) -> Any:
        codes, sums, counts = state["codes"], state["sums"], state["counts"]

        def loss(params: Any) -> Any:
            z = forward(params["in"], batch["x"])
            chosen = ((z[:, None] - codes) ** 2).sum(-1).argmin(1)
            nearest = codes[chosen]
            through = z + jax.lax.stop_gradient(nearest - z)
            again = forward(params["out"], through)
            kept = ((z - jax.lax.stop_gradient(nearest)) ** 2).mean()
            hot = jax.nn.one_hot(chosen, len(codes), dtype=z.dtype)
            return ((again - batch["x"]) ** 2).mean() + 0.25 * kept, (hot.sum(0), hot.T @ z)

        (value, (count, total)), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        counts = 0.9 * counts + 0.1 * count
        sums = 0.9 * sums + 0.1 * jax.lax.stop_gradient(total)
        return {
            "params": sgd(state["params"], grads),
            "codes": sums / (counts[:, None] + 1e-3),
            "sums": sums,
            "counts": counts,
        }, value

    codes = drawn(6, 3, seed=5)
    state = {
        "params": {"in": mlp(FEATURES, WIDTH, 3), "out": mlp(3, WIDTH, FEATURES, seed=2)},
        "codes": codes,
        "sums": codes,
        "counts": jnp.ones(6),
    }
    return Case(step=step, state=state, batch={"x": drawn(SAMPLES, FEATURES, seed=1)})


@case
def jax_overlap_of_all_masks() -> Case:
    """Dice: twice the common area of the whole batch over the sum of both areas."""

    def loss(params: Any, batch: Any) -> Any:
        p = jax.nn.sigmoid(forward(params, batch["x"]))
        hot = jax.nn.one_hot(batch["y"], CLASSES)
        return 1 - 2 * (p * hot).sum() / (p.sum() + hot.sum() + 1e-6)

    return with_optimizer(adam(), loss)


@case
def jax_correlation_of_two_views() -> Case:
    """Barlow twins: features normed over the batch, their cross-correlation near the identity."""

    def normed(z: Any) -> Any:
        return (z - z.mean(0)) / (z.std(0) + 1e-3)

    def loss(params: Any, batch: Any) -> Any:
        one, two = normed(forward(params, batch["x"])), normed(forward(params, batch["x"] * 1.1 + 0.1))
        c = one.T @ two / one.shape[0]
        on = jnp.diagonal(c)
        return ((1 - on) ** 2).sum() + 0.01 * ((c**2).sum() - (on**2).sum())

    return with_optimizer(adam(), loss)


@case
def jax_two_dropouts_that_agree() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, *two = jax.random.split(key, 3)

        def loss(params: Any) -> Any:
            def seen(own: Any) -> Any:
                kept = jax.random.bernoulli(own, 0.8, batch["x"].shape)
                return jax.nn.log_softmax(forward(params, jnp.where(kept, batch["x"] / 0.8, 0)))

            a, b = map(seen, two)
            nll = -jnp.take_along_axis(a + b, batch["y"][:, None], 1).mean()
            apart = ((jnp.exp(a) - jnp.exp(b)) * (a - b)).sum(-1).mean()
            return nll + 0.5 * apart

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads), key), value

    return Case(step=step, state=(mlp(*CLASSIFIER), jax.random.key(1)), batch=classified())


@case
def jax_solved_by_odeint() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def moved(y: Any, t: Any, params: Any) -> Any:
            return forward(params["field"], y)

        def one(y: Any) -> Any:
            return odeint(moved, y, jnp.array([0.0, 0.5], y.dtype), params, rtol=1e-9, atol=1e-9)[-1]

        return cross_entropy(jax.vmap(one)(batch["x"]) @ params["head"], batch["y"])

    params = {"field": mlp(FEATURES, WIDTH, FEATURES), "head": drawn(FEATURES, CLASSES, seed=3, scale=0.4)}
    return with_optimizer(adam(), loss, params)


@case
def jax_loss_scaled_by_hand() -> Case:
    """Halved where a gradient is not finite, doubled after some that are; half precision forward and backward."""
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            half = jax.tree.map(lambda one: one.astype(jnp.float16), params)
            logits = forward(half, batch["x"].astype(jnp.float16)).astype(jnp.float32)
            return cross_entropy(logits, batch["y"]) * state["scale"]

        value, grads = jax.value_and_grad(loss)(state["params"])
        grads = jax.tree.map(lambda one: one / state["scale"], grads)
        finite = jnp.stack([jnp.isfinite(one).all() for one in jax.tree.leaves(grads)]).all()
        updates, opt = optimizer.update(grads, state["opt"])
        moved = optax.apply_updates(state["params"], updates)
        params, opt = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (moved, opt), (state["params"], state["opt"])
        )
        good = jnp.where(finite, state["good"] + 1, 0)
        scale = jnp.where(finite, jnp.where(good % 2 == 0, state["scale"] * 2, state["scale"]), state["scale"] / 2)
        return {"params": params, "opt": opt, "good": good, "scale": scale}, value / state["scale"]

    params = mlp(*CLASSIFIER)
    state = {
        "params": params,
        "opt": optimizer.init(params),
        "good": jnp.zeros((), jnp.int32),
        "scale": jnp.asarray(2.0**17, jnp.float32),
    }
    return Case(step=step, state=state, batch=classified(), digits=2e-2)


@case
def jax_prioritized_replay() -> Case:
    """Weights over their largest in the batch; errors of the samples come back as their next priorities."""

    def step(state: Any, batch: Any) -> Any:
        weight = (1.0 / batch["chance"]) ** 0.6
        weight = weight / weight.max()

        def loss(params: Any) -> Any:
            q = jnp.take_along_axis(forward(params, batch["x"]), batch["y"][:, None], 1)[:, 0]
            error = q - batch["return"]
            return (weight * optax.huber_loss(error)).mean(), jnp.abs(error)

        (value, errors), grads = jax.value_and_grad(loss, has_aux=True)(state)
        return sgd(state, grads), (value, errors)

    chance = 0.1 + jnp.abs(drawn(SAMPLES, seed=6))
    return Case(
        step=step, state=mlp(*CLASSIFIER), batch=classified() | {"chance": chance, "return": drawn(SAMPLES, seed=7)}
    )


@case
def optax_reduced_on_a_plateau() -> Case:
    optimizer = optax.chain(adam(), optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.5))

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(classifier_loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params, value=value)
        return (optax.apply_updates(params, updates), opt_state), value

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


@case
def optax_lbfgs_with_line_search() -> Case:
    optimizer = optax.lbfgs(memory_size=3)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state

        def value_fn(own: Any) -> Any:
            return classifier_loss(own, batch)

        value, grads = optax.value_and_grad_from_state(value_fn)(params, state=opt_state)
        updates, opt_state = optimizer.update(grads, opt_state, params, value=value, grad=grads, value_fn=value_fn)
        return (optax.apply_updates(params, updates), opt_state), value

    params = mlp(FEATURES, CLASSES)
    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


@case
def optax_lookahead() -> Case:
    optimizer = optax.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(mlp(*CLASSIFIER))

    def loss(params: Any, batch: Any) -> Any:
        return classifier_loss(params, batch)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params.fast, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return Case(step=step, state=(params, optimizer.init(params)), batch=classified())


@case
def equinox_ensemble_by_filter_vmap() -> Case:
    @eqx.filter_vmap
    def make(key: Any) -> Any:
        return eqx.nn.MLP(FEATURES, CLASSES, WIDTH, 1, key=key)

    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        models, opt_state = state

        @eqx.filter_value_and_grad
        def loss(models: Any) -> Any:
            one = eqx.filter_vmap(lambda model, x: jax.vmap(model)(x), in_axes=(eqx.if_array(0), None))
            logits = one(models, batch["x"])
            return cross_entropy(logits, jnp.broadcast_to(batch["y"], logits.shape[:-1]))

        value, grads = loss(models)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(models, eqx.is_inexact_array))
        return (eqx.apply_updates(models, updates), opt_state), value

    models = make(jax.random.split(jax.random.key(0), 3))
    state = (models, optimizer.init(eqx.filter(models, eqx.is_inexact_array)))
    return Case(step=step, state=state, batch=classified(), jit=eqx.filter_jit)


@case
def nnx_layers_by_scan() -> Case:
    class Layer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + nnx.tanh(self.linear(x))

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            @nnx.split_rngs(splits=3)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def make(rngs: Any) -> Any:
                return Layer(rngs)

            self.first = nnx.Linear(FEATURES, WIDTH, rngs=rngs)
            self.layers = make(rngs)
            self.last = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def run(x: Any, layer: Any) -> Any:
                return layer(x)

            return self.last(run(self.first(x), self.layers))

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, adam(), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda own: cross_entropy(own(batch["x"]), batch["y"]))(model)
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
def jax_focal_loss_over_what_is_there() -> Case:
    """Divided by the number of positives, at least one, as detectors do."""

    def loss(params: Any, batch: Any) -> Any:
        logits = forward(params, batch["x"])
        hot = jax.nn.one_hot(batch["y"], CLASSES) * (batch["y"] > 0)[:, None]
        p = jax.nn.sigmoid(logits)
        right = p * hot + (1 - p) * (1 - hot)
        each = optax.sigmoid_binary_cross_entropy(logits, hot) * (1 - right) ** 2
        return each.sum() / jnp.maximum(hot.sum(), 1.0)

    return Case(step=trained(adam(), loss), state=(params := mlp(*CLASSIFIER), adam().init(params)), batch=classified())
