"""Steps whose losses pair, sort, count or whiten the samples of a batch, and steps that walk an environment."""

from __future__ import annotations

from typing import Any

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
    cross_entropy,
    drawn,
    forward,
    measured,
    mlp,
    pictures,
    sentences,
    sgd,
    whole,
    with_optimizer,
)
from tests.corpus.nnx_steps import objects, of_objects


@case
def linen_mixture_of_densities_with_clipped_gradients() -> Case:
    """Means, widths and weights of Gaussians, and the likelihood of what was measured."""

    class Mixture(nn.Module):
        parts: int = 3

        @nn.compact
        def __call__(self, x: Any) -> Any:
            hidden = nn.tanh(nn.Dense(WIDTH)(nn.tanh(nn.Dense(WIDTH)(x))))
            return (
                nn.log_softmax(nn.Dense(self.parts)(hidden)),
                nn.Dense(self.parts)(hidden),
                nn.Dense(self.parts)(hidden),
            )

    model = Mixture()
    batch = measured()

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            log_weight, mean, log_width = state.apply_fn({"params": params}, batch["x"])
            density = -0.5 * ((batch["y"] - mean) * jnp.exp(-log_width)) ** 2 - log_width
            return -jax.nn.logsumexp(log_weight + density, axis=-1).mean(), (log_weight.argmax(-1), log_width.min())

        (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads), (value, aux, optax.global_norm(grads))

    params = model.init(jax.random.key(0), batch["x"])["params"]
    tx = optax.chain(optax.clip_by_global_norm(0.5), adam(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)))
    return Case(step=step, state=train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx), batch=batch)


@case
def equinox_pictures_and_texts_with_soft_targets_and_recall() -> Case:
    """All pairs, targets softened by what pictures say of each other, and how often the right text is first."""

    class Towers(eqx.Module):
        image: eqx.nn.MLP
        text: eqx.nn.MLP
        scale: jax.Array

        def __init__(self, key: Any) -> None:
            one, two = jax.random.split(key)
            self.image = eqx.nn.MLP(FEATURES, WIDTH, WIDTH, 2, key=one)
            self.text = eqx.nn.MLP(FEATURES, WIDTH, WIDTH, 2, key=two)
            self.scale = jnp.asarray(1.0)

    optimizer = optax.adamw(1e-2, eps=1e-3)

    def loss(model: Any, batch: Any) -> Any:
        def unit(x: Any) -> Any:
            return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

        image, text = unit(jax.vmap(model.image)(batch["image"])), unit(jax.vmap(model.text)(batch["text"]))
        logits = jnp.exp(model.scale) * image @ text.T
        target = jax.lax.stop_gradient(jax.nn.softmax(4 * image @ image.T, axis=-1))
        value = (
            optax.softmax_cross_entropy(logits, target).mean() + optax.softmax_cross_entropy(logits.T, target.T).mean()
        )
        recall = (logits.argmax(-1) == jnp.arange(logits.shape[0])).mean(dtype=logits.dtype)
        return value / 2, recall

    def step(state: Any, batch: Any) -> Any:
        model, opt_state = state
        (value, recall), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model, batch)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        model = eqx.apply_updates(model, updates)
        model = eqx.tree_at(lambda m: m.scale, model, jnp.clip(model.scale, 0.0, jnp.log(100.0)))
        return (model, opt_state), (value, recall)

    model = Towers(jax.random.key(0))
    state = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    batch = {"image": drawn(SAMPLES, FEATURES, seed=1), "text": drawn(SAMPLES, FEATURES, seed=2)}
    return Case(step=step, state=state, batch=batch, jit=eqx.filter_jit)


@case
def nnx_autoencoder_with_total_correlation() -> Case:
    """The density of each code under the codes of all samples; the weight of the divergence grows with the steps."""

    class Autoencoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.encode = nnx.Linear(FEATURES, 2 * WIDTH, rngs=rngs)
            self.decode = nnx.Linear(WIDTH, FEATURES, rngs=rngs)
            self.rngs = rngs.fork()

        def __call__(self, x: Any) -> Any:
            mean, log_std = jnp.split(self.encode(x), 2, axis=-1)
            log_std = jnp.tanh(log_std)
            z = mean + jnp.exp(log_std) * self.rngs.normal(mean.shape, mean.dtype)
            return self.decode(z), z, mean, log_std

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        def loss(model: Any) -> Any:
            made, z, mean, log_std = model(batch["x"])
            each = -0.5 * ((z[:, None] - mean[None]) * jnp.exp(-log_std)[None]) ** 2 - log_std[None]
            joint = jax.nn.logsumexp(each.sum(-1), axis=1)
            apart = jax.nn.logsumexp(each, axis=1).sum(-1)
            beta = jnp.minimum(1.0, optimizer.step[...].astype(z.dtype) / 4)
            return ((made - batch["x"]) ** 2).sum(-1).mean() + beta * (joint - apart).mean(), joint.max()

        (value, most), grads = nnx.value_and_grad(loss, has_aux=True)(model)
        optimizer.update(model, grads)
        return value, most

    return of_objects(step, objects(Autoencoder(nnx.Rngs(0))), {"x": drawn(SAMPLES, FEATURES, seed=1)}, narrow=True)


