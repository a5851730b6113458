"""What raises, hangs or claims what cannot be is a reported skip."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from meshwright.planning.compose.sources.parallelizers.guard import Guarded, slice_words
from meshwright.planning.compose.sources.parallelizers.own_process import OwnProcess
from meshwright.specs.plan import StrategyRun
from tests.planning.compose.sources.parallelizers.slices import Half, island_of, job, slice_of

INPUTS = job()


def ask(guarded: Guarded, layers: int = 4) -> list[Any]:
    return guarded.plan(slice_of(INPUTS, layers), island_of(INPUTS), INPUTS.workload, 8)


def test_an_honest_answer_is_taken_whole() -> None:
    guarded = Guarded(inner=Half({}))
    assert len(ask(guarded)) == 1
    assert not guarded.skips
    assert (guarded.asked, guarded.taken) == (1, 1)


class Says(Half):
    every_size, slow = True, True


class Silent:
    def plan(self, *_: object) -> list[Any]:
        return []


def test_what_a_parallelizer_says_of_itself_is_passed_on_and_silence_means_no() -> None:
    said, silent = Guarded(inner=Says({})), Guarded(inner=Silent())
    assert (said.name, said.every_size, said.slow) == ("half", True, True)
    assert (silent.name, silent.every_size, silent.slow) == ("Silent", False, False)
    assert OwnProcess(name="asked", command=["asked"]).every_size is False
    assert OwnProcess(name="asked", command=["asked"]).slow is False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"devices": 16}, "uses 16 devices of the 8"),
        ({"devices": 0}, "uses 0 devices"),
        ({"devices": 4}, "is not 4 devices"),
        ({"micro_batch": 4}, "micro-batch is 4, asked for was 8"),
        ({"forward_s": -1.0}, "forward_s is -1.0"),
        ({"backward_s": math.nan}, "backward_s is nan"),
        ({"state_bytes": math.inf}, "state_bytes is inf"),
        ({"activation_bytes": "much"}, "activation_bytes is 'much'"),
        ({"runs": (StrategyRun(layers=3, strategy=0),)}, "holds 3 layers, the slice has 4"),
        ({"runs": (StrategyRun(layers=4, strategy=1),)}, "beyond its 1"),
        ({"forward_s": 1e-9}, "less than the"),
    ],
)
def test_a_lie_is_skipped_and_the_rest_is_taken(change: dict[str, Any], said: str) -> None:
    guarded = Guarded(inner=Half(change))
    assert len(ask(guarded)) == 1
    (skip,) = guarded.skips
    assert said in skip.reason
    assert "answer 2 of 2" in skip.reason
    assert str(skip).startswith("half on 4 layers on 8 of H100")


class Raises:
    name = "raises"

    def plan(self, *_: object) -> list[Any]:
        raise ZeroDivisionError("no\n  devices")


class Leaves:
    """Without a name, and it ends the interpreter."""

    def plan(self, *_: object) -> list[Any]:
        raise SystemExit(3)


class Mumbles:
    name = "mumbles"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def plan(self, *_: object) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (Raises(), "raised ZeroDivisionError: no devices"),
        (Leaves(), "raised SystemExit: 3"),
        (Mumbles(None), "answered with NoneType"),
        (Mumbles([{"devices": 8}]), "it is a dict, not a PartialPlan"),
    ],
)
def test_what_raises_or_answers_nonsense_is_skipped(inner: Any, said: str) -> None:
    guarded = Guarded(inner=inner)
    assert ask(guarded) == []
    assert said in guarded.skips[0].reason


class Hangs:
    name = "hangs"

    def __init__(self) -> None:
        self.freed = threading.Event()
        self.calls = 0

    def plan(self, *_: object) -> list[Any]:
        self.calls += 1
        self.freed.wait()
        return []


def test_what_hangs_is_asked_nothing_more() -> None:
    inner = Hangs()
    guarded = Guarded(inner=inner, time_limit_s=0.05)
    assert ask(guarded) == []
    assert ask(guarded) == []
    inner.freed.set()
    assert inner.calls == 1
    (skip,) = guarded.skips
    assert "no answer within 50 ms" in skip.reason


def test_equal_reasons_are_reported_once() -> None:
    guarded = Guarded(inner=Raises())
    for layers in (1, 2, 3):
        ask(guarded, layers)
    assert guarded.report() == [
        "raises on 1 layer on 8 of H100: raised ZeroDivisionError: no devices (and 2 more like it)"
    ]


def test_a_slice_is_described_with_its_edges() -> None:
    part = slice_of(INPUTS, 1, embedding=True, head=True)
    assert slice_words(part, island_of(INPUTS, 1, 4)) == "1 layer and the embedding and the head on 4 of A100-80"
