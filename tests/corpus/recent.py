"""Steps as the code of recent papers has them: denoisers in U form, one-step flows, balanced experts, masks."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.corpus.case import (
    FEATURES,
    LENGTH,
    SAMPLES,
    WIDTH,
    WORDS,
    Case,
    adam,
    case,
    cross_entropy,
    drawn,
    forward,
    in_place,
    mlp,
    pictures,
    sentences,
    whole,
    with_optimizer,
)


@case
def equinox_denoiser_in_u_form() -> Case:
    class Block(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.GroupNorm
        time: eqx.nn.Linear

        def __init__(self, c_in: int, c_out: int, key: Any) -> None:
            one, other = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(c_in, c_out, 3, padding=1, key=one)
            self.norm = eqx.nn.GroupNorm(2, c_out)
            self.time = eqx.nn.Linear(4, c_out, key=other)

        def __call__(self, x: Any, t: Any) -> Any:
            return jax.nn.silu(self.norm(self.conv(x)) + self.time(t)[:, None, None])

    class UNet(eqx.Module):
        first: Block
        down: eqx.nn.Conv2d
        middle: Block
        up: eqx.nn.ConvTranspose2d
        last: Block
        out: eqx.nn.Conv2d
        drop: eqx.nn.Dropout

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 6)
            self.first, self.middle, self.last = Block(2, 4, keys[0]), Block(4, 4, keys[1]), Block(8, 4, keys[2])
            self.down = eqx.nn.Conv2d(4, 4, 3, stride=2, padding=1, key=keys[3])
            self.up = eqx.nn.ConvTranspose2d(4, 4, 2, stride=2, key=keys[4])
            self.out = eqx.nn.Conv2d(4, 2, 1, key=keys[5])
            self.drop = eqx.nn.Dropout(0.1)

        def __call__(self, x: Any, t: Any, key: Any) -> Any:
            waves = jnp.concatenate([jnp.sin(t * jnp.arange(1, 3)), jnp.cos(t * jnp.arange(1, 3))])
            high = self.first(x, waves)
            low = self.drop(self.middle(self.down(high), waves), key=key)
            return self.out(self.last(jnp.concatenate([self.up(low), high]), waves))

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adam())

    def loss(model: Any, images: Any, key: Any) -> Any:
        def of_one(image: Any, key: Any) -> Any:
            t_key, noise_key, drop_key = jax.random.split(key, 3)
            t = jax.random.uniform(t_key, minval=0.02, maxval=0.98)
            signal, sigma = jnp.cos(t * jnp.pi / 2), jnp.sin(t * jnp.pi / 2)
            noise = jax.random.normal(noise_key, image.shape)
            guess = model(signal * image + sigma * noise, t, drop_key)
            weight = jnp.minimum((signal / sigma) ** 2, 5.0) / ((signal / sigma) ** 2 + 1)
            return weight * ((guess - (signal * noise - sigma * image)) ** 2).mean()

        return jax.vmap(of_one)(images, jax.random.split(key, len(images))).mean()

    def step(state: Any, batch: Any) -> Any:
        model, average, opt_state, key = state
        key, own = jax.random.split(key)
        value, grads = eqx.filter_value_and_grad(loss)(model, batch["image"], own)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        model = eqx.apply_updates(model, updates)
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p if eqx.is_array(a) else a, average, model)
        return (model, average, opt_state, key), value

    model = UNet(jax.random.key(0))
    state = (model, model, optimizer.init(eqx.filter(model, eqx.is_array)), jax.random.key(1))
    batch = {"image": jnp.moveaxis(pictures()["image"], -1, 1)}
    return Case(step=step, state=state, batch=batch, jit=eqx.filter_jit)


@case
def jax_mean_flow_by_forward_derivative() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def speed(z: Any, t: Any, r: Any) -> Any:
            return forward(params, jnp.concatenate([z, t, r], axis=-1))

        noise, (t, r) = batch["noise"], (batch["t"], batch["t"] * batch["part"])
        z, v = (1 - t) * batch["x"] + t * noise, noise - batch["x"]
        u, change = jax.jvp(speed, (z, t, r), (v, jnp.ones_like(t), jnp.zeros_like(r)))
        error = u - jax.lax.stop_gradient(v - (t - r) * change)
        squared = (error**2).sum(-1)
        return (squared / jax.lax.stop_gradient(squared + 1e-3)).mean()

    batch = {
        "x": drawn(SAMPLES, 2, seed=1),
        "noise": drawn(SAMPLES, 2, seed=2),
        "t": jnp.abs(drawn(SAMPLES, 1, seed=3)),
        "part": jnp.abs(drawn(SAMPLES, 1, seed=4)) / 4,
    }
    return with_optimizer(adam(), loss, mlp(4, WIDTH, WIDTH, 2), batch)


@case
def nnx_experts_balanced_by_bias_and_two_words_ahead() -> Case:
    experts = 4

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm, self.router = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, experts, rngs=rngs)
            self.bias = nnx.BatchStat(jnp.zeros(experts))
            self.up = nnx.Param(drawn(experts, WIDTH, WIDTH, seed=7, scale=0.3))
            self.down = nnx.Param(drawn(experts, WIDTH, WIDTH, seed=8, scale=0.3))
            self.attend = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + self.attend(x, mask=mask)
            own = self.norm(x)
            scores = jax.nn.sigmoid(self.router(own))
            chosen = jax.lax.top_k(scores + self.bias[...], 2)[1]
            hot = jax.nn.one_hot(chosen, experts).sum(-2)
            gates = scores * hot / (scores * hot).sum(-1, keepdims=True)
            wide = jax.nn.silu(jnp.einsum("bsh,ehf->bsef", own, self.up[...]))
            made = jnp.einsum("bsef,efh->bseh", wide, self.down[...])
            return x + jnp.einsum("bseh,bse->bsh", made, gates), hot.sum((0, 1))

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.table = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])
            self.ahead = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, ids: Any) -> Any:
            x, loads = self.table(ids), []
            for block in self.blocks:
                x, load = block(x)
                loads.append(load)
            further = self.ahead(jnp.concatenate([x[:, :-1], self.table(ids[:, 1:])], axis=-1))
            return self.table.attend(x), self.table.attend(further), loads

    def loss(model: Any, batch: Any) -> Any:
        logits, further, loads = model(batch["ids"])
        capped = 30 * jnp.tanh(logits / 30)
        return cross_entropy(capped, batch["next"]) + 0.3 * cross_entropy(further, batch["next"][:, 1:]), loads

    def step(state: Any, batch: Any) -> Any:
        model, optimizer = state
        (value, loads), grads = nnx.value_and_grad(loss, has_aux=True)(model, batch)
        optimizer.update(model, grads)
        for block, load in zip(model.blocks, loads, strict=True):
            block.bias[...] += 0.01 * jnp.sign(load.mean() - load)
        return value

    model = Net(nnx.Rngs(0))
    state = (model, nnx.Optimizer(model, adam(), wrt=nnx.Param))
    # Attention of JAX takes its softmax in 32 bits.
    return Case(step=step, state=state, batch=sentences(), after=in_place, jit=nnx.jit, narrow=True)


@case
def linen_scanned_decoder_with_saved_names_and_token_weights() -> Case:
    from jax.ad_checkpoint import checkpoint_name

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, segments: Any, train: bool) -> Any:
            own = nn.RMSNorm()(x)
            q, k, v = (nn.DenseGeneral((2, 4), use_bias=False, name=name)(own) for name in "qkv")
            q, k = nn.RMSNorm(name="q_norm")(q), nn.RMSNorm(name="k_norm")(k)
            same = nn.make_attention_mask(segments, segments, jnp.equal)
            mask = nn.combine_masks(nn.make_causal_mask(segments), same)
            mixed = nn.dot_product_attention(q, k, v, mask=mask)
            x = x + checkpoint_name(nn.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=False)(mixed), "out_proj")
            own = nn.RMSNorm()(x)
            up = nn.silu(nn.Dense(2 * WIDTH)(own)) * nn.Dense(2 * WIDTH)(own)
            return x + nn.Dropout(0.1, broadcast_dims=(-2,))(nn.Dense(WIDTH)(up), deterministic=not train), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, ids: Any, segments: Any, train: bool = True) -> Any:
            embed = nn.Embed(WORDS, WIDTH)
            saved = jax.checkpoint_policies.save_only_these_names("out_proj")
            layers = nn.scan(
                nn.remat(Layer, policy=saved, prevent_cse=False, static_argnums=(3,)),
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=(nn.broadcast, nn.broadcast),
                length=3,
            )
            x, _ = layers(name="layers")(embed(ids), segments, train)
            return embed.attend(nn.RMSNorm()(x))

    model = Decoder()

    def loss(params: Any, batch: Any, key: Any) -> Any:
        logits = model.apply({"params": params}, batch["ids"], batch["segments"], rngs={"dropout": key})
        rows = optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"])
        rows = rows + 1e-4 * jax.nn.logsumexp(logits, axis=-1) ** 2
        weights = (batch["segments"] != 0).astype(rows.dtype)
        total, count = (rows * weights).sum(), weights.sum()
        return total / (count + 1e-8), {"total_loss": total, "total_weights": count}

    rate = optax.warmup_cosine_decay_schedule(0, 1e-2, 3, 9)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=1e-3))

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, count = state
        key = jax.random.fold_in(jax.random.key(5), count)
        (value, seen), grads = jax.value_and_grad(loss, has_aux=True)(params, batch, key)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(grads), **seen}
        return (optax.apply_updates(params, updates), opt_state, count + 1), metrics

    batch = {**sentences(), "segments": jnp.minimum(whole(3, SAMPLES, 1, seed=6) + jnp.arange(LENGTH) // 3, 2)}
    params = model.init(jax.random.key(0), batch["ids"], batch["segments"], train=False)["params"]
    return Case(step=step, state=(params, optimizer.init(params), jnp.int32(0)), batch=batch)


@case
def generator_with_penalty_on_real_pictures() -> Case:
    optimizer = optax.adam(5e-3, b1=0.0, b2=0.99, eps=1e-3)

    def score(params: Any, x: Any) -> Any:
        return forward(params, x)[..., 0]

    def step(state: Any, batch: Any) -> Any:
        made, judge, made_opt, judge_opt, average = state

        def judged(params: Any) -> Any:
            fake = forward(jax.lax.stop_gradient(made), batch["z"])
            steep = jax.vmap(jax.grad(score, argnums=1), in_axes=(None, 0))(params, batch["x"])
            penalty = (steep**2).sum(-1).mean()
            value = jax.nn.softplus(score(params, fake)).mean() + jax.nn.softplus(-score(params, batch["x"])).mean()
            return value + 0.5 * penalty, penalty

        (judge_loss, penalty), grads = jax.value_and_grad(judged, has_aux=True)(judge)
        updates, judge_opt = optimizer.update(grads, judge_opt)
        judge = optax.apply_updates(judge, updates)

        def fooled(params: Any) -> Any:
            return jax.nn.softplus(-score(judge, forward(params, batch["z"]))).mean()

        made_loss, grads = jax.value_and_grad(fooled)(made)
        updates, made_opt = optimizer.update(grads, made_opt)
        made = optax.apply_updates(made, updates)
        average = optax.incremental_update(made, average, 0.1)
        return (made, judge, made_opt, judge_opt, average), (judge_loss, made_loss, penalty)

    made, judge = mlp(4, WIDTH, FEATURES), mlp(FEATURES, WIDTH, WIDTH, 1, seed=5)
    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "z": drawn(SAMPLES, 4, seed=2)}
    return Case(step=step, state=(made, judge, optimizer.init(made), optimizer.init(judge), made), batch=batch)


@case
def jax_masked_pictures_by_sorted_noise() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        patches = batch["x"]
        order = jnp.argsort(batch["noise"], axis=1)
        back = jnp.argsort(order, axis=1)
        kept = jnp.take_along_axis(patches, order[:, :4, None], axis=1) @ params["in"]
        places = jnp.broadcast_to(params["places"], (*order.shape, WIDTH))
        kept = kept + jnp.take_along_axis(places, order[:, :4, None], axis=1)
        seen = kept + jax.nn.dot_product_attention(*(kept[:, :, None] * w for w in params["qkv"]))[:, :, 0]
        rest = jnp.broadcast_to(params["blank"], (len(patches), LENGTH + 2 - 4, WIDTH))
        full = jnp.take_along_axis(jnp.concatenate([seen, rest], axis=1), back[..., None], axis=1) + params["places"]
        error = ((forward(params["out"], full) - patches) ** 2).mean(-1)
        hidden = jnp.take_along_axis(jnp.arange(LENGTH + 2) >= jnp.full((len(patches), 1), 4), back, axis=1)
        return (error * hidden).sum() / hidden.sum()

    params = {
        "in": drawn(FEATURES, WIDTH),
        "places": drawn(LENGTH + 2, WIDTH, seed=3),
        "blank": drawn(WIDTH, seed=4),
        "qkv": drawn(3, WIDTH, seed=5),
        "out": mlp(WIDTH, WIDTH, FEATURES),
    }
    batch = {"x": drawn(SAMPLES, LENGTH + 2, FEATURES, seed=1), "noise": drawn(SAMPLES, LENGTH + 2, seed=2)}
    return with_optimizer(adam(), loss, params, batch)


@case
def jax_equilibrium_by_custom_root() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def moved(z: Any) -> Any:
            return jnp.tanh(z @ params["z"] + batch["x"] @ params["x"])

        def solved(f: Any, start: Any) -> Any:
            return jax.lax.fori_loop(0, 30, lambda _, z: z - f(z), start)

        def linear(g: Any, y: Any) -> Any:
            return jax.lax.fori_loop(0, 30, lambda _, v: v + y - g(v), y)

        z = jax.lax.custom_root(lambda z: z - moved(z), jnp.zeros((len(batch["x"]), WIDTH)), solved, linear)
        return cross_entropy(z @ params["out"], batch["y"])

    params = {"z": drawn(WIDTH, WIDTH, scale=0.1), "x": drawn(FEATURES, WIDTH, seed=1), "out": drawn(WIDTH, 4, seed=2)}
    return with_optimizer(optax.sgd(0.1), loss, params)