@case
def jax_codes_held_to_their_prior_by_kernels() -> Case:
    """The distance of codes and as many drawn ones, by kernels of all pairs of both, without a sample's own."""

    def loss(params: Any, batch: Any, key: Any) -> Any:
        code = forward(params["encode"], batch["x"])
        prior = jax.random.normal(key, code.shape, code.dtype)
        both = jnp.concatenate([code, prior])
        apart = ((both[:, None] - both[None]) ** 2).sum(-1)
        kernel = sum(c / (c + apart) for c in (0.5, 1.0, 4.0))
        n = code.shape[0]
        own = (1 - jnp.eye(n, dtype=code.dtype)) / (n * (n - 1))
        distance = (kernel[:n, :n] * own).sum() + (kernel[n:, n:] * own).sum() - 2 * kernel[:n, n:].mean()
        return ((forward(params["decode"], code) - batch["x"]) ** 2).mean() + distance, distance

    def step(state: Any, batch: Any) -> Any:
        key, draw = jax.random.split(state["key"])
        (value, distance), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], batch, draw)
        return {"params": sgd(state["params"], grads), "key": key}, (value, distance)

    params = {"encode": mlp(FEATURES, WIDTH, 3), "decode": mlp(3, WIDTH, FEATURES, seed=4)}
    return Case(step=step, state={"params": params, "key": jax.random.key(1)}, batch={"x": drawn(SAMPLES, FEATURES)})


@case
def jax_actor_and_critic_that_walk_their_environments() -> Case:
    """Environments are part of the state; each call walks all of them by a scan, and learns from what it saw."""

    def walked(params: Any, places: Any, key: Any) -> Any:
        def move(place: Any, key: Any) -> Any:
            logits = forward(params["actor"], place)
            action = jax.random.categorical(key, logits)
            after = place * 0.9 + 0.3 * jax.nn.one_hot(action, place.shape[-1], dtype=place.dtype)
            reward = -(after**2).sum(-1)
            done = reward < -6.0
            after = jnp.where(done[:, None], jnp.zeros_like(after), after)
            return after, (place, action, reward, done)

        return jax.lax.scan(move, places, jax.random.split(key, LENGTH))

    def step(state: Any) -> Any:
        key, draw = jax.random.split(state["key"])
        last, (place, action, reward, done) = walked(state["params"], state["places"], draw)

        def loss(params: Any) -> Any:
            value = forward(params["critic"], place)[..., 0]
            end = forward(params["critic"], last)[..., 0]

            def back(carry: Any, seen: Any) -> Any:
                carry = seen[0] + 0.95 * carry * (1 - seen[1])
                return carry, carry

            _, returns = jax.lax.scan(back, end, (reward, done.astype(reward.dtype)), reverse=True)
            gain = jax.lax.stop_gradient(returns) - value
            log = jax.nn.log_softmax(forward(params["actor"], place))
            chosen = jnp.take_along_axis(log, action[..., None], -1)[..., 0]
            entropy = -(jnp.exp(log) * log).sum(-1).mean()
            return (0.5 * gain**2).mean() - (chosen * jax.lax.stop_gradient(gain)).mean() - 0.01 * entropy, entropy

        (value, entropy), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        return {"params": sgd(state["params"], grads), "places": last, "key": key}, (value, entropy)

    params = {"actor": mlp(FEATURES, WIDTH, FEATURES), "critic": mlp(FEATURES, WIDTH, 1, seed=3)}
    state = {"params": params, "places": drawn(SAMPLES, FEATURES, seed=1), "key": jax.random.key(2)}
    return Case(step=step, state=state, call=lambda run, state, batch: run(state), options={"batch_argnums": ()})


