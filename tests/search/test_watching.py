"""A search tells how far it is, and nobody is told outside the block that watches."""

from __future__ import annotations

import meshwright as mw
from meshwright.search.watching import SearchProgress, watched, watcher


def test_a_search_tells_what_is_decided_and_ends_with_its_answer() -> None:
    told: list[SearchProgress] = []
    with watched(told.append):
        answer = mw.plan("llama-3-8b", gpus="16xH100", top=1)
    assert watcher() is None
    assert told
    assert [one.decided for one in told] == sorted(one.decided for one in told)
    assert all(one.decided <= one.space for one in told)
    assert told[-1].best_s is not None
    assert told[-1].best_s >= answer.best.estimate.step_time_s * (1 - 1e-9)
