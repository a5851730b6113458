"""The search for an order: many greedy rules, screened on a shortened step, the best ones run in full and improved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from meshwright.budget import spent
from meshwright.schedules.list_scheduling import Greedy, GreedyByRank, TaskRule, Work, list_schedule
from meshwright.schedules.lists import Task
from meshwright.schedules.table import Kind, ScheduleTable

SCREENED_TASKS = 120_000
"""Tasks of shortened steps that a search may place, beside two rules of each work."""
FULL_TASKS = 40_000
"""Tasks of full steps that are tried beside the two best rules; as many again for the improvement of orders."""
IMPROVEMENTS = 4
"""Rounds of improvement at most."""
IMPROVED = ", improved"
"""Words behind a rule's name whose order was improved."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `Greedy` is told; `warmups` by worker."""

    warmups: tuple[int, ...]
    wait: float
    eager: bool
    group: int | None = None

    def rule(self) -> Greedy:
        """The rule itself, for one run."""
        return Greedy(self.warmups, self.wait, eager=self.eager, group=self.group)


@dataclass(frozen=True, kw_only=True)
class Order:
    """One order that was found."""

    work: Work
    lists: list[list[Task]]
    makespan_s: float
    span_s: float
    """Largest time from first start to last end of one worker."""
    rule: str
    """Name of the rule, for reports."""
    starts_s: tuple[float, ...] = ()
    """Start of each worker's first task, where a rule made the order."""


def search_orders(
    works: Sequence[Work], options: Sequence[Sequence[Options]], least_s: float = 0.0, starts: Sequence[Order] = ()
) -> Order:
    """The fastest order of any of these ways to lay the same step out; the first of equals.

    If there are too many tasks to place, all pairs of a work and its options (the first ones of each, most promising
    first) are screened on a step of p micro-batches; only the best run in full. Then the best order of each work is
    improved, the fastest first, as far as the number of tasks allows: steps of more than `FULL_TASKS` are not.

    Args:
        works: the same micro-batches on different placements, split or not.
        options: the options of each work, most promising first.
        least_s: a lower bound; an order that reaches it ends the search.
        starts: orders from elsewhere that are improved too.
    """
    pairs = [(work, choice) for work, own in zip(works, options, strict=True) for choice in own]
    if sum(work.tasks for work, _ in pairs) > FULL_TASKS:
        pairs = _screened(works, options)
    least_s *= 1 + 1e-12
    best: dict[int, Order] = {}
    placed = 0
    for number, (work, choice) in enumerate(pairs):
        if (number >= 2 and placed > FULL_TASKS) or (number and spent()):
            break
        order = ordered_by(work, choice.rule(), _words(choice))
        placed += work.tasks
        if id(work) not in best or order.makespan_s < best[id(work)].makespan_s:
            best[id(work)] = order
        if order.makespan_s <= least_s:
            break
    fastest = min(best.values(), key=lambda order: order.makespan_s)
    placed = 0
    for order in sorted([*best.values(), *starts], key=lambda order: order.makespan_s):
        if fastest.makespan_s <= least_s or placed + order.work.tasks > FULL_TASKS or spent():
            break
        better = improved(order)
        placed += 2 * order.work.tasks
        if better.makespan_s < fastest.makespan_s:
            fastest = better
    return fastest


def ordered_by(work: Work, rule: TaskRule, words: str) -> Order:
    """The order that a rule makes of a work.

    Args:
        work: what is to be scheduled.
        rule: the rule by which a worker takes its next task.
        words: the words for the rule, as users read them.
    """
    made = list_schedule(work, rule)
    return Order(
        work=work,
        lists=made.lists,
        makespan_s=made.makespan_s,
        span_s=made.span_s,
        rule=words,
        starts_s=tuple(made.starts_s),
    )


def improved(order: Order) -> Order:
    """The order made again with the latest starts of its own timeline as ranks, as long as that makes it faster.

    A task that could start late without delaying the end gives way to one that could not: the forward-backward
    improvement of project scheduling, within the same memory.
    Source: Li and Willis, "An iterative scheduling technique for resource-constrained project scheduling", 1992.

    Args:
        order: the order to start from.
    """
    for _ in range(IMPROVEMENTS):
        again = _by_latest_start(order)
        if again.makespan_s >= order.makespan_s * (1 - 1e-9):
            break
        order = again
    return order


def order_of(table: ScheduleTable, work: Work, makespan_s: float, rule: str, span_s: float = 0.0) -> Order:
    """The order of a table, to be improved.

    Args:
        table: the table of the work's tasks and no others.
        work: what it schedules.
        makespan_s: the makespan in seconds with the work's times.
        rule: the rule in words.
        span_s: the span in seconds with the work's times, where it counts.
    """
    columns = (table.kind.tolist(), table.stage.tolist(), table.micro_batch.tolist())
    tasks = [Task(Kind(kind), stage, unit) for kind, stage, unit in zip(*columns, strict=True)]
    lists = [tasks[low:high] for low, high in pairwise(table.first.tolist())]
    return Order(work=work, lists=lists, makespan_s=makespan_s, span_s=span_s, rule=rule)


