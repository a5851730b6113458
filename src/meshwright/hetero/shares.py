"""Whole micro-batches of each pipeline, so that all together train exactly the batch where their sizes allow it."""

from __future__ import annotations

from meshwright.hetero.composition import Composition
from meshwright.hetero.composition_price import CompositionTime


def shares(composition: Composition, time: CompositionTime, global_batch: int) -> list[list[int]]:
    """Micro-batches of each pipeline of each part.

    Args:
        composition: pipelines.
        time: most micro-batches each pipeline has time for.
        global_batch: sequences per step.

    Returns:
        by part and pipeline; what the pipelines could do beyond the batch is taken from those with large micro-batches
        first. Where micro-batches do not divide the batch, one of them stays part-full.
    """
    counts = [[most] * part.pipelines for part, most in zip(composition.parts, time.micro_batches, strict=True)]
    sizes = [part.shape.micro_batch for part in composition.parts]
    surplus = sum(size * sum(each) for size, each in zip(sizes, counts, strict=True)) - global_batch
    for part in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        pipelines = counts[part]
        turn = 0
        while surplus >= sizes[part] and any(pipelines):
            if pipelines[turn % len(pipelines)]:
                pipelines[turn % len(pipelines)] -= 1
                surplus -= sizes[part]
            turn += 1
    return counts
