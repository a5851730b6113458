"""Options of MindSpeed-LLM as those of Megatron-LM, whose fork for Ascend it is.

Source: mindspeed_llm/training/arguments.py, features_manager and core/transformer of MindSpeed-LLM (2025),
https://gitcode.com/Ascend/MindSpeed-LLM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.megatron.layout import write_layout
from meshwright.formats.megatron.options import NO_SUCH_OPTION, Values
from meshwright.units import whole_number

DUALPIPE = "--schedules-method"
_DENSE, _SHARED, _OVER_TENSORS, _EMPTY = (
    "--first-k-dense-replace",
    "--n-shared-experts",
    "--moe-tp-extend-ep",
    "--noop-layers",
)
_PAIRED, _STAGES = "--moe-fb-overlap", "--num-layer-list"
_RANK, _MODULES = "--lora-r", "--lora-target-modules"
_MOST_LAYERS = 10_000


def as_megatron(values: Values) -> list[str]:
    """Say in Megatron-LM's options what MindSpeed's own mean together.

    Args:
        values: options of a script that starts it; changed in place.

    Returns:
        What was understood.
    """
    given, notes = values.given, []
    layers = values.whole("--num-layers")
    if _DENSE in given and 0 < layers < _MOST_LAYERS:
        # Layer i has experts where it is past the dense ones and every f-th, counting from 0; -1 is of all.
        first, every = values.whole(_DENSE), values.whole("--moe-layer-freq", 1) or 1
        held = [int(at >= first and at % every == 0) for at in range(layers)]
        given["--moe-layer-freq"] = (str(held).replace(" ", ""),)
    if _SHARED in given:
        width = values.whole("--moe-ffn-hidden-size", values.whole("--ffn-hidden-size"))
        given["--moe-shared-expert-intermediate-size"] = (str(values.whole(_SHARED) * width),)
    if _OVER_TENSORS in given:
        tensors, experts = (values.whole(f"--{name}-model-parallel-size", 1) for name in ("tensor", "expert"))
        for flag, meant in (("--expert-model-parallel-size", tensors * experts), ("--expert-tensor-parallel-size", 1)):
            values.written[flag] = given.get(flag)
            given[flag] = (str(meant),)
        notes.append(f"experts are spread over tensor ranks too, {tensors} x {experts}: {_OVER_TENSORS}")
    if _PAIRED in given and given.get("--recompute-granularity") == ("full",):
        notes.append(f"exchanges of layers that are recomputed are priced without what runs beside them: {_PAIRED}")
    elif _PAIRED in given:
        given["--overlap-moe-expert-parallel-comm"] = ()
    if _MODULES in values.foreign:
        given[_MODULES] = values.foreign[_MODULES]
        values.asked.add(_MODULES)
    if _EMPTY in given:
        notes += _without_empty(values, layers)
    stages = [whole_number(part.strip()) or 0 for part in values.text(_STAGES).split(",")]
    if sum(stages) == layers and len(stages) == values.whole("--pipeline-model-parallel-size", 1):
        given["--pipeline-model-parallel-layout"] = (write_layout(stages, values.whole("--mtp-num-layers")),)
    if values.whole("--context-parallel-size", 1) == 1 and _MASKS[1] in values.foreign:
        notes.append(f"{_MASKS[1]} has no effect without context parallelism")
    elif values.whole("--context-parallel-size", 1) > 1 and "--cp-comm-type" not in given:
        notes.append(
            "context parallelism is the ring, MindSpeed's default since 2025; until then it was Ulysses, which --set "
            "cp-comm-type=a2a prices"
        )
    return notes


def _without_empty(values: Values, layers: int) -> list[str]:
    """The model and its stages without layers that pass on what they get, by which stages are made even."""
    text = values.text(_EMPTY)
    empty = {number for part in text.split(",") if (number := whole_number(part.strip())) is not None}
    stages = values.whole("--pipeline-model-parallel-size", 1)
    each = values.whole("--num-layers-per-virtual-pipeline-stage") or layers // stages
    chunks = layers // each if each else 0
    chunks = 2 * stages if DUALPIPE in values.given else chunks
    if not 0 < layers < _MOST_LAYERS or not chunks or layers % chunks or max(empty, default=0) >= layers:
        return []
    size = layers // chunks
    left = [sum(at not in empty for at in range(start, start + size)) for start in range(0, layers, size)]
    given = values.given
    if "--moe-layer-freq" in given and given["--moe-layer-freq"][0].startswith("["):
        held = given["--moe-layer-freq"][0].strip("[]").split(",")
        given["--moe-layer-freq"] = (f"[{','.join(one for at, one in enumerate(held) if at not in empty)}]",)
    values.written["--num-layers"] = given.get("--num-layers")
    given["--num-layers"] = (str(sum(left)),)
    given["--pipeline-model-parallel-layout"] = (write_layout(left, values.whole("--mtp-num-layers")),)
    given.pop("--num-layers-per-virtual-pipeline-stage", None)
    return [f"layers {text} are empty: {sum(left)} of {layers} are trained, where {_EMPTY} leaves them"]


def as_its_own(problem: Problem) -> Problem:
    """An option that Megatron-LM does not have, in a script that starts MindSpeed.

    Args:
        problem: the problem that tells of it.
    """
    if problem.why != NO_SUCH_OPTION:
        return problem
    why = "Megatron-LM does not have it, and what MindSpeed makes of it is not known here"
    fix = "; ".join(["leave it out to check the rest", *([problem.fix] if problem.fix else [])])
    return replace(problem, what=f"{problem.field} is not read", why=why, fix=fix)


def adapters(values: Values) -> dict[str, Any] | None:
    """Adapters that MindSpeed trains, as a workload has them; None where all of the model is trained."""
    if not values.has(_RANK):
        return None
    return {"r": values.whole(_RANK, 16), "targets": list(values.foreign.get(_MODULES, ()))}


def wrong_of(values: Values) -> list[Problem]:
    """What part of its options no plan here holds."""
    found = []
    values.asked.add(_MODULES)
    if values.has(_RANK) and _MODULES not in values.foreign:
        why, fix = "which products have adapters is not said", "give it"
        found.append(Problem(what=f"{_MODULES} is not given", why=why, fix=fix, field=_MODULES))
    for flag, why in _NOT_PRICED.items():
        values.asked.add(flag)
        if flag in values.given or flag in values.foreign:
            fix = "leave it out to check the rest"
            found.append(Problem(what=f"{flag} is not read", why=why, fix=fix, field=flag))
    for flag in _MASKS:
        values.asked.add(flag)
        split = flag == _MASKS[0] or values.whole("--context-parallel-size", 1) > 1
        if split and values.foreign.get(flag, ())[:1] == ("general",):
            why, fix = "attention computes what a causal mask leaves out, which is not priced", "use causal"
            found.append(Problem(what=f"{flag} is general", why=why, fix=fix, field=flag))
    return found


_NOT_PRICED = {
    "--swap-optimizer": "states of the optimizer come to the device in parts, which is not priced",
    "--swap-attention": "what attention keeps goes to the host and back, which is not priced",
    "--recompute-activation-function": "activation functions alone are computed again, which is not priced",
    "--moe-zero-memory": "experts keep nothing and compute it again, which is not priced",
    **dict.fromkeys(("--o2-optimizer", "--o2-gradient"), "states in 16 bits of its own form are not priced"),
}
"""Options that move or divide memory in ways of its own, with why they are refused."""
_MASKS = ("--attention-mask-type", "--cp-attention-mask-type")