@case
def equinox_adapters_by_masked_updates_of_frozen_weights() -> Case:
    """Gradients of all weights, of which `optax.masked` leaves those of adapters, and zeroes the others."""

    class Adapted(eqx.Module):
        base: eqx.nn.Linear
        down: jax.Array
        up: jax.Array

        def __init__(self, wide: int, out: int, key: Any) -> None:
            self.base = eqx.nn.Linear(wide, out, key=key)
            self.down, self.up = drawn(2, wide, seed=5, scale=0.3), jnp.zeros((out, 2))

        def __call__(self, x: Any) -> Any:
            return self.base(x) + self.up @ (self.down @ x)

    keys = jax.random.split(jax.random.key(0), 2)
    model = [Adapted(FEATURES, WIDTH, keys[0]), Adapted(WIDTH, CLASSES, keys[1])]

    def adapters(tree: Any) -> Any:
        marks = jax.tree.map(lambda _: False, tree)
        return eqx.tree_at(lambda t: [w for layer in t for w in (layer.down, layer.up)], marks, [True] * 4)

    optimizer = optax.chain(
        optax.masked(optax.adam(1e-2, eps=1e-3), adapters),
        optax.masked(optax.set_to_zero(), lambda t: jax.tree.map(lambda m: not m, adapters(t))),
    )

    def loss(model: Any, batch: Any) -> Any:
        return cross_entropy(jax.vmap(lambda x: model[1](jax.nn.gelu(model[0](x))))(batch["x"]), batch["y"])

    def step(state: Any, batch: Any) -> Any:
        model, opt_state = state
        value, grads = eqx.filter_value_and_grad(loss)(model, batch)
        updates, opt_state = optimizer.update(grads, opt_state, model)
        return (eqx.apply_updates(model, updates), opt_state), value

    return Case(step=step, state=(model, optimizer.init(model)), batch=classified())


@case
def optax_average_weights_judged_on_the_batch_behind_the_update() -> Case:
    """The averages that `optax.ema` keeps of new weights are evaluated on the same batch in the same step."""

    optimizer, average = optax.chain(optax.adaptive_grad_clip(0.1), adam()), optax.ema(0.9)

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(forward(params, batch["x"]), batch["y"])

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, ema_state = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        slow, ema_state = average.update(params, ema_state)
        right = (forward(slow, batch["x"]).argmax(-1) == batch["y"]).sum()
        return (params, opt_state, ema_state), {"loss": value, "slow": loss(slow, batch), "right": right}

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, optimizer.init(params), average.init(params)), batch=classified())


@case
def optax_multi_steps_that_skip_large_updates() -> Case:
    """Every second call updates, but calls whose gradients are large are left out of the sum."""

    optimizer = optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-3)),
        2,
        should_skip_update_fn=lambda updates, step, params: optax.skip_large_updates(updates, step, params, 0.35),
    )
    return with_optimizer(optimizer, narrow=True)


@case
def haiku_truncated_recurrence_with_resets_and_carry() -> Case:
    """What an LSTM remembers is carried between calls, and forgotten where a document begins."""

    def unrolled(ids: Any, begins: Any, carry: Any) -> Any:
        core = hk.ResetCore(hk.LSTM(WIDTH))
        seen = hk.Embed(WORDS, WIDTH)(ids)
        out, carry = hk.dynamic_unroll(core, (seen, begins), carry, time_major=False)
        return hk.Linear(WORDS)(out), carry

    model = hk.without_apply_rng(hk.transform(unrolled))
    batch = sentences() | {"begins": whole(4, SAMPLES, LENGTH, seed=7) == 0}
    zeros = jnp.zeros((SAMPLES, WIDTH))
    carry = hk.LSTMState(hidden=zeros, cell=zeros)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adam())

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, carry = model.apply(params, batch["ids"], batch["begins"], state["carry"])
            return cross_entropy(logits, batch["next"]), carry

        (value, carry), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state, "carry": carry}, value

    params = model.init(jax.random.key(0), batch["ids"], batch["begins"], carry)
    return Case(step=step, state={"params": params, "opt_state": optimizer.init(params), "carry": carry}, batch=batch)


