"""`--lora` and `--freeze` as users write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, Problem, nearest, unknown_name
from meshwright.fields.kinds import shortened
from meshwright.specs.tuning import PARTS, STORED_BYTES, WHOLES, Frozen, Lora

_KEYS = {"r": "rank", "rank": "rank", "targets": "targets", "target_modules": "targets", "base": "base", "dora": "dora",
         "dropout": "dropout", "layers": "layers", "train": "train", "modules_to_save": "train",
         "target_parameters": "parameters", "parameters": "parameters", "rank_pattern": "ranks",
         "skip": "skip"}  # fmt: skip
_LISTS = ("targets", "train", "layers", "parameters", "ranks", "skip")
"""Fields of several values."""
_SCALES = ("alpha", "lora_alpha", "rslora", "use_rslora")
"""Settings of PEFT that scale what adapters add, and change neither bytes nor time."""
_PART_NAMES = {
    **dict.fromkeys(("embed_tokens", "embeddings", "wte", "word_embeddings", "embed_in"), "embedding"),
    **dict.fromkeys(("lm_head", "output_layer", "embed_out"), "head"),
    **dict.fromkeys(("self_attn", "self_attention", "attn"), "attention"),
    **dict.fromkeys(("feed_forward", "ffn"), "mlp"),
    **dict.fromkeys(("norm", "layernorm", "layernorms"), "norms"),
    "gate": "router",
    **dict.fromkeys(("vision_tower", "vision_model", "visual", "vision_encoder"), "vision"),
    **dict.fromkeys(("audio_tower", "audio_model", "audio_encoder", "speech_encoder"), "audio"),
    **dict.fromkeys(("multi_modal_projector", "mm_projector", "merger", "connector", "mlp1"), "projector"),
    **dict.fromkeys(("language_model", "llm"), "text"),
}
"""Parts as model classes call them."""
_EXAMPLE = "for example --lora r=16, or --lora r=16,targets=q_proj,v_proj,base=nf4"


Adapters = Lora | str | int | Mapping[str, Any]
"""Adapters as a user gives them."""


def read_lora(lora: Adapters) -> Lora:
    """Adapters as a user gives them.

    Args:
        lora: `r=16,targets=q_proj,v_proj,base=nf4`, a rank, a mapping of the same keys, or the record itself.

    Raises:
        InputError: what is wrong with it, all of it together.
    """
    if isinstance(lora, Lora):
        return lora
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    for name, value in _pairs(lora, problems):
        if given.setdefault(name, value) != value:
            what = f"--lora: {name} is {shortened(given[name])} and {shortened(value)}"
            problems.append(Problem(what=what, why="it is said twice", fix="keep one of them", field="lora"))
    if "rank" not in given and not problems:
        problems.append(
            Problem(what=f"--lora {lora} states no rank", why="it decides what is trained", fix=_EXAMPLE, field="lora")
        )
    if problems:
        raise InputError(problems)
    try:
        return Lora(**given)
    except InputError as error:
        raise InputError([replace(problem, field="lora") for problem in error.problems], code=error.code) from None


def _pairs(lora: str | int | Mapping[str, Any], problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    """Fields of the record and their values."""
    if isinstance(lora, bool) or not isinstance(lora, (str, int, Mapping)):
        problems.append(Problem(what=f"lora is {shortened(lora)}", why="must be a text", fix=_EXAMPLE, field="lora"))
        return
    for key, value in lora.items() if isinstance(lora, Mapping) else _words(str(lora)):
        name = _KEYS.get(key)
        if key in _SCALES:
            if not re.fullmatch(r"|[0-9]{1,9}(\.[0-9]{1,9})?|true|false", str(value).lower()):
                what, why = f"--lora: {key} is {shortened(value)}", "it scales adapters: a number above 0"
                problems.append(Problem(what=what, why=why, fix="leave it out: it changes no plan", field="lora"))
            continue
        if name is None:
            problems.append(replace(unknown_name("setting of --lora", key, (*_KEYS, *_SCALES)), field="lora"))
            continue
        try:
            yield name, _value(name, value)
        except ValueError as error:
            what = f"--lora: {key} is {shortened(value)}"
            problems.append(Problem(what=what, why=str(error), fix=_EXAMPLE, field="lora"))


def _words(text: str) -> Iterator[tuple[str, Any]]:
    """`r=16,targets=a,b,dora` as keys and values: a word without `=` goes on with a list, is a flag, or a rank."""
    lists: dict[str, list[str]] = {}
    last = ""
    for word in (part.strip() for part in text.split(",")):
        key, equals, value = word.partition("=")
        if equals:
            last = key
            if _KEYS.get(key) in _LISTS:
                lists.setdefault(key, []).extend(value.split("+"))
            else:
                yield key, value
        elif word.isdigit() and not last:
            yield "r", word
        elif word == "dora" or word in _SCALES:
            yield word, True
        elif last in lists and word:
            lists[last].extend(word.split("+"))
        elif word:
            yield word, ""
    yield from lists.items()


def _value(name: str, value: Any) -> Any:
    """The value of a field, as the record takes it."""
    if name in _SINGLE:
        return _SINGLE[name](value)
    if isinstance(value, Mapping):
        value = [f"{module}:{rank}" for module, rank in value.items()]
    entries = [value] if isinstance(value, str) else list(value)
    if name == "layers":
        return tuple(_range(entry) for entry in entries)
    if name == "ranks":
        return tuple(_module_rank(str(entry)) for entry in entries if entry)
    named = tuple(str(entry) for entry in entries if entry)
    return tuple(_part(entry) for entry in named) if name in ("train", "skip") else named


def _rank(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("the rank is a whole number of at least 1, of nine digits at most")
    return value


def _dropout(value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError("must be a share of at least 0 and below 1")
    return share


def _base(value: Any) -> Any:
    if value not in STORED_BYTES:
        # Weights of adapters in 4 bits are nf4 nearly everywhere, whatever they are called.
        near = ["nf4"] if "4" in str(value) else nearest(str(value), STORED_BYTES)
        raise ValueError(f"did you mean {near[0]}?" if near else f"must be one of {', '.join(STORED_BYTES)}")
    return value


def _dora(value: Any) -> bool:
    if value not in (True, False, "true", "false", "1", "0", ""):
        raise ValueError("must be true or false")
    return value in (True, "true", "1", "")


_SINGLE: dict[str, Callable[[Any], Any]] = {"rank": _rank, "dropout": _dropout, "base": _base, "dora": _dora}
"""What reads the one value of a field."""


def _module_rank(entry: str) -> tuple[str, int]:
    """A module and its rank of `experts.gate_up_proj:32`."""
    name, _, rank = entry.rpartition(":")
    if not name or not re.fullmatch(r"[1-9]\d{0,8}", rank):
        raise ValueError("must be a module and its rank, such as down_proj:32")
    return name, int(rank)


def _range(entry: object) -> tuple[int, int]:
    """First and last layer of `0-15`, or of `7`."""
    if isinstance(entry, (tuple, list)) and len(entry) == 2:
        return int(entry[0]), int(entry[1])
    found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", str(entry).strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise ValueError("must be a range of layers such as 0-15")
    return first, last


def _part(name: str) -> str:
    part = _PART_NAMES.get(name, name)
    if part not in (*PARTS, *WHOLES):
        near = nearest(name, (*PARTS, *WHOLES, *_PART_NAMES))
        raise ValueError(f"no part of a model; did you mean {near[0]}?" if near else "no part of a model has this name")
    return part


def read_freeze(patterns: Iterable[str]) -> tuple[Frozen, ...]:
    """Parts that are not trained, as a user gives them.

    Args:
        patterns: `embedding`, `attention`, `layers`, `layers.0-15`, `layers.0-15.mlp`.

    Raises:
        InputError: one that names no part.
    """
    found, problems = [], []
    for pattern in patterns:
        words = str(pattern).strip().removeprefix("model.").removesuffix(".*").split(".")
        inside = words[0] == "layers"
        try:
            span = None
            if inside and len(words) > 1 and re.match(r"\d", words[1]):
                span = _range(words.pop(1))
            part = "layers" if inside and len(words) == 1 else _part(".".join(words[1:] if inside else words))
            found.append(Frozen(part=part, layers=span))
        except ValueError as error:
            names = f"{', '.join((*PARTS, *WHOLES))}, layers, layers.0-15 or layers.0-15.mlp"
            problems.append(Problem(what=f"--freeze {pattern}", why=str(error), fix=f"freeze {names}", field="freeze"))
    if problems:
        raise InputError(problems)
    return tuple(found)
