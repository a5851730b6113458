"""What a user wants trained, checked against the model: adapters beside frozen weights, or parts that are frozen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshwright.errors import InputError, Problem, nearest
from meshwright.ops.counts import adapter_parameters, trained_parameters
from meshwright.ops.layers import work_of
from meshwright.ops.modules import (
    Module,
    adapted_modules,
    is_pattern,
    modules_of,
    names_module,
    part_of,
    products_of,
    targeted,
)
from meshwright.planning.question.tuning_text import Adapters, read_freeze, read_lora
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear
from meshwright.specs.tuning import ALL_LINEAR, STORED_BYTES, WHOLES, Frozen, Lora, Tuning
from meshwright.units import percent

SMALL = 0.01
"""Share of a part's matrices below which a module's width does not bound a rank that is asked for all of them."""


def with_tuning(model: ModelSpec, lora: Adapters | None, freeze: Iterable[str]) -> ModelSpec:
    """A model of which what a user asks for is trained; as it is where nothing is asked.

    Args:
        model: the model.
        lora: adapters: `r=16,targets=q_proj,v_proj,base=nf4,dropout=0.05,dora`, a rank, or the record.
        freeze: parts that are not trained: `embedding`, `attention`, `layers.0-15`, `layers.0-15.mlp`.

    Raises:
        InputError: what is asked cannot be read, or the model has no such part.
    """
    patterns = tuple(freeze)
    if lora is None and not patterns:
        return model
    if lora is not None and patterns:
        problem = Problem(
            what="both --lora and --freeze are given",
            why="beside adapters every weight is frozen already",
            fix="leave out --freeze; train=embedding,head in --lora trains parts besides, layers=0-15 limits adapters",
            field="freeze",
        )
        raise InputError(problem)
    if lora is not None:
        tuning = Tuning(lora=read_lora(lora))
        problems = [*_lora_problems(model, tuning.lora, typed=lora is not tuning.lora)] if tuning.lora else []
    else:
        tuning = Tuning(frozen=read_freeze(patterns))
        problems = [*_frozen_problems(model, tuning.frozen)]
    if problems:
        raise InputError(problems)
    tuned = replace(model, tuning=tuning)
    if trained_parameters(tuned) == 0:
        what = f"--freeze {' '.join(patterns)} freezes everything"
        raise InputError(what=what, why="nothing would be trained", fix="leave a part out", field="freeze")
    return tuned


def beside_whole(lora: Adapters) -> Lora:
    """Adapters beside weights kept in fp32, as `--weight-dtype fp32` says it of frozen ones.

    Args:
        lora: the LoRA settings as `read_lora` takes it.

    Raises:
        InputError: an error of `read_lora`, or another format is stated for the same weights.
    """
    found = read_lora(lora)
    if found.base not in (None, "fp32"):
        raise InputError(
            what=f"--weight-dtype fp32 with base={found.base}",
            why="both say in which format the frozen weights are kept",
            fix="leave one of them out",
            field="weight_dtype",
        )
    return replace(found, base="fp32")


def _lora_problems(model: ModelSpec, lora: Lora, *, typed: bool) -> Iterator[Problem]:
    """Targets that match nothing, a rank no module has room for, layers and parts that are not there.

    PEFT runs a rank that some of all modules have no room for: files that state one are priced, who types one is told.
    """
    products = {
        op.name: op for kind in replace(model, tuning=None).kinds() for op in products_of(work_of(model, kind, "flash"))
    }
    modules = [(module, part_of(op)) for op in products.values() for module in modules_of(op)]
    names = {name for module, _ in modules for name in module.names}
    some = any(True for op in products.values() for _ in targeted(op, lora.targets))
    for target in (*lora.targets, *lora.parameters):
        # One of several patterns may find nothing, such as that of experts in a dense model.
        if target != ALL_LINEAR and not (is_pattern(target) and some) and not _matches_one(target, modules):
            close = nearest(target, (*sorted(names), ALL_LINEAR))
            usual = sorted({m.names[0] for op in products.values() for m in modules_of(op) if m.single})
            fix = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(usual)}; or say {ALL_LINEAR}"
            what = f"LoRA target {target!r} matches no module of {model.name}"
            yield Problem(what=what, why="an adapter is attached to a matrix product of a layer", fix=fix, field="lora")
    widths = list(_widths(products.values(), lora))
    if not widths and not [target for target in lora.targets if target != ALL_LINEAR]:
        what = f"{model.name} has no matrix product to attach an adapter to"
        yield Problem(what=what, why="its layers have no matrix products", fix="train it in full", field="lora")
    least = min if typed or _by_name(lora) else max
    narrow = least(widths, default=(lora.rank, ""))
    if lora.rank > narrow[0]:
        others = f", or targets without {narrow[1]}" if len({name for _, name in widths}) > 1 else ""
        yield Problem(
            what=f"LoRA rank {lora.rank} is above the width {narrow[0]} of {narrow[1]} of {model.name}",
            why="an adapter of a higher rank than its module holds more than the module itself",
            fix=f"use a rank of at most {narrow[0]}, usually 8 to 64{others}",
            field="lora",
        )
    for _, last in lora.layers:
        yield from _beyond(model, last, "lora")
    yield from _absent(model, lora.train, "lora")


def _by_name(lora: Lora) -> bool:
    """Whether every target is one module's name."""
    return not any(target == ALL_LINEAR or is_pattern(target) for target in lora.targets)


