"""Layers on halves of a micro-batch (Domino): as one device, at the priced bytes, neither half waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import pytest

from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.model_grid import model_grid
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.step_collectives import step_collectives
from tests.runtime.priced_collectives import copies_bytes, tensor_bytes
from tests.runtime.test_tensor_grids import training, wide

LAYERS = 2


@pytest.mark.parametrize(
    ("plan", "model", "dtype", "steps"),
    [
        ("tp4.dp2.mbs2.gbs8.tpov-halves.rc-full", "gpt-tiny", "fp64", 2),
        ("tp2.nosp.dp2.mbs4.z1.tpov-halves", "llama-tiny", "fp64", 2),
        ("tp4.dp2.mbs2.tpov-halves", "gpt-tiny", "fp32", 5),
    ],
)
def test_halves_end_where_one_device_ends(plan: str, model: str, dtype: str, steps: int) -> None:
    """Every sample has the dropout of one device, whichever half it is in."""
    with jax_precision(dtype):
        one = training(plan, model)
        state = one.initial()
        there = run_parallel(one, jax.devices(), steps, state)
        parity = parity_of(there, run_alone(one, steps, state), dtype)
    assert parity.holds


Names = dict[str, tuple[str, set[str]]]


def instructions(text: str) -> Names:
    """Kind and ancestors of every instruction of a compiled program, whose text names operands before their users."""
    found: Names = {}
    for line in text[text.index("\nENTRY") :].splitlines():
        if match := re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\((.*)$", line):
            name, kind, rest = match.groups()
            operands = [one for one in re.findall(r"%([\w.\-]+)", rest.partition("), ")[0]) if one in found]
            found[name] = kind, set(operands).union(*(found[one][1] for one in operands))
    return found


def independent(found: Names, kind: str) -> list[int]:
    """Of each instruction of a kind, how many others neither wait for it nor it for them."""
    own = {name: before for name, (what, before) in found.items() if what == kind}
    return [sum(name not in before and other not in own[name] for name in own) - 1 for other, before in own.items()]


def test_halves_send_what_is_priced_and_none_waits_for_the_other() -> None:
    """Two sums a layer and half; those of the other half, of all layers, may run beside one's products."""
    one, spec = training("tp4.dp1.mbs2.tpov-halves", seq_len=128), wide(kv_heads=4)
    spec = replace(spec, runs=(replace(spec.runs[0], repeats=LAYERS),))
    one = replace(one, spec=spec, stage_layers=(LAYERS,))
    compiled: Any = one.step(jax.devices()).lower(one.initial(), one.batch(0))
    found = step_collectives(compiled.runtime)
    copies = {"forward": 0.0, "backward": copies_bytes(spec, one.row, 4.0)}
    for program, phase in (("F0", "forward"), ("B0", "backward")):
        priced = tensor_bytes(spec, one.row, one.seq_len, phase, 4.0) + copies[phase]
        assert found[program].sent_bytes == pytest.approx(priced, rel=0.01)
    texts = compiled.hlo()
    forward = independent(instructions(texts["F0"]), "reduce-scatter")
    assert forward == [0] + [2 * LAYERS] * (4 * LAYERS)  # the embedding's first
    assert min(independent(instructions(texts["B0"]), "reduce-scatter")[1:]) >= 2 * LAYERS


def bodies(program: Any) -> Iterator[Any]:
    """Every program inside of a program."""
    yield program
    for eqn in program.eqns:
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from bodies(inner)


def unordered(body: Any) -> list[int]:
    """Of each sum over ranks in a program, how many others it neither reads nor feeds."""
    before: dict[Any, set[int]] = {}
    for number, eqn in enumerate(body.eqns):
        read = set().union(*(before.get(one, set()) for one in eqn.invars if not hasattr(one, "val")))
        before |= dict.fromkeys(eqn.outvars, read | {number})
    sums = {number: before[eqn.outvars[0]] for number, eqn in enumerate(body.eqns) if "psum" in eqn.primitive.name}
    return [sum(one not in reads and other not in sums[one] for one in sums) for other, reads in sums.items()]


def test_sums_without_sequence_parallelism_are_of_one_half_each() -> None:
    """In the program that is handed to XLA, which may put sums together."""
    one = training("tp2.nosp.dp1.mbs2.tpov-halves", "llama-tiny")
    model = one.model(model_grid(one.row, one.plain_model(), one.seq_len))
    program = jax.make_jaxpr(model.loss)(one.initial()["weights"], one.batch(0), jax.random.key(0))
    free = [found for body in bodies(program.jaxpr) if len(found := unordered(body)) == 4]
    assert free[0] == [2] * 4


def test_a_step_that_is_not_written_here_is_refused() -> None:
    one = replace(training("tp4.dp2.mbs2.tpov-halves"), seq_len=6)
    with pytest.raises(UnsupportedError, match="tpov-halves does not run with this step"):
        one.step(jax.devices())
