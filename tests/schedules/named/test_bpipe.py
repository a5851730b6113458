"""BPipe: what is parked where, and that nothing is missing when it is needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules import Kind
from meshwright.schedules.named.bpipe import BPipe


@given(p=st.integers(1, 16), m=st.integers(1, 40))
def test_every_activation_is_at_home_for_its_backward_and_no_worker_holds_more_than_the_limit(p: int, m: int) -> None:
    bpipe = BPipe()
    table, limit = bpipe.table(p, m), bpipe.limit(p)
    assert (bpipe.resident(p, m) <= limit).all()
    for worker in range(p):
        moves = {}
        for exchange in bpipe.exchanges(p, m, worker):
            moves.setdefault(exchange.before, []).append(exchange)
        home: set[int] = set()
        for at, task in enumerate(range(table.first[worker], table.first[worker + 1])):
            for exchange in moves.get(at, []):
                (home.remove if exchange.away else home.add)(exchange.micro_batch)
            unit = int(table.micro_batch[task])
            if table.kind[task] == Kind.F:
                home.add(unit)
            else:
                home.remove(unit)
            assert len(home) <= limit
        assert not home


def test_eight_workers_hold_five_at_most() -> None:
    bpipe = BPipe()
    assert bpipe.resident(8, 40).tolist() == [5, 5, 5, 5, 4, 4, 4, 4]
    assert bpipe.resident(4, 8).tolist() == [3, 3, 2, 2]
    assert bpipe.peak_activations(8, 40) == (5, 5, 5, 5, 4, 4, 4, 4)
    assert bpipe.exchanges(8, 40, 5) == ()
