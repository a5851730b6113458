"""Weights gathered some layers ahead: as one device, at the priced bytes, and no layer sooner or later than said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

from meshwright.compiler.sharding.hlo_collectives import count_collectives
from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.training.ranks import RankTraining
from meshwright.specs.model import LayerRun, ModelSpec
from meshwright.specs.row_text import parse_row
from meshwright.zoo.tiny import TINY
from tests.runtime.test_halves import bodies

LAYERS = 4


def training(words: str, name: str = "llama-tiny") -> RankTraining:
    return of(replace(TINY[name], runs=(LayerRun(layers=TINY[name].runs[0].layers, repeats=LAYERS),)), words)


def of(spec: ModelSpec | None, words: str) -> RankTraining:
    row = parse_row(f"dp8.{words}.mbs1", devices=8, global_batch=8, schedules=())
    return RankTraining(spec=spec, row=row, stage_layers=(LAYERS,), seq_len=16, hidden=16)


@pytest.mark.parametrize(
    ("words", "name", "dtype", "steps"),
    [("fsdp.prefetch2.gbs16", "gpt-tiny", "fp64", 2), ("z3.prefetch0.gbs8", "llama-tiny", "fp32", 5)],
)
def test_layers_gathered_ahead_end_where_one_device_ends(words: str, name: str, dtype: str, steps: int) -> None:
    """Dropout, tied tables and two micro-batches of GPT."""
    with jax_precision(dtype):
        one = training(words, name)
        state = one.initial()
        assert parity_of(run_parallel(one, jax.devices(), steps, state), run_alone(one, steps, state), dtype).holds


def test_layers_are_gathered_twice_and_every_gradient_scattered_once() -> None:
    """As zero 3 is priced, whatever the depth; table and head are each read once."""
    one = training("fsdp.prefetch2.gbs8")
    state = one.initial()
    text = one.ranks.on(jax.devices(), gradients_too=False).compiled_text(state, one.batch(0))
    sent = count_collectives(text).result_bytes
    held, layers = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(part)) for part in (state["weights"], state["weights"]["layers"])
    )
    assert sent["all-gather"] == pytest.approx(held + layers, rel=0.01)
    assert 8 * sent["reduce-scatter"] == pytest.approx(held, rel=0.01)


def order(depth: int) -> tuple[list[int], list[int]]:
    """Of every gather in program order: the products that it waits for, and those that stand before it."""
    one = training(f"fsdp.prefetch{depth}.gbs8")
    step = one.ranks.on(jax.devices(), gradients_too=False)
    program = jax.make_jaxpr(step.together)(one.initial(), one.batch(0))
    body = max(bodies(program.jaxpr), key=lambda one: sum(eqn.primitive.name == "all_gather" for eqn in one.eqns))
    before: dict[Any, frozenset[int]] = {}
    products: list[int] = []
    waits, behind = [], []
    for number, eqn in enumerate(body.eqns):
        read = frozenset().union(*(before.get(one, frozenset()) for one in eqn.invars if not hasattr(one, "val")))
        if eqn.primitive.name == "dot_general":
            products.append(number)
            read |= {number}
        if eqn.primitive.name == "all_gather":
            waits.append(len(read))
            behind.append(len(products))
        before |= dict.fromkeys(eqn.outvars, read)
    return waits, behind


@pytest.mark.parametrize("depth", [0, 2])
def test_a_layer_is_sent_for_when_the_one_so_far_before_it_begins(depth: int) -> None:
    """Its gather stands before the products of the layers in between and waits for none of them, but for others."""
    waits, behind = order(depth)
    shapes = jax.eval_shape(training("fsdp.prefetch2").plain_model().init, jax.random.key(0))
    ends, each = (len(jax.tree.leaves(part)) for part in ((shapes["embedding"], shapes["head"]), shapes["layers"][0]))
    of_layers = waits[ends : ends + LAYERS * each]
    products = min(count for count in of_layers if count)
    wanted = [max(0, number - depth) * products for number in range(LAYERS) for _ in range(each)]
    assert of_layers == wanted
    assert behind[ends : ends + LAYERS * each] == wanted
    back = waits[2 * ends + LAYERS * each :][: LAYERS * each]
    steps = sorted({*back})
    assert [steps.index(count) for count in back[::each]] == [max(0, number - depth) for number in range(LAYERS)]


@pytest.mark.parametrize(
    ("spec", "words", "what"),
    [
        (None, "fsdp.prefetch2", "does not run with the perceptron"),
        (TINY["pr-moe-tiny"], "fsdp.prefetch2", "does not run with pr-moe-tiny"),
        (TINY["llama-tiny"], "hsdp4.prefetch2", "prefetch2 with hsdp does not run here"),
        (TINY["llama-tiny"], "z3.hpz4.prefetch2", "does not run here"),
        (TINY["llama-tiny"], "fsdp.prefetch2.rc-sel", "does not run here"),
    ],
)
def test_what_is_not_gathered_ahead_here_is_refused(spec: ModelSpec | None, words: str, what: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        of(spec, words)
    assert any(what in problem.what for problem in raised.value.problems)