@case
def jax_classes_weighed_by_their_counts_in_the_batch() -> Case:
    """Rare classes count more; the confusion of all classes is scattered into a table."""

    def loss(params: Any, batch: Any) -> Any:
        logits = forward(params, batch["x"])
        count = jnp.zeros(CLASSES, logits.dtype).at[batch["y"]].add(1.0)
        weight = (batch["y"].shape[0] / (CLASSES * jnp.maximum(count, 1.0)))[batch["y"]]
        each = optax.softmax_cross_entropy(
            logits, optax.smooth_labels(jax.nn.one_hot(batch["y"], CLASSES, dtype=logits.dtype), 0.1)
        )
        confusion = jnp.zeros((CLASSES, CLASSES), jnp.int32).at[batch["y"], logits.argmax(-1)].add(1)
        return (each * weight).sum() / weight.sum(), confusion

    def step(state: Any, batch: Any) -> Any:
        (value, confusion), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], batch)
        seen = state["confusion"] + confusion
        balanced = (jnp.diagonal(seen) / jnp.maximum(seen.sum(1), 1)).mean()
        return {"params": sgd(state["params"], grads), "confusion": seen}, (value, balanced)

    return Case(
        step=step,
        state={"params": mlp(*CLASSIFIER), "confusion": jnp.zeros((CLASSES, CLASSES), jnp.int32)},
        batch=classified(),
    )


