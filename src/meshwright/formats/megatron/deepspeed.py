"""Options of Megatron-DeepSpeed as those of Megatron-LM: a fork of 2023 whose defaults and some names are its own.

Source: deepspeedai/Megatron-DeepSpeed, megatron/arguments.py and megatron/model of commit 4efb479d, 2025-07.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.megatron.options import Values

FLASH = ("--use-flash-attn", "--use-flash-attn-v1", "--use-flash-attn-builder")
"""Any of its fused attention kernels; the Triton and second ones are renamed to the first."""
PADDED = "--pad-vocab-size-to"
PARTITION = "--pp-partition-method"
_PARTITIONS = {"type:transformer": False, "type:transformer|embedding": True, "type:embedding|transformer": True}
"""How bigscience's fork cuts stages: by layers alone, or with the embedding at both ends as one more each."""
KIND = "--mlp-type"
"""Standard layers of experts, or residual ones."""
EVERY = 2
"""Layers of which one has experts, where --expert-interval does not say it."""


def as_megatron(values: Values) -> list[str]:
    """Say in Megatron-LM's options what the fork's own defaults mean.

    Args:
        values: options of a script that starts DeepSpeed; changed in place.

    Returns:
        What was understood.
    """
    given, notes = values.given, list[str]()

    def take(flag: str, value: str = "", *, instead: bool = False) -> None:
        if instead or flag not in given:
            given[flag] = (value,) if value else ()

    held = next(iter(given.get("--position-embedding-type", ())), "")
    if held in _POSITIONS:
        take("--position-embedding-type", _POSITIONS[held], instead=True)
        notes.append(f"--position-embedding-type {held} is of bigscience's fork, priced as {_POSITIONS[held]}")
    if not any(flag in given for flag in FLASH):
        take("--attention-backend", "unfused")
        notes.append("attention is not fused: no --use-flash-attn is given")
    if given.get("--recompute-granularity") == ("full",):
        take("--recompute-num-layers", "1")  # its parser's default, where Megatron-LM's has none
    notes += _cuts(values, take)
    padded = values.foreign.get(PADDED, ())
    if len(padded) == 1 and padded[0].isdecimal():
        values.asked.add(PADDED)
        take("--vocab-size", padded[0])
        notes.append(f"the vocabulary has {padded[0]} tokens with padding: {PADDED}")
    for flag in values.foreign.keys() & {*_CURRICULA}:
        values.asked.add(flag)
        notes.append(f"steps begin with shorter or easier samples, those of full length are planned: {flag}")
    return [*notes, *_layers_of_experts(values, take)]


def _cuts(values: Values, take: Callable[..., None]) -> Iterator[str]:
    """How stages are cut."""
    method = " ".join(values.foreign.get(PARTITION, ())).lower()
    if method in _PARTITIONS:
        values.asked.add(PARTITION)
    if _PARTITIONS.get(method):
        take("--account-for-embedding-in-pipeline-split")
        take("--account-for-loss-in-pipeline-split")
        yield f"embedding and head count as a layer each when stages are cut: {PARTITION}"


def _layers_of_experts(values: Values, take: Callable[..., None]) -> Iterator[str]:
    """Which layers have experts, and what is beside them."""
    experts = values.given.get("--num-experts", ())
    if experts == ("1",):
        del values.given["--num-experts"]
        yield "no layer has experts: --num-experts 1"
    elif experts:
        _experts(values, take)
        yield f"one layer of {_interval(values)} has experts: --expert-interval"
        if _beside(values):
            values.asked.add(KIND)
            yield f"layers of experts have an MLP of their own beside them: {KIND} residual"


def pyramid(values: Values) -> dict[str, Any]:
    """What the fork says of experts beyond one number of them: a number for each layer that has some, an MLP beside.

    Args:
        values: options of a script that starts DeepSpeed.

    Source: Rajbhandari et al. 2022 (DeepSpeed-MoE, arXiv 2201.05596), section 4.1; deepspeed/moe/layer.py of 0.19.8.
    """
    counts = [int(text) for text in values.given.get("--num-experts", ()) if text.isdecimal()]
    found: dict[str, Any] = {"residual": True} if _beside(values) else {}
    whole = len(counts) == _sparse(values) and all(counts)  # what is wrong is said by `wrong_of`
    return found | ({"experts": counts} if whole and len({*counts}) > 1 else {})


