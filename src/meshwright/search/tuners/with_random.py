"""Random search: legal points, every one as likely as any other."""

from __future__ import annotations

import random

from meshwright.search.tuners.study import TrialLog


def tune(log: TrialLog, *, algorithm: str, scheduler: str, seed: int, study: str, workers: int) -> None:
    """Make the trials that are left.

    Args:
        log: the study so far; takes the new rows.
        algorithm: uniform.
        scheduler: none.
        seed: the seed of the draws; a study that goes on draws what it would have drawn.
        study: its name.
        workers: one.
    """
    generator = random.Random(seed)
    for _ in log.trials:
        log.space.sample(generator)
    while log.left:
        log.run(log.space.sample(generator))
