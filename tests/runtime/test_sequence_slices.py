"""Schedules with segments run sequences slice by slice, and compute what whole sequences do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op
from meshwright.errors import InputError, UnsupportedError
from meshwright.runtime.training.run import Training
from meshwright.schedules import schedule_named
from meshwright.schedules.table import Kind
from meshwright.specs.row import PlanRow
from meshwright.zoo.tiny import TINY
from tests.compiler.models import largest_difference

WIDTH, HEADS, WORDS, TOKENS, LAYERS = 8, 2, 16, 8, 2
Attention = Callable[..., jax.Array]


def written_out(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Keys before queries in the product, an additive mask."""
    places = jnp.arange(TOKENS)
    scores = jnp.einsum("bknd,bqnd->bnqk", k, q) + jnp.where(places[:, None] >= places, 0.0, -jnp.inf)
    return jnp.einsum("bnqk,bknd->bqnd", jax.nn.softmax(scores), v)


def checkpointed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.checkpoint(written_out)(q, k, v)


def windowed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(2, 0))


def causal(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def both_ways(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v)


def without(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return q + k + v


def weights() -> Any:
    drawn = np.random.RandomState(0)

    def matrix(*shape: int) -> jax.Array:
        return jnp.asarray(drawn.randn(*shape) * 0.3, jnp.float32)

    layers = [
        {
            "qkv": matrix(3, WIDTH, HEADS, WIDTH // HEADS),
            "out": matrix(HEADS, WIDTH // HEADS, WIDTH),
            "up": matrix(WIDTH, 2 * WIDTH),
            "down": matrix(2 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {"embedding": matrix(WORDS, WIDTH), "positions": matrix(TOKENS, WIDTH), "layers": layers}


def batch(samples: int = 8) -> dict[str, jax.Array]:
    drawn = np.random.RandomState(1)
    return {"tokens": jnp.asarray(drawn.randint(0, WORDS, (samples, TOKENS + 1)))}


def step_with(attention: Attention, *, penalty: float = 0.0) -> Callable[..., Any]:
    """A step that returns state, loss, and the number of tokens that are predicted right."""

    def loss(weights: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        tokens = batch["tokens"]
        x = weights["embedding"][tokens[:, :-1]] + weights["positions"]
        for layer in weights["layers"]:
            q, k, v = jnp.einsum("bsh,phnd->pbsnd", x, layer["qkv"])
            x = x + jnp.einsum("bsnd,ndh->bsh", attention(q, k, v), layer["out"])
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        scores = jax.nn.log_softmax(x @ weights["embedding"].T)
        value = -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()
        return value + penalty * (weights["embedding"] ** 2).sum(), (scores.argmax(-1) == tokens[:, 1:]).sum()

    def step(state: Any, batch: Any) -> Any:
        (value, right), gradients = mw.value_and_grad(loss, has_aux=True)(state, batch)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, state, gradients), value, right

    return step


def compiled(attention: Attention, schedule: str, **more: Any) -> Any:
    method = mw.LocalPipeline(num_stages=2, num_micro_batches=2, schedule=schedule, **more)
    return mw.parallelize(step_with(attention), method=method)


@pytest.mark.parametrize(
    ("schedule", "attention", "chunks"),
    [
        ("seq1f1b-segments4", causal, None),
        ("terapipe", written_out, None),
        ("slimpipe-segments2", windowed, None),
        ("seq1f1b", checkpointed, None),
        ("seq1f1b", without, None),
    ],
)
def test_slices_compute_what_whole_sequences_do(schedule: str, attention: Attention, chunks: int | None) -> None:
    step = step_with(attention, penalty=0.01)
    method = mw.LocalPipeline(num_stages=2, num_micro_batches=2, schedule=schedule, chunks=chunks)
    run = mw.parallelize(step, method=method)
    assert largest_difference(run(weights(), batch()), jax.jit(step)(weights(), batch())) < 1e-6


def test_tasks_and_messages_are_those_of_the_schedule() -> None:
    made = compiled(causal, "seq1f1b-segments4").lower(*jax.eval_shape(lambda: (weights(), batch())))
    table = schedule_named("seq1f1b-segments4").table(2, 2)
    for mesh, own in enumerate(made.program.lists):
        ran = [one.label for one in own if one.op is Op.RUN and one.label[0] in "FB"]
        tasks = np.nonzero(table.worker == mesh)[0]
        assert ran == [f"{Kind(table.kind[task]).name}{mesh}.{table.micro_batch[task]}" for task in tasks]
    sent = [one for own in made.program.lists for one in own if one.op is Op.SEND and one.label.startswith("SEND_F")]
    sizes = {made.program.buffers[place].bytes for one in sent for place in one.reads}
    assert max(sizes) == 4 * TOKENS // 4 * WIDTH * 4  # samples x tokens of a slice x width; the rest are numbers
    assert len(sent) == 2 * 4


def unrolled(layer: Callable[..., Any], x: jax.Array, layers: Any) -> jax.Array:
    for at in range(LAYERS):
        x, _ = layer(x, jax.tree.map(lambda rows, at=at: rows[at], layers))
    return x


@pytest.mark.parametrize("stages", [4, 8])
def test_stages_without_attention_and_results_per_token(stages: int) -> None:
    state = weights()
    state["layers"] = jax.tree.map(lambda *rows: jnp.stack(rows), *state["layers"])
    step = layered(unrolled)
    method = mw.PipeshardParallel(num_stages=stages, num_micro_batches=2, schedule="seq1f1b-segments4")
    assert largest_difference(mw.parallelize(step, method=method)(state, batch()), jax.jit(step)(state, batch())) < 1e-6


@pytest.mark.parametrize("attention", [causal, written_out])
def test_a_stage_that_ends_inside_of_attention_passes_on_scores_of_the_keys_so_far(attention: Attention) -> None:
    step = step_with(attention)
    method = mw.LocalPipeline(num_stages=7, num_micro_batches=2, schedule="seq1f1b-segments4")
    run = mw.parallelize(step, method=method)
    assert largest_difference(run(weights(), batch()), jax.jit(step)(weights(), batch())) < 1e-6
    program = run.lower(weights(), batch()).program
    sent = [one for own in program.lists for one in own if one.op is Op.SEND and one.label.startswith("SEND_F0.")]
    keys = [program.buffers[one.reads[-1]].shape[-1] for one in sent]
    assert keys == [2, 4, 6, 8] * 2


def test_a_schedule_of_slices_keeps_fewer_activations_than_one_of_whole_sequences() -> None:
    shapes = jax.eval_shape(lambda: (weights(), batch()))
    peaks = {
        name: compiled(causal, name).lower(*shapes).verified.peak_bytes[0] for name in ("1f1b", "seq1f1b-segments4")
    }
    assert peaks["seq1f1b-segments4"] < peaks["1f1b"]


def layered(loop: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step over stacked layers that returns what it predicts for every token, and the loss of every sample."""

    def layer(x: jax.Array, own: Any) -> tuple[jax.Array, None]:
        q, k, v = jnp.einsum("bsh,phnd->pbsnd", x, own["qkv"])
        x = x + jnp.einsum("bsnd,ndh->bsh", causal(q, k, v), own["out"])
        rows = x.reshape(-1, WIDTH)
        return x + (jax.nn.relu(rows @ own["up"]) @ own["down"]).reshape(x.shape), None

    def loss(weights: Any, batch: Any) -> tuple[jax.Array, Any]:
        tokens = batch["tokens"]
        x = loop(layer, weights["embedding"][tokens[:, :-1]] + weights["positions"], weights["layers"])
        logits = x @ weights["embedding"].T
        rows = optax.softmax_cross_entropy_with_integer_labels(logits.reshape(-1, WORDS), tokens[:, 1:].reshape(-1))
        return rows.mean(), (logits, rows.reshape(-1, TOKENS).mean(-1))

    def step(state: Any, batch: Any) -> Any:
        (value, seen), gradients = mw.value_and_grad(loss, has_aux=True)(state, batch)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, state, gradients), value, seen

    return step


@pytest.mark.parametrize(("model", "why"), [("moe-tiny", "whole sequences"), (None, "no tokens")])
def test_a_model_whose_tokens_are_counted_or_missing_is_refused_before_it_is_traced(
    model: str | None, why: str
) -> None:
    spec = None if model is None else TINY[model]
    with pytest.raises(UnsupportedError, match=why):
        Training(spec=spec, row=PlanRow(pp=2, gbs=8, schedule="seq1f1b"), stage_layers=(2, 2), seq_len=8, hidden=8)


@pytest.mark.parametrize("again", [False, True])
def test_loops_over_layers_rows_of_tokens_and_results_per_token(again: bool) -> None:
    def loop(layer: Any, x: jax.Array, layers: Any) -> jax.Array:
        return jax.lax.scan(jax.checkpoint(layer) if again else layer, x, layers)[0]

    state = weights()
    state["layers"] = jax.tree.map(lambda *rows: jnp.stack(rows), *state["layers"])
    step = layered(loop)
    method = mw.PipeshardParallel(
        devices=jax.devices()[:4], num_stages=2, num_micro_batches=2, schedule="seq1f1b-segments4"
    )
    assert largest_difference(mw.parallelize(step, method=method)(state, batch()), jax.jit(step)(state, batch())) < 1e-6


@pytest.mark.parametrize(
    ("attention", "schedule", "words"),
    [
        (both_ways, "seq1f1b", r"read earlier ones alone: .*test_sequence_slices.py:\d+ \(both_ways\)"),
        (causal, "seq1f1b-segments3", "8 tokens do not split into 3"),
    ],
)
def test_what_does_not_run_in_slices_says_why_and_where(attention: Attention, schedule: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        compiled(attention, schedule).lower(*jax.eval_shape(lambda: (weights(), batch())))