def _widths(products: Iterable[Linear], lora: Lora) -> Iterator[tuple[float, str]]:
    """Widths of the modules that get adapters, each the smaller of a matrix's two, with their names.

    Of `all-linear` and patterns those that hold a share of `SMALL` of their part or more: nobody names the products of
    gates, decays and steps, and adapters beside them are small.
    """
    by_name = _by_name(lora)
    found, held = [], dict[str, float]()
    for op in products:
        inputs = sum(units * width for units, width in op.inputs)
        for one in adapted_modules(op, lora):
            outputs = sum(units * width for units, width in one.module.outputs)
            found.append((part_of(op), inputs * outputs, (min(inputs, outputs), one.module.names[0])))
            held[part_of(op)] = held.get(part_of(op), 0.0) + inputs * outputs
    for part, size, width in found:
        if by_name or size >= SMALL * held[part]:
            yield width


def with_targets_there(model: ModelSpec, lora: Adapters) -> tuple[Lora, tuple[str, ...]]:
    """Adapters of a file without targets that match nothing, as PEFT leaves them out where others match.

    Args:
        model: the model as it is trained otherwise.
        lora: the LoRA settings as a file says them.

    Returns:
        The adapters, and the targets that were left out.
    """
    said = read_lora(lora)
    told = [problem.what for problem in _lora_problems(model, said, typed=False)]
    absent = {what.split("'")[1] for what in told if " matches no module" in what}
    left = tuple(target for target in said.targets if target not in absent)
    return (replace(said, targets=left), tuple(sorted(absent))) if left and absent else (said, ())


def _matches_one(target: str, modules: Iterable[tuple[Module, str]]) -> bool:
    return any(names_module(target.removeprefix("-"), module, part) for module, part in modules)


def _frozen_problems(model: ModelSpec, frozen: Iterable[Frozen]) -> Iterator[Problem]:
    for one in frozen:
        if one.layers is not None:
            yield from _beyond(model, one.layers[1], "freeze")
    yield from _absent(model, [one.part for one in frozen if one.part != "layers"], "freeze")


def _beyond(model: ModelSpec, last: int, field: str) -> Iterator[Problem]:
    layers = sum(count for layer, count in model.kind_counts().items() if not layer.stream)
    if last >= layers:
        what = f"layer {last} of {model.name}"
        why = f"{'its text' if model.streams else 'it'} has {layers} layers, numbered from 0"
        yield Problem(what=what, why=why, fix=f"use at most {layers - 1}", field=field)


def _absent(model: ModelSpec, parts: Iterable[str], field: str) -> Iterator[Problem]:
    parts = tuple(parts)
    routed = [part for part in parts if part in ("experts", "router") and not model.is_moe]
    for part in routed:
        yield Problem(
            what=f"the {part} of {model.name}", why="it is a dense model", fix=f"leave {part} out", field=field
        )
    have = {stream.name for stream in model.streams} | {"projector" for s in model.streams if s.projector}
    for part in parts:
        if part in WHOLES and part not in have | {"text"}:
            known = ", ".join(("text", *sorted(have & set(WHOLES)))) if have else "text alone"
            why = f"it has {known}; a vision tower is planned with --images, an audio tower with --audio"
            yield Problem(what=f"the {part} of {model.name}", why=why, fix=f"leave {part} out", field=field)
    if model.classes == 0 and "head" in parts:
        # What would be left of the head is the final norm, which nobody means by it.
        why = "its class ends at the last hidden state"
        fix = "leave head out, or name the class with a head, such as LlamaForCausalLM, under architectures"
        yield Problem(what=f"the head of {model.name}", why=why, fix=fix, field=field)
    elif model.tied_embeddings and "head" in parts and "embedding" not in parts:
        yield Problem(
            what=f"the head of {model.name} without its embedding",
            why="they are one table",
            fix="say embedding: it covers both",
            field=field,
        )


def trained_counts(model: ModelSpec) -> str:
    """How many parameters of a model are trained and how many are not, adapters counted."""
    trained, total = trained_parameters(model), model.parameters + adapter_parameters(model)
    return f"{trained:,} parameters trained ({percent(trained / total)}), {total - trained:,} frozen"


def trained_text(model: ModelSpec) -> str:
    """What part of a model is trained, in a line; empty where all of it is."""
    tuning = model.tuning
    if tuning is None:
        return ""
    lora = tuning.lora
    if lora is None:
        names = [
            one.part if one.layers is None else f"{one.part} of layers {one.layers[0]}-{one.layers[1]}"
            for one in tuning.frozen
        ]
        first = any(one.part == "layers" and (one.layers is None or not one.layers[0]) for one in tuning.frozen)
        through = "; backward passes through them to the embedding, unless --freeze embedding is said, too"
        why = through if first and not tuning.freezes("embedding") else ""
        return f"{', '.join(names)} frozen: {trained_counts(model)}{why}"
    kind = "DoRA" if lora.dora else "LoRA"
    kind = f"Q{kind}" if lora.base and STORED_BYTES[lora.base] < 1 else kind
    without = f" but {' and '.join(lora.skip)}" if lora.skip else ""
    stored = f", products of the layers{without} stored as {lora.base}" if lora.base else ""
    besides = f"; {', '.join(lora.train)} trained besides" if lora.train else ""
    where = ", ".join(f"{first}-{last}" for first, last in lora.layers)
    limited = f" of layers {where}" if where else ""
    ranks = dict(lora.ranks)
    whole = [f"{name} (rank {ranks[name]})" if name in ranks else name for name in lora.parameters]
    beside = f"{', '.join(lora.targets)}{' and ' if lora.targets and whole else ''}"
    named = f"{beside}the parameters {', '.join(whole)}" if whole else beside
    return f"{kind} of rank {lora.rank} on {named}{limited}: {trained_counts(model)}{stored}{besides}"
