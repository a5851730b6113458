"""The shapes on which every schedule of the catalogue is held to what it declares."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Schedule, Times
from meshwright.schedules.named.avgpipe import AvgPipe
from meshwright.schedules.named.breadth_first import BreadthFirst
from meshwright.schedules.named.chimera import Chimera
from meshwright.schedules.named.dynapipe import DynaPipe
from meshwright.schedules.named.ftpipe import FTPipe
from meshwright.schedules.named.ftpipe_flush import FTPipeFlush
from meshwright.schedules.named.hanayo import Hanayo
from meshwright.schedules.named.interleaved import Interleaved
from meshwright.schedules.named.interleaved_zb import InterleavedZeroBubble
from meshwright.schedules.named.mario import Mario
from meshwright.schedules.named.mixpipe import MixPipe
from meshwright.schedules.named.one_f_one_b import OneFOneB
from meshwright.schedules.named.seq1f1b import Seq1F1B
from meshwright.schedules.named.slimpipe import SlimPipe
from meshwright.schedules.named.terapipe import TeraPipe
from meshwright.schedules.named.v_half import VHalf
from meshwright.schedules.named.v_min import VMin
from meshwright.schedules.named.zb_auto import ZeroBubbleAuto


@dataclass(frozen=True)
class Case:
    """One schedule and the (p, m, v) it is tried on."""

    schedule: Schedule
    shapes: tuple[tuple[int, int, int], ...]
    closed_form: bool = True
    """Whether its closed form holds for these shapes."""
    tight: bool = True
    """Whether its bound is within 2% for nearly equal stages and transfers; all are within 25%."""

    def __str__(self) -> str:
        given = {field.name: getattr(self.schedule, field.name) for field in fields(self.schedule)}
        return "-".join([self.schedule.name, *(f"{key}{value}" for key, value in given.items() if value)])


ONE_CHUNK = (
    (1, 1, 1), (1, 5, 1), (2, 1, 1), (2, 2, 1), (2, 9, 1), (3, 2, 1), (4, 3, 1), (4, 4, 1), (4, 5, 1), (4, 6, 1),
    (4, 8, 1), (4, 40, 1), (5, 17, 1), (8, 24, 1), (8, 64, 1),
)  # fmt: skip
CHUNKS = (
    (2, 2, 2), (2, 4, 2), (2, 6, 3), (3, 3, 2), (3, 12, 4), (4, 4, 2), (4, 8, 2), (4, 8, 4), (4, 32, 2), (8, 16, 2),
    (8, 48, 3),
)  # fmt: skip
V_BLOCKS = ((1, 3, 2), (2, 4, 2), (3, 5, 2), (4, 1, 2), (4, 8, 2), (6, 14, 2))

CASES = (
    Case(SCHEDULES["gpipe"], ONE_CHUNK),
    Case(SCHEDULES["1f1b"], ONE_CHUNK),
    Case(OneFOneB(warmup="pb"), ((1, 3, 1), (2, 1, 1), (4, 3, 1), (4, 8, 1), (4, 40, 1), (8, 24, 1)), tight=False),
    Case(SCHEDULES["interleaved"], CHUNKS),
    Case(
        Interleaved(group=5),
        ((2, 10, 2), (3, 5, 2), (3, 8, 2), (4, 4, 3), (4, 20, 2), (4, 40, 3), (4, 44, 2)),
        closed_form=False,
    ),
    Case(Interleaved(group=3), ((4, 3, 2), (5, 3, 3), (8, 3, 4)), tight=False),
    Case(SCHEDULES["zb-h1"], ((1, 3, 1), (2, 1, 1), (2, 6, 1), (4, 3, 1), (4, 8, 1), (8, 24, 1)), tight=False),
    Case(SCHEDULES["zb-h2"], ((1, 3, 1), (2, 3, 1), (4, 8, 1), (5, 9, 1), (8, 20, 1)), tight=False),
    Case(SCHEDULES["zb-v"], ((1, 2, 2), (2, 2, 2), (2, 6, 2), (4, 8, 2), (5, 3, 2), (6, 16, 2)), tight=False),
    *(Case(schedule, V_BLOCKS, tight=False) for schedule in (VHalf(), VHalf(raw=True), VMin(), VMin(raw=True))),
    Case(SCHEDULES["zb-auto"], ((1, 2, 1), (2, 5, 1), (4, 8, 1), (6, 12, 1)), tight=False),
    Case(ZeroBubbleAuto(most_live=2), ((4, 6, 1),), tight=False),
    Case(SCHEDULES["interleaved-zb"], ((2, 2, 2), (3, 6, 3), (4, 8, 2), (4, 8, 4), (6, 18, 2)), tight=False),
    Case(InterleavedZeroBubble(group=5), ((3, 8, 2), (4, 10, 2)), closed_form=False),
    Case(SCHEDULES["dualpipe"], ((2, 4, 1), (4, 8, 1), (4, 14, 1), (6, 12, 1), (8, 20, 1)), tight=False),
    Case(SCHEDULES["dualpipev"], ((1, 2, 2), (2, 4, 2), (3, 7, 2), (4, 8, 2), (6, 16, 2)), tight=False),
    Case(SCHEDULES["seq1f1b"], ((1, 2, 1), (2, 1, 1), (4, 8, 1), (7, 2, 1), (8, 24, 1)), tight=False),
    Case(Seq1F1B(segments=4), ((4, 1, 1), (4, 6, 1)), tight=False),
    Case(SCHEDULES["terapipe"], ((1, 2, 1), (2, 1, 1), (4, 8, 1), (8, 12, 1)), tight=False),
    Case(TeraPipe(segments=4), ((4, 1, 1), (4, 6, 1)), tight=False),
    Case(SCHEDULES["slimpipe"], ((1, 2, 1), (2, 1, 1), (2, 4, 2), (4, 8, 1), (4, 3, 3), (8, 12, 1)), tight=False),
    Case(SlimPipe(segments=8), ((4, 1, 1), (4, 4, 2), (8, 3, 2)), tight=False),
    Case(SCHEDULES["mario"], ((1, 3, 1), (2, 1, 1), (4, 3, 1), (4, 8, 1), (8, 24, 1)), tight=False),
    Case(Mario(plain=True), ((1, 3, 1), (4, 8, 1), (5, 17, 1)), tight=False),
    Case(SCHEDULES["v-1f1b"], V_BLOCKS, tight=False),
    Case(SCHEDULES["breadth-first"], ((2, 1, 2), (3, 2, 2), (4, 8, 2), (4, 4, 3), (6, 16, 2))),
    Case(BreadthFirst(reverse=True), ((3, 2, 2), (4, 8, 2))),
    Case(SCHEDULES["pipedream-flush"], ((1, 3, 1), (4, 3, 1), (4, 8, 1), (8, 24, 1))),
    Case(SCHEDULES["varuna"], ((1, 3, 1), (2, 1, 1), (2, 4, 1), (4, 8, 1), (5, 17, 1), (8, 24, 1)), tight=False),
    Case(SCHEDULES["chimera"], ((2, 2, 1), (4, 2, 1), (4, 4, 1), (4, 12, 1), (8, 5, 1), (8, 16, 1)), tight=False),
    Case(Chimera(pairs=2), ((4, 4, 1), (4, 8, 1), (8, 7, 1), (8, 16, 1)), tight=False),
    Case(Chimera(doubling=True), ((4, 4, 1), (4, 9, 1), (8, 16, 1)), tight=False),
    Case(Chimera(halving=True), ((2, 3, 1), (4, 4, 1), (4, 9, 1), (8, 16, 1)), tight=False),
    Case(Chimera(pairs=2, halving=True), ((4, 6, 1), (8, 16, 1)), tight=False),
    Case(SCHEDULES["hanayo"], ((1, 2, 2), (2, 4, 2), (4, 4, 2), (4, 8, 4), (5, 7, 2), (8, 16, 2)), tight=False),
    Case(Hanayo(waves=1, backward_ticks=1), ((4, 4, 2), (6, 6, 2)), tight=False),
    Case(Hanayo(admit=6), ((4, 8, 2), (4, 9, 4)), tight=False),
    Case(SCHEDULES["avgpipe"], ((2, 1, 1), (4, 8, 1), (4, 40, 1), (8, 24, 1))),
    Case(AvgPipe(extra=2, pipelines=2), ((2, 2, 1), (4, 8, 1), (6, 18, 1)), tight=False),
    Case(SCHEDULES["mixpipe"], ((2, 2, 1), (4, 3, 1), (4, 8, 1), (6, 6, 1), (8, 16, 1)), tight=False),
    Case(MixPipe(inject=4), ((4, 8, 1), (6, 11, 1), (8, 16, 1)), tight=False),
    Case(SCHEDULES["pipedream"], ((1, 3, 1), (4, 3, 1), (4, 8, 1))),
    Case(SCHEDULES["pipedream-2bw"], ((1, 3, 1), (4, 4, 1), (8, 24, 1))),
    Case(SCHEDULES["bpipe"], ((2, 1, 1), (4, 8, 1), (8, 24, 1))),
    Case(SCHEDULES["bamboo"], ((2, 1, 1), (4, 3, 1), (4, 8, 1), (8, 24, 1)), tight=False),
    Case(SCHEDULES["ftpipe"], ((1, 3, 1), (2, 5, 2), (4, 8, 1), (4, 12, 2)), tight=False),
    Case(FTPipe(blocks="0_1_2_2_0_1"), ((3, 4, 2), (3, 12, 2)), tight=False),
    Case(FTPipe(blocks="0_1_0_0_1"), ((2, 3, 3), (2, 12, 3)), tight=False),
    Case(SCHEDULES["ftpipe-flush"], ((1, 3, 1), (2, 5, 2), (4, 8, 1), (4, 12, 2)), tight=False),
    Case(FTPipeFlush(blocks="0_1_0_0_1"), ((2, 3, 3), (2, 12, 3)), tight=False),
    Case(SCHEDULES["mobius"], ((2, 1, 2), (3, 2, 2), (4, 8, 3))),
    Case(SCHEDULES["dynapipe"], ((1, 3, 1), (4, 3, 1), (4, 8, 1), (8, 24, 1))),
    Case(DynaPipe(most=2), ((2, 5, 1), (4, 9, 1)), tight=False),
)
"""Every schedule of the catalogue, and variants by parameter; a test sees to it that none is missing."""

ONE_BY_ONE = tuple((case, shape) for case in CASES for shape in case.shapes)
"""Every case with each of its shapes."""


def name(value: object) -> str | None:
    """Readable test ids."""
    if isinstance(value, Case):
        return str(value)
    return "p{}-m{}-v{}".format(*value) if isinstance(value, tuple) else None


def unequal(p: int, v: int, rows: int = 0) -> st.SearchStrategy[Times]:
    """Durations from all alike to wild: spread around one value, a slow worker, transfers from none to huge, zeros."""

    def draw(seed: int, spread: float, slow: float, transfer: float, blank: bool) -> Times:
        rng = np.random.default_rng(seed)
        lead = (rows,) if rows else ()

        def around(middle: float) -> np.ndarray:
            seconds = middle * np.exp(spread * rng.standard_normal((*lead, p, v)))
            seconds[..., rng.integers(p), :] *= slow
            if blank:
                seconds[..., rng.integers(p), rng.integers(v)] = 0.0
            return seconds / v

        backward = around(2.0)
        return Times(
            forward_s=around(1.0),
            backward_s=backward,
            transfer_s=transfer * rng.random((*lead, p, v)) / v,
            weight_s=backward * rng.random((*lead, p, v)),
            recompute_s=around(1.0),
        )

    return st.builds(
        draw,
        seed=st.integers(0, 2**32 - 1),
        spread=st.sampled_from([0.0, 0.01, 0.1, 1.0]),
        slow=st.sampled_from([1.0, 1.02, 1.5, 5.0]),
        transfer=st.sampled_from([0.0, 0.02, 0.5, 5.0]),
        blank=st.booleans(),
    )