def warmup_options(work: Work, extras: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Forwards before each worker's first gradient: as many as cover the way of a micro-batch to the end and back.

    A worker that is not to wait holds lifetime / pace micro-batches per stage, where the lifetime lasts from the start
    of F to the start of the gradient, and the pace is the time of the busiest worker per micro-batch; 1F1B's p - r
    with equal stages. Each extra e asks for 1 + e times the micro-batches in flight beyond the first; then as many as
    there are.

    Args:
        work: what is to be scheduled.
        extras: the extras to try.
    """
    placement = work.placement
    forward, gradient = np.asarray(work.forward_s, float), np.asarray(work.gradient_s, float)
    weight = np.zeros_like(forward) if work.weight_s is None else np.asarray(work.weight_s, float)
    latency = np.zeros_like(forward) if work.latency_s is None else np.asarray(work.latency_s, float)
    pace = max(float(np.bincount(placement.worker, weights=forward + gradient + weight).max()), 1e-300)
    reach = np.zeros(placement.stages)
    for stage in reversed(range(placement.stages)):
        after = int(placement.following[stage])
        reach[stage] = forward[stage]
        if after >= 0:
            reach[stage] += 2 * latency[stage] + reach[after] + gradient[after]
    own = np.bincount(placement.worker)
    most = np.bincount(placement.worker, weights=np.asarray(work.micro_batches)[placement.chain]).astype(int)
    for extra in extras:
        held = np.maximum(np.ceil((1 + extra) * (reach - forward) / pace * (1 - 1e-9)), 0) + 1
        together = np.bincount(placement.worker, weights=held).astype(int)
        yield tuple(np.clip(together, own, np.maximum(most, own)).tolist())
    yield tuple(np.maximum(most, own).tolist())


def greedy_options(
    warmups: Iterable[tuple[int, ...]], *, split: bool, groups: Sequence[int | None] = (None,)
) -> list[Options]:
    """All rules for these warm-up depths; without weight gradients there is nothing to wait for.

    Args:
        warmups: forwards of each worker before its first gradient.
        split: whether the backward is split.
        groups: micro-batches that pass a worker's stages together.
    """
    waits = (0.0, 0.5, 1.0) if split else (0.0,)
    return [
        Options(warmups=warmup, wait=wait, eager=eager, group=group)
        for warmup, wait, eager, group in product(dict.fromkeys(warmups), waits, (False, True), groups)
    ]


def _screened(works: Sequence[Work], options: Sequence[Sequence[Options]]) -> list[tuple[Work, Options]]:
    """Pairs of a work and its options, best first on a short step."""
    short = [
        replace(work, micro_batches=tuple(min(count, work.placement.p) for count in work.micro_batches))
        for work in works
    ]
    scores: list[tuple[float, int, int]] = []
    placed = 0
    for turn in range(max(len(own) for own in options)):
        for at, own in enumerate(options):
            if turn >= len(own) or (turn >= 2 and placed > SCREENED_TASKS):
                continue
            scores.append((list_schedule(short[at], own[turn].rule()).makespan_s, at, turn))
            placed += short[at].tasks
    return [(works[at], options[at][turn]) for _, at, turn in sorted(scores)]


def _by_latest_start(order: Order) -> Order:
    """List scheduling with the latest starts of an order as ranks."""
    latest = latest_starts(order, [order.makespan_s] * order.work.placement.p)
    rule = order.rule.removesuffix(IMPROVED) + IMPROVED
    return ordered_by(order.work, GreedyByRank(lambda *task: latest[task]), rule)


def latest_starts(order: Order, ends_s: Sequence[float]) -> dict[tuple[Kind, int, int], float]:
    """How late each task could start in this order, by kind, stage and micro-batch.

    Args:
        order: the order of all workers.
        ends_s: the ends in seconds by when each worker has to end.
    """
    work = order.work
    placement = work.placement
    following, preceding = placement.following.tolist(), placement.preceding.tolist()
    latency = [0.0] * placement.stages if work.latency_s is None else list(work.latency_s)
    seconds = {
        Kind.F: list(work.forward_s),
        Kind.I: list(work.gradient_s),
        Kind.B: list(work.gradient_s),
        Kind.W: list(work.weight_s or ()),
    }
    gradient = Kind.B if work.weight_s is None else Kind.I
    latest: dict[tuple[Kind, int, int], float] = {}
    left = [list(tasks) for tasks in order.lists]
    free = list(ends_s)
    ready = list(range(placement.p))
    waiting: dict[tuple[Kind, int, int], int] = {}
    while ready:
        worker = ready.pop()
        own = left[worker]
        while own:
            kind, stage, unit, _ = own[-1]
            end = free[worker]
            if kind is Kind.F:
                after = following[stage]
                user, lag = ((gradient, stage, unit), 0.0) if after < 0 else ((Kind.F, after, unit), latency[stage])
            elif kind is Kind.W or preceding[stage] < 0:
                user, lag = None, 0.0
            else:
                user, lag = (gradient, preceding[stage], unit), latency[preceding[stage]]
            if user is not None:
                if user not in latest:
                    waiting[user] = worker
                    break
                end = min(end, latest[user] - lag)
            own.pop()
            free[worker] = latest[kind, stage, unit] = end - seconds[kind][stage]
            woken = waiting.pop((kind, stage, unit), None)
            if woken is not None and woken != worker:
                ready.append(woken)
    return latest


def _words(choice: Options) -> str:
    """The options as users read them."""
    together = "" if choice.group is None else f", groups of {choice.group}"
    first = ", forwards first" if choice.eager else ""
    waits = f", waits {choice.wait:g} of a weight gradient" if choice.wait else ""
    return f"warm-up {choice.warmups[0]}..{choice.warmups[-1]}{together}{first}{waits}"