def _sparse(values: Values) -> int:
    """Layers that have experts."""
    return values.whole("--num-layers") // _interval(values)


def _beside(values: Values) -> bool:
    return [text.lower() for text in values.foreign.get(KIND, ())] == ["residual"]


_POSITIONS = {"rotary": "rope", "alibi": "none", "absolute": "learned_absolute"}
"""Positions as bigscience-workshop/Megatron-DeepSpeed calls them (megatron/enums.py, 2022); ALiBi adds a bias alone."""


def balanced(layers: int, stages: int) -> list[int]:
    """Layers of each stage as DeepSpeed cuts a pipeline of equal layers: the first stages have one more.

    Source: deepspeed 0.19.8, runtime/utils.py, partition_balanced.
    """
    share, rest = divmod(layers, stages)
    return [share + (stage < rest) for stage in range(stages)]


def wrong_of(values: Values) -> list[Problem]:
    """What is wrong in the values of options; positions and warm-up as a fraction are right in forks."""
    right = {"--warmup"} | ({"--num-experts"} if len(values.given.get("--num-experts", ())) > 1 else set())
    if next(iter(values.given.get("--position-embedding-type", ())), "") in _POSITIONS:
        right.add("--position-embedding-type")
    found = [problem for problem in values.problems if problem.field not in right]
    experts, layers, sparse = values.given.get("--num-experts", ()), values.whole("--num-layers"), _sparse(values)
    wrong = [text for text in experts if not (text.isdecimal() and int(text))]
    if len(experts) > 1 and (wrong or (layers and len(experts) != sparse)):
        why = f"one number from 1 for each of the {sparse} layers that have experts, or one for all"
        what, fix = f"--num-experts is {' '.join(experts)}"[:120], f"give {sparse} numbers, or one"
        found.append(Problem(what=what, why=why, fix=fix, field="--num-experts"))

    for flag, (why, plain) in _REFUSED.items():
        said = values.foreign.get(flag)
        if said is None or (said and said[0].lower() in plain):
            continue
        values.asked.add(flag)
        shown, fix = f"{flag} {' '.join(said)}".strip()[:80], "leave it out to check the rest"
        found.append(Problem(what=f"{shown} is not read", why=why, fix=fix, field=flag))
    return found


_REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    KIND: ("a layer of experts is standard, or residual with an MLP beside them", ("standard", "residual")),
    "--random-ltd": ("layers leave out tokens, fewer of them as it trains", ()),
    "--moe-train-capacity-factor": ("experts compute up to a capacity beyond their tokens", ("1", "1.0")),
    "--remote-device": ("weights are kept elsewhere than on the device", ("none",)),
    "--memory-centric-tiled-linear": ("weights are gathered in tiles", ()),
}
"""Options that change the model, its memory or its steps, each with values that change nothing."""
_CURRICULA = ("--curriculum-learning", "--curriculum-learning-legacy", "--data-efficiency-curriculum-learning")


def _experts(values: Values, take: object) -> None:
    assert callable(take)
    every, layers = _interval(values), values.whole("--num-layers", 1)
    pattern = ([0] * (every - 1) + [1]) * (layers // every) + [0] * (layers % every)
    take("--moe-layer-freq", str(pattern).replace(" ", ""), instead=True)
    take("--moe-router-topk", "1")
    take("--moe-token-dispatcher-type", "alltoall")
    alone = "--enable-expert-tensor-parallelism" not in values.given
    take("--expert-tensor-parallel-size", "1" if alone else values.text("--tensor-model-parallel-size", "1"))


def _interval(values: Values) -> int:
    return max(1, values.whole("--expert-interval", EVERY))
