"""When a resting worker takes its weight gradient after all, against the rule in words."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from meshwright.schedules import SCHEDULES
from meshwright.schedules.list_scheduling import State, Work, list_schedule
from meshwright.schedules.resting import BOTH, GRADIENTS, Rest, Resting, SlackRest
from meshwright.schedules.table import Kind

PLACEMENT = SCHEDULES["1f1b"].placement(3)


def state_of(chance: Random) -> State:
    """Workers somewhere in a step: times and waits in eighths, so that they tie often and add up exactly."""
    work = Work(
        placement=PLACEMENT,
        micro_batches=(4,),
        forward_s=[1.0] * 3,
        gradient_s=[1.0] * 3,
        weight_s=[chance.choice([0.5, 1.0, 2.0]) for _ in range(3)],
    )
    state = State(work)
    for stage, desk in enumerate(state.desks):
        desk.free_s = chance.randrange(16) / 8
        desk.idle_s = chance.randrange(16) / 8
        desk.owed.extend([(stage, 0)] * chance.randrange(3))
    return state


def drawn() -> Iterator[tuple[Random, State, float]]:
    """Two hundred workers, and when what they wait for starts."""
    for seed in range(200):
        chance = Random(seed)
        yield chance, state_of(chance), chance.randrange(24) / 8


def test_a_worker_rests_as_long_as_it_may_or_as_the_idlest_and_works_where_that_delays_nobody() -> None:
    for chance, state, start_s in drawn():
        kind, before = chance.choice([Kind.F, Kind.I]), chance.choice([BOTH, GRADIENTS])
        rest = Rest(most_s=chance.choice([0.0, 0.5, 1.5]), as_others=chance.random() < 0.5, before=before)
        desk = state.desks[0]
        wait_s = start_s - desk.free_s
        over_before_it = wait_s >= state.seconds[Kind.W][0]
        rested_enough = desk.idle_s + wait_s > rest.most_s
        idlest_s = max(other.idle_s for other in state.desks)
        may_still = rest.as_others and desk.idle_s + wait_s <= idlest_s
        works = (
            bool(desk.owed)
            and wait_s > 0
            and (kind not in before or over_before_it or (rested_enough and not may_still))
        )
        assert rest.ends(state, 0, start_s, kind, 0) == works


def test_a_worker_rests_only_where_its_weight_gradient_would_delay_a_task() -> None:
    for chance, state, start_s in drawn():
        latest_s = chance.randrange(32) / 8
        rest = SlackRest(most_s=chance.choice([0.5, 1.5, 9.0]), latest_s={(Kind.I, 0, 0): latest_s})
        desk, weight_s = state.desks[0], state.seconds[Kind.W][0]
        wait_s = start_s - desk.free_s
        delays_nobody = desk.free_s + weight_s <= max(latest_s, start_s)
        works = bool(desk.owed) and wait_s > 0 and (delays_nobody or desk.idle_s + wait_s > rest.most_s)
        assert rest.ends(state, 0, start_s, Kind.I, 0) == works


def test_no_worker_runs_further_ahead_of_its_gradients_than_its_warmup() -> None:
    for seed in range(20):
        chance = Random(seed)
        forward_s, gradient_s, weight_s = ([chance.choice([1.0, 2.0]) for _ in range(3)] for _ in range(3))
        work = Work(
            placement=PLACEMENT, micro_batches=(8,), forward_s=forward_s, gradient_s=gradient_s, weight_s=weight_s
        )
        warmups = [3, 2, 1]
        for most, tasks in zip(warmups, list_schedule(work, Resting(warmups, Rest(most_s=1.0))).lists, strict=True):
            kinds = [kind for kind, *_ in tasks]
            ahead = [kinds[:end].count(Kind.F) - kinds[:end].count(Kind.I) for end in range(len(kinds) + 1)]
            assert max(ahead) <= most
            assert (kinds.count(Kind.F), kinds.count(Kind.I), kinds.count(Kind.W)) == (8, 8, 8)
