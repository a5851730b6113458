"""The search for the order of the shortest span: what a step takes among others where no barrier parts them.

If weights are updated without waiting for anybody, and the update is validated afterwards (post-validation), a worker
begins the next step as soon as its own part of this one is over; steps then follow each other at the longest span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, product

import numpy as np

from meshwright.budget import spent
from meshwright.schedules.list_scheduling import TaskRule, Work
from meshwright.schedules.lists import Task
from meshwright.schedules.order_search import IMPROVED, Order, latest_starts, ordered_by, warmup_options
from meshwright.schedules.resting import BOTH, GRADIENTS, InOrder, Rest, Resting, RestingRanked, SlackRest
from meshwright.schedules.table import Kind

SPAN_TASKS = 400_000
"""Tasks that are placed while rests are refined, beside each rule's first ones."""
HALVINGS = 7
"""Halvings of the range in which the shortest rest is looked for."""
REFINED = 4
"""Rules, the best ones, whose rest is refined."""
IMPROVED_TASKS = 200_000
"""Tasks that are placed while the best order is improved."""
SOONER = (0.0, 0.025, 0.1)
"""Shares of the time that the busiest worker idles, by which an order is asked to end sooner."""
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
        return ordered_by(self.work, self.rule(rest), words)


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
    found = []
    if placement.v == 1:
        m = work.micro_batches[0]
        filled = [filled_warmup(work, waits=waits) for waits in (False, True)]
        orders = [(work, _one_by_one(warmup, m), f"warm-up {warmup[0]}..{warmup[-1]}, 1F1B") for warmup in filled]
        found = given_orders(orders)
        warmups = filled + warmups
        warmups += [
            tuple(max(1, min(m, _held(work, r), p - r + round(depth * (p - 1 - r)))) for r in range(p))
            for depth in (0.0, *DEPTHS)
        ]
    return found + [
        RuleFamily(
            work=work,
            rule=lambda rest, warmup=warmup: Resting(warmup, rest),  # type: ignore[misc]
            words=f"warm-up {warmup[0]}..{warmup[-1]}",
        )
        for warmup in dict.fromkeys(warmups)
    ]


def filled_warmup(work: Work, *, waits: bool) -> tuple[int, ...]:
    """Forwards before each worker's first gradient: as many as fill the wait for it, fewer behind each worker.

    Source: the start of the heuristic of Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024,
    section 3.1; that a worker holds fewer than the one before is this reconstruction's own.

    Args:
        work: the work of one stage per worker.
        waits: whether a forward that would end behind the arrival of the gradient still runs, so that this waits.
    """
    p, m = work.placement.p, work.micro_batches[0]
    latency = [0.0] * p if work.latency_s is None else work.latency_s
    ends_s = np.zeros((p, m))
    for r in range(p):
        free_s = 0.0
        for unit in range(m):
            arrival_s = ends_s[r - 1, unit] + latency[r - 1] if r else 0.0
            ends_s[r, unit] = free_s = max(free_s, arrival_s) + work.forward_s[r]
    found = [1] * p
    gradient_s = float(ends_s[p - 1, 0])
    for r in reversed(range(p)):
        if r < p - 1:
            over_s = work.forward_s[r] * (1 - 1e-9) if waits else 0.0
            most = int(np.searchsorted(ends_s[r], gradient_s + over_s, side="right"))
            found[r] = max(1, min(most, m, _held(work, r)))
            gradient_s = max(gradient_s, float(ends_s[r, found[r] - 1]))
        gradient_s += work.gradient_s[r] + (latency[r - 1] if r else 0.0)
    for r in range(1, p):
        found[r] = max(1, min(found[r], found[r - 1] - 1))
    return tuple(found)


def _one_by_one(warmup: Sequence[int], m: int) -> list[list[Task]]:
    """Warm-up forwards, then an input gradient and a forward in turn."""
    lists = []
    for r, depth in enumerate(warmup):
        tasks = [Task(Kind.F, r, unit) for unit in range(depth)]
        for unit in range(m):
            tasks.append(Task(Kind.I, r, unit))
            tasks += [Task(Kind.F, r, unit + depth)] * (unit + depth < m)
        lists.append(tasks)
    return lists


