"""Sequences of unequal lengths into micro-batches of near-equal time: DynaPipe's dynamic program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshwright.shapes import Float, Int

CANDIDATES = 16
"""Longest times of a micro-batch that are tried."""

Seconds = Callable[[Int[np.ndarray, " counts"], int], Float[np.ndarray, " counts"]]
"""Seconds of micro-batches of so many sequences, each padded to a length."""


def grouped(
    lengths: Sequence[int], seconds: Seconds, *, most_tokens: int, fill: float, rounds: float = 1.0
) -> list[tuple[int, int]]:
    """Consecutive sequences as micro-batches, so that a pipeline of them ends first.

    For each candidate T of the longest micro-batch, with t(i, n) the seconds of sequences i..n-1 padded to the longest:

        f(n) = min over i < n of f(i) + t(i, n), where t(i, n) <= T and (n - i) longest <= most tokens
        step = fill T + rounds f(N), least over T

    Exact for the candidates, which are quantiles of all t(i, n).

    Args:
        lengths: ascending.
        seconds: the seconds of a micro-batch in the busiest worker of the pipeline.
        most_tokens: padding included, of a micro-batch; at least the longest sequence.
        fill: how often the longest micro-batch is waited for while the pipeline fills and drains, (p - 1) / v.
        rounds: how often such sequences come in a step.

    Returns:
        (sequences, padded length) of each micro-batch, ascending by length.

    Source: Jiang et al., "DynaPipe: Optimizing Multi-task Training through Dynamic Pipelines", EuroSys 2024.
    """
    known: dict[int, np.ndarray] = {}
    spans = []
    for last, length in enumerate(lengths, 1):
        if length not in known:
            known[length] = seconds(np.arange(1, max(most_tokens // length, 1) + 1), length)
        # By count, so that reversed they stand in the order of their first sequence.
        spans.append(known[length][: min(last, len(known[length]))][::-1])
    every = np.unique(np.concatenate(list(known.values())))
    least = max(float(own[0]) for own in known.values())
    tried = np.unique(np.quantile(every[every >= least], np.linspace(0.0, 1.0, CANDIDATES), method="nearest"))
    best_s, best = np.inf, np.zeros(0, dtype=np.int64)
    for longest_s in tried.tolist():
        if fill * longest_s >= best_s:
            break
        ends, first = _partition(spans, longest_s)
        step_s = fill * longest_s + rounds * ends[-1]
        if step_s < best_s:
            best_s, best = step_s, first
    found, last = [], len(lengths)
    while last:
        begin = int(best[last - 1])
        found.append((last - begin, lengths[last - 1]))
        last = begin
    return found[::-1]


def _partition(
    spans: list[np.ndarray], longest_s: float
) -> tuple[Float[np.ndarray, " ends"], Int[np.ndarray, " lasts"]]:
    """Least seconds of the first n sequences, and where the last micro-batch of each begins."""
    ends = np.zeros(len(spans) + 1)
    first = np.zeros(len(spans), dtype=np.int64)
    for last, own in enumerate(spans):
        low = last + 1 - len(own)
        total = np.where(own <= longest_s, ends[low : last + 1] + own, np.inf)
        place = int(total.argmin())
        ends[last + 1], first[last] = total[place], low + place
    return ends, first
