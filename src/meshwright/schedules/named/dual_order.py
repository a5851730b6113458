"""The eight steps of a worker that DualPipe and DualPipeV share."""

from __future__ import annotations

from collections import deque

from meshwright.schedules.lists import Task
from meshwright.schedules.table import Kind


def dual_step_s(m: int, fill: float, forward_s: float, input_s: float, weight_s: float) -> float | None:
    """m*(f + b) + fill*(f + 2b - 3w), b = i + w, for f = i and w <= f; None elsewhere.

    Args:
        m: micro-batches.
        fill: rounds in which the pipeline fills and drains; 0 where all workers start at once.
        forward_s: f, of a worker.
        input_s: i, of the gradient of its input.
        weight_s: w, of the gradients of its weights.
    """
    backward_s = input_s + weight_s
    if fill > 0 and (forward_s != input_s or weight_s > forward_s):
        return None
    return m * (forward_s + backward_s) + fill * (forward_s + 2 * backward_s - 3 * weight_s)


def dual_order(stages: tuple[int, int], depth: int, workers: int, units: int, overlapped: int) -> list[Task]:
    """Tasks of one worker.

    Args:
        stages: its two virtual stages; the first one is nearer to the start of its chain.
        depth: workers before it on the way in.
        workers: the number of workers on the way in.
        units: micro-batches that pass each of the two stages.
        overlapped: rounds in which both forwards run together with the other stage's backward.
    """
    tasks: list[Task] = []
    done = {(kind, side): 0 for kind in (Kind.F, Kind.B) for side in (0, 1)}
    owed: deque[tuple[int, int]] = deque()
    outer = workers - depth - 1

    def forward(side: int) -> None:
        tasks.append(Task(Kind.F, stages[side], done[Kind.F, side]))
        done[Kind.F, side] += 1

    def backward(side: int, *, split: bool = False, fused: bool = False) -> None:
        unit = done[Kind.B, side]
        tasks.append(Task(Kind.I if split else Kind.B, stages[side], unit, fused))
        done[Kind.B, side] += 1
        if split:
            owed.append((stages[side], unit))

    def weight() -> None:
        tasks.append(Task(Kind.W, *owed.popleft()))

    for _ in range(2 * outer):
        forward(0)
    for _ in range(depth + 1):
        forward(0)
        forward(1)
    for _ in range(outer):
        backward(1, split=True)
        weight()
        forward(1)
    for index in range(overlapped):
        forward(0)
        # The innermost worker has nothing to wait for in its first round, so it runs the two one after the other.
        backward(1, fused=bool(outer or index))
        forward(1)
        backward(0, fused=True)
    for _ in range(outer):
        backward(1)
        forward(1)
        backward(0, fused=True)
    for index in range(2 * (depth + 1)):
        backward(1 - index % 2, split=index > depth)
    for _ in range(outer):
        weight()
        backward(0, split=True)
    for _ in range(depth + 1):
        weight()
    return tasks