def shortest_span(families: Sequence[RuleFamily], least_s: float = 0.0) -> Order:
    """The order of the shortest span, the first of equals.

    Every rule runs with workers that rest as long as the idlest one, before all tasks or before gradients only. The
    best ones run again with other rests, halved between none and what the best order so far idles. Then the best orders
    of those rules are improved.

    Args:
        families: rules, at least one; the most promising first.
        least_s: a lower bound; an order that reaches it ends the search.
    """
    found = _Found(least_s * (1 + 1e-12))
    ran: list[tuple[float, int, frozenset[Kind]]] = []
    for at, family in enumerate(families):
        for before in (BOTH, GRADIENTS) if family.work.weight_s is not None else (BOTH,):
            if ran and found.ended(SPAN_TASKS):
                break
            order = family.order(Rest(before=before))
            found.keep(at, order)
            ran.append((order.span_s, at, before))
    found.placed = 0
    for _, at, before in sorted(ran, key=lambda one: one[0])[:REFINED]:
        if families[at].work.weight_s is not None:
            _refine(found, at, families[at], before)
    found.placed = 0
    for at, order in sorted(found.orders.items(), key=lambda one: one[1].span_s)[:REFINED]:
        if order.work.weight_s is not None:
            _improve(found, at)
    return found.shortest


@dataclass
class _Found:
    """The best order of each rule so far."""

    least_s: float
    orders: dict[int, Order] = field(default_factory=dict)
    placed: int = 0
    """Tasks that the current part of the search has placed."""

    @property
    def shortest(self) -> Order:
        return min(self.orders.values(), key=lambda order: order.span_s)

    def ended(self, most: int) -> bool:
        """Whether nothing is left to find, or no time to find it in."""
        return self.shortest.span_s <= self.least_s or self.placed > most or bool(spent())

    def keep(self, at: int, order: Order) -> bool:
        """Count an order, and keep it if it is the best one of its rule."""
        self.placed += order.work.tasks
        better = at not in self.orders or order.span_s < self.orders[at].span_s * (1 - 1e-12)
        if better:
            self.orders[at] = order
        return better


def _refine(found: _Found, at: int, family: RuleFamily, before: frozenset[Kind]) -> None:
    """Run a rule with other rests."""
    busy_s = _busiest_s(family.work)
    for as_others in (True, False):
        low_s, high_s = 0.0, found.shortest.span_s - busy_s
        for _halving in range(HALVINGS):
            if found.ended(SPAN_TASKS):
                return
            most_s = (low_s + high_s) / 2
            order = family.order(Rest(most_s=most_s, as_others=as_others, before=before))
            found.keep(at, order)
            if order.span_s - busy_s <= most_s:
                high_s = most_s
            else:
                low_s = most_s
            high_s = min(high_s, found.shortest.span_s - busy_s)


def _improve(found: _Found, at: int) -> None:
    """Make a rule's best order again with the latest starts of its own timeline, while that shortens its span.

    Every worker has to end a span behind its first start, or somewhat earlier. Weight gradients start where they delay
    nothing beyond its latest start; then forwards and gradients too are taken by their latest starts. The latter is the
    forward-backward improvement of `order_search`, with a deadline for each worker.
    """
    better = True
    while better:
        better = False
        start = found.orders[at]
        work, words = start.work, start.rule.split(";")[0].removesuffix(IMPROVED) + IMPROVED
        idle_s = start.span_s - _busiest_s(work)
        for rule, rest in chain(_slack_rules(start, idle_s), _ranked_rules(start, idle_s)):
            if found.ended(IMPROVED_TASKS):
                return
            better |= found.keep(at, ordered_by(work, rule, f"{words}; {rest}"))


def _slack_rules(start: Order, idle_s: float) -> Iterator[tuple[TaskRule, Rest]]:
    """The order of an order's forwards and gradients, its weight gradients where they delay nothing."""
    for sooner in SOONER:
        span_s = start.span_s - sooner * idle_s
        latest_s = latest_starts(start, [start_s + span_s for start_s in start.starts_s])
        rest = SlackRest(most_s=(1 - sooner) * idle_s, latest_s=latest_s)
        yield InOrder(start.lists, rest), rest


def _ranked_rules(start: Order, idle_s: float) -> Iterator[tuple[TaskRule, Rest]]:
    """Forwards and gradients by their latest starts, for one stage per worker."""
    work = start.work
    if work.placement.v > 1:
        return
    rank = latest_starts(start, [start_s + start.span_s for start_s in start.starts_s])
    rests = [
        Rest(most_s=share * idle_s, as_others=as_others, before=before)
        for share, as_others, before in product((0.0, 0.5, 0.9), (True, False), (BOTH, GRADIENTS))
        if share or as_others or before is BOTH
    ]
    for ahead, rest in product((0.0, 0.5, 1.0), rests):
        yield RestingRanked(rank, rest, ahead * max(work.forward_s)), rest


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
