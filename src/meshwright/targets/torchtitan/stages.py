"""Layers of each pipeline stage as torchtitan deals them out where a file does not name the modules of stages.

Embedding and head count as layers, by default one each, so that the first and the last stage get fewer.

Sources: torchtitan/distributed/pipeline_parallel.py of torchtitan 0.2.0 (2025-10) to commit b5bcd76c (2026-08);
torchtitan/distributed/pipeline.py of 0.1 (2025-05); torchtitan/parallelisms/pipelining_utils.py of 0.0.2 (2024-10).
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product

from meshwright.errors import InputError
from meshwright.formats.launch_file import Dealt
from meshwright.targets import pytorch_pipeline
from meshwright.targets.key_texts import Keys
from meshwright.targets.keys import KeyReader
from meshwright.targets.torchtitan.earlier import IN_2024

_P = "parallelism."
SPLIT = f"{_P}pipeline_parallel_split_points"
MODULES = f"{_P}module_fqns_per_model_part"
PER_STAGE = f"{_P}pipeline_parallel_layers_per_stage"
FIRST = f"{_P}pipeline_parallel_first_stage_less_layers"
LAST = f"{_P}pipeline_parallel_last_stage_less_layers"
_HEAVIEST = 8
"""Layers that embedding or head may count as where counts are looked for."""


def dealt(layers: int, *, stages: int, first: int = 1, last: int = 1) -> tuple[int, ...]:
    """Layers of each virtual stage: (layers + first + last) / stages, the rest one each to the first ones.

    Args:
        layers: the number of layers of the model.
        stages: virtual stages of the pipeline.
        first: layers that the embedding counts as.
        last: layers that norm and head count as.

    Raises:
        InputError: torchtitan refuses to deal them so.
    """
    each, more = divmod(layers + first + last, stages)
    if stages > 1 and each < max(1, first, last):
        why = (
            f"each of {stages} stages gets {each} of {layers} layers + {first} for the embedding + {last} for the head"
        )
        raise InputError(
            what=f"{layers} layers are dealt to {stages} stages",
            why=f"{why}: torchtitan wants at least {max(1, first, last)}",
            fix="use fewer stages, or name each stage's modules in module_fqns_per_model_part",
            field=f"{_P}pipeline_parallel_degree",
        )
    if stages == 1:
        return (layers,)
    counts = [each + (number < more) for number in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def dealt_in_2024(layers: int, *, stages: int) -> tuple[int, ...]:
    """Layers of stages as dealt before embedding and head counted (2024-10 to 2025-04): the rest goes behind the first.

    Args:
        layers: the number of layers of the model.
        stages: virtual stages of the pipeline.

    Raises:
        InputError: there are fewer layers than stages.
    """
    each, more = divmod(layers, stages)
    if not each:
        why = "each stage has at least one"
        raise InputError(what=f"{layers} layers are dealt to {stages} stages", why=why, fix="use fewer stages")
    return tuple(each + (0 < number <= more) for number in range(stages))


def _count(layers: int, per_stage: int, first: int, last: int) -> int:
    """Virtual stages where a file says how many layers one holds: (layers + first + last) / per stage, rounded up."""
    return math.ceil((layers + first + last) / per_stage)


def _split_at(points: object) -> list[int] | None:
    """Layers at which stages begin, from `layers.4,layers.8` or a list of such names; None where they are none."""
    names = points.split(",") if isinstance(points, str) else points
    if not isinstance(names, list):
        return None
    starts = [str(name).strip().removeprefix("layers.") for name in names]
    numbers = [int(start) for start in starts if start.isdecimal()]
    return numbers if len(numbers) == len(starts) and numbers == sorted(set(numbers)) else None


def _split(layers: int, *, starts: list[int]) -> tuple[int, ...]:
    if starts[-1] >= layers:
        why = f"the model has layers 0 to {layers - 1}"
        raise InputError(what=f"a stage begins at layer {starts[-1]}", why=why, fix="use one of these", field=SPLIT)
    return tuple(end - start for start, end in zip([0, *starts], [*starts, layers], strict=True))


def stages_stated(reader: KeyReader, pp: int, layers: int | None, *, single: bool) -> tuple[int, Dealt | None]:
    """How many virtual stages a configuration makes, and how layers are dealt to them; None where that is not known.

    Args:
        reader: the reader of the configuration.
        pp: ranks of the pipeline.
        layers: the number of layers of the model, where the configuration says them.
        single: whether the schedule takes one stage a rank.
    """
    named, points = reader.get(MODULES), reader.get(SPLIT)
    if isinstance(named, list) and named:
        counts = pytorch_pipeline.layers_of_modules(named, "layers")
        return len(counts), lambda _: counts
    usual = pp * (1 if single else 2)
    if points not in (None, [], ""):
        starts = _split_at(points)
        if starts is None:
            reader.refuse(SPLIT, points, "stages begin at layers in order, as layers.4,layers.8 says them")
            return usual, None
        return len(starts) + 1, partial(_split, starts=starts)
    first, last, each = reader.number(FIRST, 1), reader.number(LAST, 1), reader.get(PER_STAGE)
    if each is None and reader.get(IN_2024):
        return usual, partial(dealt_in_2024, stages=usual)
    if each is not None and (layers is None or reader.degree(PER_STAGE) != each):
        why = "how many stages that makes follows from the layers of a model that is not known here"
        reader.refuse(PER_STAGE, each, why, "name each stage's modules in module_fqns_per_model_part")
        return usual, None
    count = usual if each is None or layers is None else _count(layers, each, first, last)
    return count, partial(dealt, stages=count, first=first, last=last)


def by_weights(named: object, ranks: int) -> Keys:
    """Keys that deal layers as named modules of stages do, for TOML; nothing where no weights of the ends do.

    Args:
        named: modules of each virtual stage, in order.
        ranks: the number of ranks of the pipeline.
    """
    if not isinstance(named, list) or not named:
        return {}
    counts = pytorch_pipeline.layers_of_modules(named, "layers")
    layers, stages = sum(counts), len(counts)
    for first, last in sorted(product(range(_HEAVIEST), repeat=2), key=lambda weights: weights != (1, 1)):
        each = math.ceil((layers + first + last) / stages)
        try:
            same = dealt(layers, stages=stages, first=first, last=last) == counts
        except InputError:
            continue
        usual = stages in (ranks, 2 * ranks)
        if same and (usual or _count(layers, each, first, last) == stages):
            return {FIRST: first, LAST: last, **({} if usual else {PER_STAGE: each})}
    return {}
