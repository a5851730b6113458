"""Sequences of each pipeline, so that all together train exactly the batch, and the micro-batches they come in."""

from __future__ import annotations

import math

from meshwright.planning.compose.sources.profiles.pipeline_set import ShapeSet
from meshwright.planning.compose.sources.profiles.set_price import SetPricer, SetTime


def shares(one_set: ShapeSet, time: SetTime, pricer: SetPricer) -> list[list[tuple[int, ...]]]:
    """Micro-batches of each pipeline of each part, by their sequences.

    Args:
        one_set: pipelines.
        time: most sequences each pipeline has time for.
        pricer: the pricer of the job.

    Returns:
        Micro-batches by part and pipeline; what the pipelines could do beyond the batch is taken from all of them
        evenly, in whole smallest micro-batches. What these do not divide stays part-full.
    """
    tables = [pricer.rests(part.shape) for part in one_set.parts]
    done = [[most] * part.pipelines for part, most in zip(one_set.parts, time.sequences, strict=True)]
    surplus = sum(map(sum, done)) - pricer.global_batch
    # Those with small micro-batches last: they can give what is left over.
    turns = [(part, turn) for part, counts in enumerate(done) for turn in range(len(counts))]
    turns.sort(key=lambda one: -tables[one[0]].smallest)
    for number, (part, turn) in enumerate(turns):
        step = tables[part].smallest
        even = math.ceil(surplus / (len(turns) - number) / step) * step
        taken = min(even, min(surplus, done[part][turn]) // step * step)
        done[part][turn] -= taken
        surplus -= taken
    return [[table.sizes(count) for count in counts] for table, counts in zip(tables, done, strict=True)]
