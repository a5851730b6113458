"""Orders of workers that never wait on purpose: which units time is counted in changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules.kinds import Kind, Placement
from meshwright.schedules.list_order import list_table


@given(
    workers=st.integers(1, 4),
    chunks=st.integers(1, 2),
    micro_batches=st.integers(1, 5),
    ticks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    factor=st.integers(2, 5),
    data=st.data(),
)
def test_only_the_ratio_of_ticks_matters_and_lengths_count_alike(
    workers: int, chunks: int, micro_batches: int, ticks: tuple[int, int], factor: int, data: st.DataObject
) -> None:
    placement = Placement.loop(workers, chunks)
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=placement.stages, max_size=placement.stages))

    def rank(kind: Kind, stage: int, micro_batch: int) -> tuple[int, ...]:
        return (micro_batch, stage) if kind is Kind.F else (micro_batch, -stage)

    def orders(ticks: tuple[int, int], lengths: list[int] | None) -> list[tuple[int, ...]]:
        table = list_table(placement, [micro_batches], ticks, rank, lengths=lengths)
        return list(zip(table.worker, table.kind, table.stage, table.micro_batch, strict=True))

    more = (factor * ticks[0], factor * ticks[1])
    assert orders(ticks, lengths) == orders(more, lengths)
    assert orders(ticks, [factor * length for length in lengths]) == orders(ticks, lengths)
    assert orders(ticks, None) == orders(more, [1] * placement.stages)
