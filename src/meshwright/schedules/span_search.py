"""The search for the order of the shortest span: what a step takes among others where no barrier parts them.

If weights are updated without waiting for anybody, and the update is validated afterwards (post-validation), a worker
begins the next step as soon as its own part of this one is over; steps then follow each other at the longest span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.budget import spent
from meshwright.schedules.list_scheduling import TaskRule, Work
from meshwright.schedules.lists import Task
from meshwright.schedules.order_search import Order, made_by, warmup_options
from meshwright.schedules.resting import BOTH, GRADIENTS, InOrder, Rest, Resting
from meshwright.schedules.table import Kind

SPAN_TASKS = 400_000
"""Tasks that are placed while rests are refined, beside each rule's first ones."""
HALVINGS = 7
"""Of the range in which the shortest rest is looked for."""
REFINED = 4
"""Rules, the best ones, whose rest is refined."""
DEPTHS = (0.25, 0.5, 0.75, 1.0)
"""Warm-ups between p - r forwards and 2(p - r) - 1."""


@dataclass(frozen=True, kw_only=True)
class RuleFamily:
    """One rule for any rest."""

    work: Work
    rule: Callable[[Rest], TaskRule]
    words: str

    def order(self, rest: Rest) -> Order:
        """The order that it makes."""
        words = self.words if self.work.weight_s is None else f"{self.words}; {rest}"
        return made_by(self.work, self.rule(rest), words)


def given_orders(starts: Iterable[tuple[Work, Sequence[Sequence[Task]], str]]) -> list[RuleFamily]:
    """Rules that keep the forwards and gradients of these orders, those of them that fit, equal ones once.

    Args:
        starts: a work, an order of its tasks with or without weight gradients, and its name.
    """
    found = []
    known = set()
    for work, lists, name in starts:
        size = [0.0] * work.placement.stages if work.stage_bytes is None else work.stage_bytes
        order = InOrder(lists, Rest())
        # 1F1B, PipeDream-Flush and ZB-H1 differ in their weight gradients alone.
        key = work.placement.worker.tobytes(), tuple(map(tuple, order.given))
        if key not in known and order.fits(size, work.room_bytes):
            known.add(key)
            found.append(
                RuleFamily(work=work, rule=lambda rest, lists=lists: InOrder(lists, rest), words=f"order of {name}")  # type: ignore[misc]
            )
    return found


def greedy_families(work: Work) -> list[RuleFamily]:
    """Greedy rules for many warm-ups: those that cover a micro-batch's way, and those between 1F1B's and ZB-H2's.

    Args:
        work: what is to be scheduled.
    """
    placement, p = work.placement, work.placement.p
    warmups = list(warmup_options(work, (0.0, 0.5, 1.0)))
    if placement.v == 1:
        m = work.micro_batches[0]
        warmups += [
            tuple(max(1, min(m, _held(work, r), p - r + round(depth * (p - 1 - r)))) for r in range(p))
            for depth in (0.0, *DEPTHS)
        ]
    return [
        RuleFamily(
            work=work,
            rule=lambda rest, warmup=warmup: Resting(warmup, rest),  # type: ignore[misc]
            words=f"warm-up {warmup[0]}..{warmup[-1]}",
        )
        for warmup in dict.fromkeys(warmups)
    ]


def shortest_span(families: Sequence[RuleFamily], least_s: float = 0.0) -> Order:
    """The order of the shortest span, the first of equals.

    Every rule runs with workers that rest as long as the idlest one, before all tasks or before gradients only. The
    best ones run again with other rests, halved between none and what the best order so far idles.

    Args:
        families: rules, at least one; the most promising first.
        least_s: a lower bound; an order that reaches it ends the search.
    """
    least_s *= 1 + 1e-12
    best: Order | None = None
    ran: list[tuple[float, int, frozenset[Kind]]] = []
    placed = 0
    for at, family in enumerate(families):
        for before in (BOTH, GRADIENTS) if family.work.weight_s is not None else (BOTH,):
            if best is not None and (best.span_s <= least_s or spent() or placed > SPAN_TASKS):
                break
            order = family.order(Rest(before=before))
            placed += family.work.tasks
            ran.append((order.span_s, at, before))
            if best is None or order.span_s < best.span_s:
                best = order
    assert best is not None
    placed = 0
    for _, at, before in sorted(ran, key=lambda one: one[0])[:REFINED]:
        family = families[at]
        if family.work.weight_s is None:
            continue
        for as_others in (True, False):
            busy_s = _busiest_s(family.work)
            low_s, high_s = 0.0, best.span_s - busy_s
            for _halving in range(HALVINGS):
                if best.span_s <= least_s or spent() or placed > SPAN_TASKS:
                    return best
                most_s = (low_s + high_s) / 2
                order = family.order(Rest(most_s=most_s, as_others=as_others, before=before))
                placed += family.work.tasks
                if order.span_s < best.span_s * (1 - 1e-12):
                    best = order
                if order.span_s - busy_s <= most_s:
                    high_s = most_s
                else:
                    low_s = most_s
                high_s = min(high_s, best.span_s - busy_s)
    return best


def _held(work: Work, worker: int) -> int:
    """Micro-batches that fit a worker with one stage."""
    if work.room_bytes is None or work.stage_bytes is None:
        return work.micro_batches[0]
    size = float(np.asarray(work.stage_bytes)[work.placement.worker == worker].sum())
    room = work.room_bytes[worker]
    return work.micro_batches[0] if size == 0 else max(1, int(room / size * (1 + 1e-9)))


def _busiest_s(work: Work) -> float:
    """Seconds of tasks on the worker that has most of them."""
    weight = np.zeros(work.placement.stages) if work.weight_s is None else np.asarray(work.weight_s, float)
    units = np.asarray(work.micro_batches)[work.placement.chain]
    whole = units * (np.asarray(work.forward_s, float) + np.asarray(work.gradient_s, float) + weight)
    return float(np.bincount(work.placement.worker, weights=whole).max())
