"""Which experts take which tokens: the top k, GShard's random second expert, Switch's one, or the experts choose."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from meshwright.zoo.token_groups import WholeSamples

Gate = Literal["top-k", "gshard", "switch", "expert-choice"]


def routes(
    gate: Gate,
    shares: jax.Array,
    chosen: tuple[jax.Array, jax.Array],
    room: int,
    keys: jax.Array | None,
    groups: WholeSamples,
) -> tuple[jax.Array, jax.Array]:
    """One-hot [groups, length, experts, room] that sends tokens, and the same with weights that takes results.

    Args:
        gate: `top-k`: weights of a token's experts sum to 1; `gshard`: likewise, and the second expert is visited with
            probability min(1, 2 g2); `switch`: the router's probability is the weight; `expert-choice`: each expert
            takes the `room` tokens of a group that want it most, with their probabilities as weights.
        shares: probabilities of the router [groups, length, experts].
        chosen: probabilities and experts of each token [groups, length, k].
        room: tokens of a group that an expert takes.
        keys: the keys of the samples' random numbers, for `gshard`.
        groups: the tokens that share the places of experts.

    Source: Lepikhin et al. 2020 (GShard), algorithm 1; Fedus et al. 2021 (Switch Transformers), equation 2; Zhou et al.
        2022 (Expert Choice, arXiv 2202.09368), section 3.2.
    """
    experts = shares.shape[-1]
    if gate == "expert-choice":
        weight, token = jax.lax.top_k(shares.swapaxes(1, 2), room)
        picked = jax.nn.one_hot(token, shares.shape[1], dtype=jnp.int32).transpose(0, 3, 1, 2)
        return picked, picked * weight[:, None]
    weight, index = chosen
    if gate != "switch":
        weight = weight / weight.sum(-1, keepdims=True)
    visits = jnp.ones(index.shape, dtype=jnp.int32)
    if gate == "gshard" and index.shape[-1] > 1:
        assert keys is not None
        drawn = groups.drawn(keys, index.shape[1], weight.dtype)
        visits = visits.at[..., 1:].set((2.0 * weight[..., 1:] > drawn[..., None]).astype(jnp.int32))
    sent = jax.nn.one_hot(index, experts, dtype=jnp.int32) * visits[..., None]
    # Seats go by position: whether a token is dropped depends on no later one.
    seat = groups.before(sent.sum(2))[:, :, None]
    seated = sent[..., None] * jax.nn.one_hot(seat, room, dtype=jnp.int32)
    return seated.sum(2), (seated * weight[..., None, None]).sum(2)
