"""The shortest circle of waits is one, and no shorter one is among all there are."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules.cycles import shortest_circle


@st.composite
def waits(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """The worker of each node, and producers with the consumers on other workers that wait for them."""
    worker = [number for number in range(draw(st.integers(2, 5))) for _ in range(draw(st.integers(1, 4)))]
    nodes = st.integers(0, len(worker) - 1)
    across = st.tuples(nodes, nodes).filter(lambda pair: worker[pair[0]] != worker[pair[1]])
    return worker, draw(st.lists(across, min_size=1, max_size=12))


def shortest(worker: list[int], edges: list[tuple[int, int]]) -> int:
    """Waits of the shortest circle, by looking along all ways from each wait; 0 without any."""
    behind = [
        [there for there, (needed, _) in enumerate(edges) if worker[needed] == worker[waiting] and needed >= waiting]
        for _, waiting in edges
    ]
    found = []
    for start in range(len(edges)):
        far, line = {start: 0}, deque([start])
        while line:
            one = line.popleft()
            if start in behind[one]:
                found.append(far[one] + 1)
                break
            for other in behind[one]:
                if other not in far:
                    far[other] = far[one] + 1
                    line.append(other)
    return min(found, default=0)


@given(given=waits())
def test_the_circle_found_is_one_and_the_shortest(given: tuple[list[int], list[tuple[int, int]]]) -> None:
    worker, edges = given
    producer, consumer = (np.array(side) for side in zip(*edges, strict=True))
    circle = shortest_circle(producer, consumer, np.array(worker))
    assert len(circle) == shortest(worker, edges)
    for one, following in zip(circle, [*circle[1:], *circle[:1]], strict=True):
        assert worker[consumer[one]] == worker[producer[following]]
        assert producer[following] >= consumer[one]
