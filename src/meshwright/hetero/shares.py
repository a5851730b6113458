"""Sequences of each pipeline, so that all together train exactly the batch, and the micro-batches they come in."""

from __future__ import annotations

from meshwright.hetero.composition import Composition
from meshwright.hetero.composition_price import CompositionPricer, CompositionTime


def shares(composition: Composition, time: CompositionTime, pricer: CompositionPricer) -> list[list[tuple[int, ...]]]:
    """Micro-batches of each pipeline of each part, by their sequences.

    Args:
        composition: pipelines.
        time: most sequences each pipeline has time for.
        pricer: of the job.

    Returns:
        by part and pipeline; what the pipelines could do beyond the batch is taken from each in turn, whole smallest
        micro-batches first. What smallest micro-batches do not divide stays part-full.
    """
    tables = [pricer.rests(part.shape) for part in composition.parts]
    done = [[most] * part.pipelines for part, most in zip(composition.parts, time.sequences, strict=True)]
    surplus = sum(map(sum, done)) - pricer.global_batch
    turns = [(len(counts) - turn, index, turn) for index, counts in enumerate(done) for turn in range(len(counts))]
    for _, index, turn in sorted(turns):
        step = tables[index].smallest
        taken = min(surplus, done[index][turn]) // step * step
        even = -(-surplus // (len(turns) * step)) * step
        done[index][turn] -= min(taken, even)
        surplus -= min(taken, even)
    for _, index, turn in turns:
        step = tables[index].smallest
        taken = min(surplus, done[index][turn]) // step * step
        done[index][turn] -= taken
        surplus -= taken
    return [[table.sizes(count) for count in counts] for table, counts in zip(tables, done, strict=True)]
