"""The zoo's decoders have the parameters that the planner counts, and lose nothing to recomputation or splitting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.errors import UnsupportedError
from meshwright.library import models
from meshwright.specs.model import ModelSpec
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.tiny import TINY, scaled_model

NARROW = {name: scaled_model(spec, layers=1, hidden=16, vocab=32) for name, spec in TINY.items()}
LIBRARY = ("gpt2", "llama-3.1-8b", "mixtral-8x7b", "qwen2.5-7b", "falcon-7b", "qwen3-30b-a3b")


def shapes_of(spec: ModelSpec) -> Any:
    return jax.eval_shape(Decoder(spec=spec, seq_len=8).init, jax.random.key(0))


@pytest.mark.parametrize("name", [*TINY, *LIBRARY])
def test_a_model_has_the_parameters_that_the_planner_counts(name: str) -> None:
    spec = TINY[name] if name in TINY else scaled_model(models.resolve(name), layers=2)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(spec))) == spec.parameters


@pytest.mark.parametrize("name", LIBRARY)
def test_scaled_models_keep_their_kind(name: str) -> None:
    spec = models.resolve(name)
    small = scaled_model(spec, layers=2, hidden=64, vocab=100)
    assert (small.num_layers, small.hidden, small.vocab) == (2, 64, 100)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(small))) == small.parameters
    one, other = (next(one.layers()) for one in (small, spec))
    assert type(one.mlp) is type(other.mlp)
    assert one.attention.heads // one.attention.kv_heads == other.attention.heads // other.attention.kv_heads


@pytest.mark.parametrize("name", NARROW)
def test_a_token_is_predicted_from_those_before_it(name: str) -> None:
    model = Decoder(spec=NARROW[name], seq_len=8)
    weights, keys = jax.jit(model.init)(jax.random.key(0)), jax.random.split(jax.random.key(1), 2)
    logits = jax.jit(lambda tokens: model.logits(weights, tokens, keys)[0])
    tokens = model.batch(0, 2)["tokens"][:, :-1]
    changed = tokens.copy()
    changed[:, 5] = (changed[:, 5] + 1) % model.spec.vocab
    same = (logits(tokens) == logits(changed)).all(-1)
    assert same[:, :5].all()
    assert not same[:, 5:].any()


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("gpt-tiny", ((1, "full"), (1, ("core_attn", "mlp", "layernorm")))),
        ("moe-tiny", ((1, "full"), (1, ("core_attn", "moe_act")))),
    ],
)
def test_recomputation_changes_no_gradient(name: str, runs: Any) -> None:
    plain = Decoder(spec=scaled_model(TINY[name], layers=2, hidden=16, vocab=32), seq_len=8)
    again = replace(plain, recompute=runs)
    weights, batch = jax.jit(plain.init)(jax.random.key(0)), plain.batch(0, 2)
    one, other = (jax.jit(jax.grad(model.loss))(weights, batch, jax.random.key(1)) for model in (plain, again))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "modules"),
    [("llama-tiny", ("core_attn", "mlp", "layernorm")), ("moe-tiny", ("core_attn", "moe_act", "moe"))],
)
def test_backward_keeps_less_of_each_module_that_it_computes_again(name: str, modules: tuple[str, ...]) -> None:
    plain = Decoder(spec=NARROW[name], seq_len=8)
    weights, batch = jax.eval_shape(plain.init, jax.random.key(0)), plain.batch(0, 2)

    def kept_bytes(again: tuple[str, ...]) -> int:
        model = replace(plain, recompute=((plain.num_layers, again),))
        pullback = jax.eval_shape(
            lambda own: jax.vjp(lambda w: model.loss(w, batch, jax.random.key(1)), own)[1], weights
        )
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pullback))

    added = [kept_bytes(modules[:count]) for count in range(len(modules) + 1)]
    assert added == sorted(added, reverse=True)
    assert len(set(added)) == len(added)


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny"])
def test_the_loss_of_a_batch_is_the_mean_of_its_samples(name: str) -> None:
    model = Decoder(spec=NARROW[name], seq_len=8)
    weights, batch = jax.jit(model.init)(jax.random.key(0)), model.batch(0, 4)
    loss = jax.jit(model.loss)
    single = [
        float(loss(weights, jax.tree.map(lambda leaf: leaf[n : n + 1], batch), jax.random.key(1)))  # noqa: B023
        for n in range(4)
    ]
    assert float(loss(weights, batch, jax.random.key(1))) == pytest.approx(np.mean(single), abs=1e-6)


def test_dropout_is_there_and_another_one_each_step() -> None:
    model = Decoder(spec=NARROW["gpt-tiny"], seq_len=8)
    weights, batch = jax.jit(model.init)(jax.random.key(0)), model.batch(0, 2)
    with_dropout, without = (jax.jit(one.loss) for one in (model, replace(model, dropout=0.0)))
    losses = {float(with_dropout(weights, batch, jax.random.key(number))) for number in range(3)}
    kept = {float(without(weights, batch, jax.random.key(number))) for number in range(3)}
    assert (len(losses), len(kept)) == (3, 1)


@pytest.mark.parametrize(("name", "words"), [("deepseek-v3", "latent attention"), ("gemma-2-9b", "4 norms")])
def test_what_is_not_built_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Decoder(spec=models.resolve(name), seq_len=8)
    assert words in str(caught.value)


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="1024 positions"):
        Decoder(spec=TINY["gpt-tiny"], seq_len=2048)
