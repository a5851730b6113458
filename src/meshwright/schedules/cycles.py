"""Orders of events that wait for each other: how deep each one lies, and the shortest circle if they never end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from meshwright.shapes import Int

EDGES_TRIED = 2048
"""Most waits from which a shorter circle is looked for; with more of them the first ones are tried."""


def longest_paths(bounds: list[int], columns: list[list[int]]) -> Int[np.ndarray, " nodes"]:
    """Level of every node, 0 for nodes in or behind a cycle.

    Every worker runs on until it waits for another one, which wakes it: each node is looked at about twice, so that
    plain integers are faster here than an array operation per level.

    Args:
        bounds: first node of every worker, and the number of nodes.
        columns: per node one other worker's node that it waits for, -1 for none; as many columns as a node may have.
    """
    level = [0] * bounds[-1]
    position = bounds[:-1]
    waiting: dict[int, list[int]] = {}
    ready = [worker for worker, (low, high) in enumerate(pairwise(bounds)) if low < high]
    while ready:
        worker = ready.pop()
        node, end = position[worker], bounds[worker + 1]
        now = level[node - 1] if node > bounds[worker] else 0
        while node < end:
            for column in columns:
                needed = column[node]
                if needed >= 0:
                    reached = level[needed]
                    if not reached:
                        waiting.setdefault(needed, []).append(worker)
                        break
                    if reached > now:
                        now = reached
            else:
                now += 1
                level[node] = now
                if node in waiting:
                    ready.extend(waiting.pop(node))
                node += 1
                continue
            break
        position[worker] = node
    return np.asarray(level)


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
        worker: of each node; nodes of a worker are numbered in its order.
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
