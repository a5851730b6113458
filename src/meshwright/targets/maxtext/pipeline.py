"""Stages of MaxText's pipeline: equal ones, repeated until all layers are placed.

Source: validation of pipelines in src/maxtext/configs/types.py of maxtext 0.2.5 (2026-11).
"""

from __future__ import annotations

from functools import partial

from meshwright.errors import InputError
from meshwright.formats.launch_file import Dealt
from meshwright.targets.keys import KeyReader

_REPEATS, _EACH, _PIPED = "num_pipeline_repeats", "num_layers_per_pipeline_stage", "pipeline_parallel_layers"


def read_stages(reader: KeyReader, pp: int, layers: int | None) -> tuple[int, Dealt | None]:
    """Repeats of the pipeline, and the layers of each virtual stage from those of the model.

    Args:
        reader: the reader of the configuration.
        pp: stages of the mesh.
        layers: the number of layers of the model, None where they are not known.
    """
    each, repeats = reader.degree(_EACH), reader.get(_REPEATS, -1)
    if reader.get(_PIPED, -1) not in (-1, layers):
        why = "the other layers run on all stages as data ranks, which no plan says"
        reader.refuse(_PIPED, reader.get(_PIPED), why, "use -1, so that all layers are piped")
        return 1, None
    if repeats == -1 and layers is None:
        why = "it is layers / (stages x layers of one), of a model whose layers are not known here"
        reader.refuse(_REPEATS, repeats, why, "write the number")
        return 1, None
    if repeats == -1 and layers is not None:
        repeats = max(1, layers // (pp * each))
    elif type(repeats) is not int or repeats < 1:
        reader.refuse(_REPEATS, repeats, "must be a whole number of at least 1, or -1 for what the layers need")
        return 1, None
    return repeats, partial(_equal, pp=pp, repeats=repeats, each=each)


def _equal(layers: int, *, pp: int, repeats: int, each: int) -> tuple[int, ...]:
    """Layers of each virtual stage: as many on all.

    Raises:
        InputError: they are not all of the model's.
    """
    if pp * repeats * each != layers:
        what = f"{_EACH} is {each}"
        why = f"{pp} stages x {repeats} repeats x {each} layers make {pp * repeats * each} of {layers}"
        raise InputError(what=what, why=why, fix="use numbers whose product is that of all layers", field=_EACH)
    return (each,) * (pp * repeats)
