"""Lower bounds that hold for every order of given work, whatever a schedule decides.

`bounds` follows the paths of one schedule; here nothing but the chain, the workers and their memory is fixed, so that
the distance to a bound says how much any scheduler could still gain.
"""

from __future__ import annotations

import numpy as np

from meshwright.schedules.list_scheduling import Work
from meshwright.shapes import Float


def order_lower_bound_s(
    work: Work, busy_s: Float[np.ndarray, " workers"] | None = None, *, span: bool = False
) -> float:
    """Seconds that any order takes at least, or that its longest span takes.

    The largest, over the workers, of
    * head + all its tasks + tail: head is the shortest way down to one of its stages; tail the shortest way back from
      one, none where the last task may be a weight gradient;
    * head + forwards and input gradients + the way back of the last input gradient and one weight gradient;
    * head + sum over its stages of bytes * lifetime * micro-batches / room + tail: an activation lives at least while
      its micro-batch runs to the end of the chain and back, what the input gradient does not free until its weight
      gradient has run, and no more than the room lives at a time;
    and the time of one micro-batch alone. A span has no head and no tail, and of one micro-batch what it lasts from its
    forward to its weight gradient on the worker.

    Args:
        work: what is to be scheduled.
        busy_s: seconds per step that each worker spends on tasks that `work` does not name, recomputation say.
        span: whether from the first to the last task of a worker, instead of from the start of the step.
    """
    placement = work.placement
    stages, p = placement.stages, placement.p
    forward, gradient = np.asarray(work.forward_s, float), np.asarray(work.gradient_s, float)
    weight = np.zeros(stages) if work.weight_s is None else np.asarray(work.weight_s, float)
    latency = np.zeros(stages) if work.latency_s is None else np.asarray(work.latency_s, float)
    latency = np.where(placement.following < 0, 0.0, latency)
    units = np.asarray(work.micro_batches)[placement.chain]
    down, back = np.zeros(stages), np.zeros(stages)
    for stage in range(stages):
        before = int(placement.preceding[stage])
        if before >= 0:
            down[stage] = down[before] + forward[before] + latency[before]
            back[stage] = back[before] + gradient[before] + latency[before]
    ends = placement.following < 0
    # Of one micro-batch from the start of its forward on a stage to the end of its gradient there.
    whole_down = (down + forward)[ends][placement.chain]
    whole_back = (back + gradient)[ends][placement.chain]
    lifetime = whole_down - down + whole_back - back

    if span:
        alone = float((lifetime + weight).max())
        down, back = np.zeros(stages), np.zeros(stages)
    else:
        alone = float((whole_down + whole_back + weight[placement.preceding < 0][placement.chain]).max())
    kept = np.ones(stages) if work.released_by_input is None else 1 - np.asarray(work.released_by_input)
    bounds = [alone]
    for worker in range(p):
        own = placement.worker == worker
        head, tail = down[own].min(), back[own].min()
        first_weight = weight[placement.preceding < 0].min() if work.weight_s is not None and not span else 0.0
        more = 0.0 if busy_s is None else float(busy_s[worker])
        both = float((units * (forward + gradient))[own].sum())
        if work.weight_s is None:
            bounds.append(head + both + more + tail)
        else:
            bounds.append(head + both + more + float((units * weight)[own].sum()))
            bounds.append(head + both + tail + first_weight)
            tail = 0.0
        if work.stage_bytes is None or work.room_bytes is None:
            continue
        held = np.asarray(work.stage_bytes, float)[own]
        room = float(work.room_bytes[worker])
        # A worker with no room for one micro-batch allows no order at all, which is for others to say.
        if held.sum() > 0 and held.sum() <= room * (1 + 1e-9) < np.inf:
            if own.sum() == 1:
                room = _used(room / float(held[0]), float(kept[own][0]), int(units[own][0])) * float(held[0])
            bounds.append(head + float((held * units[own] * (lifetime + kept * weight)[own]).sum()) / room + tail)
    return (1.0 - 1e-12) * float(max(bounds))


def _used(room: float, kept: float, units: int) -> float:
    """The most of a room that whole activations and the parts kept for weight gradients can fill, in activations.

    Args:
        room: the room of each worker, in activations.
        kept: part of an activation that waits for its weight gradient.
        units: micro-batches.
    """
    most = room * (1 + 1e-9)
    if kept <= 0 or kept >= 1:
        return float(np.floor(most))
    parts = np.arange(min(units, int(most / kept)) + 1)
    return float((np.floor(most - parts * kept) + parts * kept).max())
