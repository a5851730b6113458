"""Stages that are paged from host memory: where a model is cut so that they fit and none holds up the others.

Source: Feng et al., "Mobius: Fine Tuning Large-Scale Models on Commodity GPU Servers", ASPLOS 2023. Its integer program
places cuts under a memory limit against the stalls of uploads; its exact terms are not published in full. This is a
reconstruction with an objective that dynamic programming solves exactly, so that no solver is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.errors import InfeasibleError, InputError, Problem
from meshwright.shapes import Float, Int

ROUNDING = 1e-12
"""Share by which sums of bytes may miss the room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStages:
    """Consecutive layers as stages, v of them on each worker in turn."""

    bounds: tuple[int, ...]
    """First layer of each stage, and the number of layers."""
    v: int
    """Stages per worker."""
    wave_s: float
    """Of the stage that takes longest: the forwards of its micro-batches, or its upload."""
    forward_s: float
    """Of a step whose stages all take as long: ((v - 1)*max(m, p) + m + p - 1) * wave / m, as breadth-first runs."""


def paged_stages(
    forward_s: Float[np.ndarray, " layers"],
    weight_bytes: Float[np.ndarray, " layers"],
    p: int,
    m: int,
    *,
    room_bytes: float,
    link_bytes_per_s: float,
) -> PagedStages:
    """Cut layers into p*v stages so that the longest wave is short, for the v whose forward pass is shortest.

    A stage runs all m micro-batches while the next one of its worker is uploaded, so both lie on the device:

        wave of a stage = max(m * forward, bytes / bandwidth),  2 * bytes <= room

    For each number of stages the longest wave is the least possible, by best(k, n) = min over i of
    max(best(k - 1, i), wave(i, n)); of equals the earliest cut. Backwards visit the same stages: the cuts serve both.

    Args:
        forward_s: of one micro-batch, by layer.
        weight_bytes: by layer.
        p: workers.
        m: micro-batches.
        room_bytes: for weights on each device, besides activations.
        link_bytes_per_s: what the host gives one device while its neighbours upload too.

    Raises:
        InputError: fewer layers than two stages per worker, or values that make no sense.
        InfeasibleError: no cut leaves room for a stage and the next one.
    """
    layers = len(forward_s)
    _check(np.asarray(forward_s), np.asarray(weight_bytes), p, m, room_bytes, link_bytes_per_s)
    seconds, size = (np.concatenate([[0.0], np.cumsum(column)]) for column in (forward_s, weight_bytes))
    stage_bytes = size[None, :] - size[:, None]
    wave_s = np.maximum(m * (seconds[None, :] - seconds[:, None]), stage_bytes / link_bytes_per_s)
    fits = np.triu(2 * stage_bytes <= room_bytes * (1 + ROUNDING), 1)
    wave_s = np.where(fits, wave_s, np.inf)
    best_s = wave_s[0]
    cuts = [np.zeros(layers + 1, int)]
    found: PagedStages | None = None
    for stages in range(2, layers // p * p + 1):
        through_s = np.maximum(best_s[:, None], wave_s)
        cuts.append(np.argmin(through_s, axis=0))
        best_s = through_s[cuts[-1], np.arange(layers + 1)]
        v, longest_s = stages // p, float(best_s[layers])
        if stages % p or v < 2 or not np.isfinite(longest_s):
            continue
        forward = ((v - 1) * max(m, p) + m + p - 1) * longest_s / m
        if found is None or forward < found.forward_s:
            found = PagedStages(bounds=_bounds(cuts, layers), v=v, wave_s=longest_s, forward_s=forward)
    if found is None:
        largest = float(np.max(weight_bytes))
        what = f"no cut of {layers} layers into stages for {p} workers fits room_bytes = {room_bytes:g}"
        why = "a device holds the stage that runs and the next one"
        fix = f"{2 * largest:g} bytes or more, if there are layers enough for stages of one layer"
        raise InfeasibleError(Problem(what=what, why=why, fix=fix, field="room_bytes"))
    return found


def _bounds(cuts: list[Int[np.ndarray, " layers_plus_1"]], layers: int) -> tuple[int, ...]:
    bounds = [layers]
    for cut in reversed(cuts):
        bounds.append(int(cut[bounds[-1]]))
    return tuple(reversed(bounds))


def _check(
    forward_s: Float[np.ndarray, " layers"],
    weight_bytes: Float[np.ndarray, " layers"],
    p: int,
    m: int,
    room_bytes: float,
    link_bytes_per_s: float,
) -> None:
    """Raise with everything that is wrong."""
    problems = []
    for name, column in (("forward_s", forward_s), ("weight_bytes", weight_bytes)):
        if not (np.isfinite(column) & (column >= 0)).all():
            problems.append(Problem(what=f"{name} = {column.tolist()}", why="finite numbers, 0 or more", field=name))
    for name, given in (("p", p), ("m", m), ("room_bytes", room_bytes), ("link_bytes_per_s", link_bytes_per_s)):
        if not given > 0:
            problems.append(Problem(what=f"{name} = {given:g}", why="it must be above 0", field=name))
    if p > 0 and len(forward_s) < 2 * p:
        what = f"{len(forward_s)} layers for p = {p}"
        fix = f"{2 * p} layers, or p = {len(forward_s) // 2}" if len(forward_s) > 1 else f"{2 * p} layers"
        problems.append(Problem(what=what, why="a worker pages two stages or more", fix=fix, field="p"))
    if problems:
        raise InputError(problems)
