"""Events that wait for each other in a circle, so that they never end: the shortest such circle."""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Int

EDGES_TRIED = 2048
"""Most waits from which a shorter circle is looked for; with more of them the first ones are tried."""


def shortest_circle(
    producer: Int[np.ndarray, " edges"],
    consumer: Int[np.ndarray, " edges"],
    worker: Int[np.ndarray, " nodes"],
) -> list[int]:
    """The waits of the smallest circle: each consumer's worker runs, at that node or behind it, the next producer.

    From every wait the workers are searched breadth first; on each only the earliest node reached counts, because from
    there all later ones are reached too. Empty if there is no circle.

    Args:
        producer: node that is waited for, on another worker.
        consumer: node that waits.
        worker: the worker of each node; nodes of a worker are numbered in its order.
    """
    best: list[int] = []
    order = np.argsort(worker[consumer], kind="stable")
    target = worker[consumer[order]]
    starts = np.nonzero(np.append(True, target[1:] != target[:-1]))[0] if len(target) else target
    workers = int(worker.max()) + 1
    far = len(worker)
    for start in range(min(len(producer), EDGES_TRIED)):
        home, goal = worker[producer[start]], producer[start]
        reached = np.full(workers, far)
        reached[worker[consumer[start]]] = consumer[start]
        parents: list[tuple[np.ndarray, np.ndarray]] = []
        # One more wait makes len(parents) + 2 of them, which must be fewer than the best circle has.
        while reached[home] > goal and (not best or len(parents) + 2 < len(best)):
            open_edges = producer[order] >= reached[worker[producer[order]]]
            nearest = np.full(workers, far)
            nearest[target[starts]] = np.minimum.reduceat(np.where(open_edges, consumer[order], far), starts)
            improved = nearest < reached
            if not improved.any():
                break
            parents.append((reached, improved))
            reached = np.minimum(reached, nearest)
        if reached[home] > goal:
            continue
        found = _way_back(start, int(reached[home]), parents, producer, consumer, worker)
        if not best or len(found) < len(best):
            best = found
        if len(best) == 2:
            break
    return best


def _way_back(
    start: int,
    node: int,
    steps: list[tuple[np.ndarray, np.ndarray]],
    producer: Int[np.ndarray, " edges"],
    consumer: Int[np.ndarray, " edges"],
    worker: Int[np.ndarray, " nodes"],
) -> list[int]:
    """The waits from `start` to the node reached last, in order."""
    way: list[int] = []
    for reached, improved in reversed(steps):
        if not improved[worker[node]] or reached[worker[node]] <= node:
            continue
        edge = int(np.nonzero((consumer == node) & (producer >= reached[worker[producer]]))[0][0])
        way.append(edge)
        node = int(producer[edge])
        # The node before on that worker is where the search arrived there.
        node = int(reached[worker[node]])
    return [start, *reversed(way)]