@case
def linen_sharpness_by_size_of_weights_through_batch_norm() -> Case:
    """Two gradients, the second at weights moved by their own size; statistics come from the first."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(4, (3, 3))(x)))
            return nn.Dense(CLASSES)(x.mean((1, 2)))

    model, batch = Net(), pictures()
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, new = model.apply(
                {"params": params, "batch_stats": state["batch_stats"]}, batch["image"], mutable=["batch_stats"]
            )
            return cross_entropy(logits, batch["label"]), new["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        sized = jax.tree.map(lambda w, g: (jnp.abs(w) + 0.01) * g, state["params"], grads)
        norm = optax.global_norm(sized)
        there = jax.tree.map(lambda w, s: w + 0.05 * (jnp.abs(w) + 0.01) * s / norm, state["params"], sized)
        grads = jax.grad(loss, has_aux=True)(there)[0]
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "batch_stats": stats, "opt_state": opt_state}, value

    made = model.init(jax.random.key(0), batch["image"])
    state = {**made, "opt_state": optimizer.init(made["params"])}
    return Case(step=step, state=state, batch=batch)


@case
def jax_worst_inputs_by_signs_in_a_loop_with_a_smooth_loss() -> Case:
    """Inputs move against the model by signs of gradients in a loop; the loss holds both answers together."""

    def divergence(params: Any, x: Any, clean: Any) -> Any:
        other = jax.nn.log_softmax(forward(params, x))
        return (jnp.exp(clean) * (clean - other)).sum(-1).mean()

    def loss(params: Any, batch: Any, key: Any) -> Any:
        logits = forward(params, batch["x"])
        clean = jax.nn.log_softmax(logits)
        start = batch["x"] + 0.01 * jax.random.normal(key, batch["x"].shape, batch["x"].dtype)

        def move(_: Any, x: Any) -> Any:
            slope = jax.grad(divergence, argnums=1)(jax.lax.stop_gradient(params), x, jax.lax.stop_gradient(clean))
            return jnp.clip(x + 0.03 * jnp.sign(slope), batch["x"] - 0.1, batch["x"] + 0.1)

        worst = jax.lax.stop_gradient(jax.lax.fori_loop(0, 3, move, start))
        return cross_entropy(logits, batch["y"]) + 2.0 * divergence(params, worst, clean)

    def step(state: Any, batch: Any) -> Any:
        key, draw = jax.random.split(state["key"])
        value, grads = jax.value_and_grad(loss)(state["params"], batch, draw)
        return {"params": sgd(state["params"], grads), "key": key}, value

    return Case(step=step, state={"params": mlp(*CLASSIFIER), "key": jax.random.key(3)}, batch=classified())


@case
def jax_hazards_of_those_still_at_risk() -> Case:
    """Samples sorted by their time; each event against all that come after it, by a sum along the batch."""

    def loss(params: Any, batch: Any) -> Any:
        risk = forward(params, batch["x"])[:, 0]
        order = jnp.argsort(-batch["time"])
        risk, event = risk[order], batch["event"][order]
        at_risk = jax.lax.cumlogsumexp(risk)
        return -((risk - at_risk) * event).sum() / event.sum()

    batch = {
        "x": drawn(SAMPLES, FEATURES, seed=1),
        "time": jnp.abs(drawn(SAMPLES, seed=2)),
        "event": (whole(3, SAMPLES, seed=3) > 0) * 1.0,
    }
    return with_optimizer(optax.sgd(0.1, momentum=0.9), loss, mlp(FEATURES, WIDTH, 1), batch)


@case
def jax_samples_remembered_in_a_bank_by_number() -> Case:
    """Each sample against what a bank holds of all; its row of the bank moves toward it behind the update."""

    def loss(params: Any, bank: Any, batch: Any) -> Any:
        code = forward(params, batch["x"])
        code = code / jnp.linalg.norm(code, axis=-1, keepdims=True)
        return cross_entropy(code @ bank.T / 0.2, batch["number"]), code

    def step(state: Any, batch: Any) -> Any:
        (value, code), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], state["bank"], batch)
        rows = 0.5 * state["bank"][batch["number"]] + 0.5 * code
        bank = state["bank"].at[batch["number"]].set(rows / jnp.linalg.norm(rows, axis=-1, keepdims=True))
        return {"params": sgd(state["params"], grads), "bank": bank}, value

    numbers = jax.random.permutation(jax.random.key(0), 40)[:SAMPLES].astype(jnp.int32)
    bank = drawn(40, WIDTH, seed=9)
    state = {"params": mlp(FEATURES, WIDTH, WIDTH), "bank": bank / jnp.linalg.norm(bank, axis=-1, keepdims=True)}
    return Case(step=step, state=state, batch={"x": drawn(SAMPLES, FEATURES, seed=1), "number": numbers})


@case
def jax_features_whitened_by_the_cholesky_factor_of_the_batch() -> Case:
    """Hidden features lose their covariance over the batch; a moving one is kept for evaluation."""

    def loss(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch["x"] @ params["w"])
        centred = hidden - hidden.mean(0)
        covariance = centred.T @ centred / hidden.shape[0] + 0.1 * jnp.eye(WIDTH, dtype=hidden.dtype)
        white = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(covariance), centred.T, lower=True).T
        return cross_entropy(forward(params["head"], white), batch["y"]), covariance

    def step(state: Any, batch: Any) -> Any:
        (value, covariance), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], batch)
        moving = 0.9 * state["moving"] + 0.1 * covariance
        return {"params": sgd(state["params"], grads), "moving": moving}, value

    params = {"w": drawn(FEATURES, WIDTH, scale=0.5), "head": mlp(WIDTH, WIDTH, CLASSES, seed=2)}
    return Case(step=step, state={"params": params, "moving": jnp.eye(WIDTH)}, batch=classified())


@case
def jax_values_whose_scale_moves_under_a_kept_output() -> Case:
    """Moments of targets move with each batch, and the head is rewritten so that what it says stays the same."""

    def step(state: Any, batch: Any) -> Any:
        mean = 0.9 * state["mean"] + 0.1 * batch["y"].mean()
        square = 0.9 * state["square"] + 0.1 * (batch["y"] ** 2).mean()
        old, new = jnp.sqrt(state["square"] - state["mean"] ** 2), jnp.sqrt(square - mean**2)
        head = state["params"][-1]
        head = {"w": head["w"] * old / new, "b": (old * head["b"] + state["mean"] - mean) / new}
        params = [*state["params"][:-1], head]

        def loss(params: Any) -> Any:
            return optax.huber_loss(forward(params, batch["x"]), (batch["y"] - mean) / new).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return {"params": sgd(params, grads), "mean": mean, "square": square}, value * new

    state = {"params": mlp(FEATURES, WIDTH, 1), "mean": jnp.asarray(0.0), "square": jnp.asarray(1.0)}
    return Case(step=step, state=state, batch=measured())


@case
def jax_two_groups_treated_alike() -> Case:
    """The gap of mean answers between two groups, and the largest loss within each of four groups."""

    def loss(params: Any, batch: Any) -> Any:
        answer = jax.nn.sigmoid(forward(params, batch["x"])[:, 0])
        each = -jnp.log(jnp.where(batch["y"] > 1, answer, 1 - answer))
        first = batch["group"] % 2 == 0
        gap = jnp.abs(jnp.mean(answer, where=first) - jnp.mean(answer, where=~first))
        worst = jax.ops.segment_max(each, batch["group"], 4)
        return each.mean() + gap + 0.1 * jnp.where(jnp.isfinite(worst), worst, 0.0).sum(), worst

    def step(state: Any, batch: Any) -> Any:
        (value, worst), grads = jax.value_and_grad(loss, has_aux=True)(state, batch)
        return sgd(state, grads), (value, worst)

    batch = classified() | {"group": jnp.arange(SAMPLES, dtype=jnp.int32) % 4}
    return Case(step=step, state=mlp(FEATURES, WIDTH, 1), batch=batch)
