"""Outside data against types, by pydantic; what it finds wrong told as this package tells it.

Every wrong key and value of a document comes in one pass, with its dotted path, the rule it breaks and, for a misspelt
word, the nearest known ones. Rules that a spec checks itself when it is built are placed under the spec's path.

Schemas of a plan take some 70 ms to load and build, so that only readers import this file, and when they read.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails

from meshwright.errors import MAX_PROBLEMS, MeshwrightError, Problem, nearest
from meshwright.specs.check import ByKind

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""Nothing is guessed: "8" is no number, and a key that nobody knows is a mistake."""

Record = TypeVar("Record")


class TableProblems(BaseModel):
    """One table of a TOML, JSON or YAML file."""

    model_config = STRICT


Text = Annotated[str, Field(pattern=r"\S")]
"""Text that is not blank."""
Share = Annotated[float, Field(gt=0, le=1)]


def key(example: str = "", *, required: bool = False, default: Any = None, **rules: Any) -> Any:
    """A key of a table.

    Args:
        example: value as a TOML file spells it, shown with the key's problems.
        required: whether the table must hold it.
        default: its value where the table does not hold it.
        rules: bounds, as `pydantic.Field` takes them.
    """
    return Field(... if required else default, examples=[example] if example else None, **rules)


@cache
def json_reader(kind: type[Record]) -> TypeAdapter[Record]:
    """Reads a dataclass, and those it holds, from JSON."""
    return TypeAdapter(with_config(STRICT)(kind))


def problems_of(error: ValidationError, kind: type, path: str = "") -> list[Problem]:
    """What pydantic found, one problem for each field and fault, the first `MAX_PROBLEMS` of them.

    Args:
        error: the error from reading a `kind`.
        kind: dataclass or model of the whole document.
        path: the path where the document lies in its file.
    """
    found: dict[tuple[str, str], Problem] = {}
    for one in error.errors(include_url=False):
        for problem in _translate(one, kind, path):
            # A value that is none of a union's types is reported once for each of them.
            found.setdefault((problem.field, problem.what), problem)
    problems = list(found.values())
    more = len(problems) - MAX_PROBLEMS
    return [*problems[:MAX_PROBLEMS], Problem(what=f"and {more} more")] if more > 0 else problems


def _translate(one: ErrorDetails, kind: type, path: str) -> list[Problem]:
    data, context = one["input"], one.get("ctx", {})
    parent, holder, _ = _place(kind, one["loc"][:-1], path)
    where, wanted, example = _place(kind, one["loc"], path)
    own = context.get("error")
    if isinstance(own, MeshwrightError):
        return [_placed(problem, where, inside=isinstance(data, Mapping)) for problem in own.problems]
    match one["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return [_unknown_key(where, str(one["loc"][-1]), list(_keys(holder[0])))]
        case "missing" if isinstance(one["loc"][-1], int):
            return [_wrong(parent, data, f"must hold {len(get_args(holder[0]))} values")]
        case "missing":
            return [Problem(what=f"{where} is missing", why="it is required", fix=example, field=where)]
        case "union_tag_invalid" | "union_tag_not_found":
            tags = [tag for member in wanted for tag in _tags(member)]
            return [_one_of(_join(where, "kind"), data.get("kind"), tags)]
        case "literal_error":
            return [_one_of(where, data, get_args(wanted[0]))]
        case "value_error":
            return [_wrong(where, data, str(own), example)]
        case name if name in _RULES:
            return [_wrong(where, data, _RULES[name].format(**context), example)]
        case name if wanted and name.endswith(("_type", "finite_number")):
            return [_wrong(where, data, f"must be {' or '.join(map(_noun, wanted))}", example)]
    return [_wrong(where, data, one["msg"], example)]


_RULES = {
    "greater_than": "must be above {gt:,.15g}",
    "greater_than_equal": "must be at least {ge:,.15g}",
    "less_than_equal": "must be at most {le:,.15g}",
    "too_short": "must hold at least {min_length}",
    "too_long": "must hold at most {max_length}",
    "string_pattern_mismatch": "must not be blank",
}
_NOUNS = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}


def _noun(kind: Any) -> str:
    if get_origin(kind) in (tuple, list):
        return "a list"
    return _NOUNS.get(kind, "an object: a table of keys")


def _placed(problem: Problem, where: str, *, inside: bool) -> Problem:
    """A spec's own problem where the spec stands; `inside` when it is about one of the spec's fields."""
    field = _join(where, problem.field) if inside and problem.field else where
    return replace(problem, what=f"{where}: {problem.what}" if where else problem.what, field=field)


_OTHER_WORDS = {
    "accelerator": "device",
    "gpu": "device",
    "gpu_type": "device",
    "type": "device",
    "count": "nodes",
    "hosts": "nodes",
    "replicas": "nodes",
    "gpus": "devices_per_node",
    "gpus_per_node": "devices_per_node",
    "gpus_per_host": "devices_per_node",
    "memory": "memory_gib",
    "vram": "memory_gib",
    "vram_gb": "memory_gib",
    "bandwidth": "inter_gb_s",
    "network": "inter_gb_s",
    "nvlink": "nvlink_domain",
    "price": "price_per_device_hour",
    "price_per_hour": "price_per_device_hour",
    "cost": "price_per_device_hour",
    "spot": "preemptions_per_hour",
    "region": "zone",
    "tdp": "power_w",
    "tdp_w": "power_w",
    "ram": "ram_gb",
}
"""Keys of clusters by words of other tools that are spelled unlike them."""


def _unknown_key(where: str, name: str, known: list[str]) -> Problem:
    meant = _OTHER_WORDS.get(name.lower().replace("-", "_"))
    close = [meant] if meant in known else nearest(name, known)
    fix = f"did you mean {' or '.join(close)}?" if close else "remove it"
    return Problem(what=f"unknown key {where!r}"[:120], why=f"known keys: {', '.join(known)}", fix=fix, field=where)


def _one_of(where: str, data: object, known: Iterable[object]) -> Problem:
    words = [str(word) for word in known]
    close = nearest(data, words) if isinstance(data, str) else []
    return _wrong(where, data, f"must be one of {', '.join(words)}", f"did you mean {close[0]}?" if close else "")


def _wrong(where: str, data: object, rule: str, fix: str = "") -> Problem:
    return Problem(what=f"{where or 'the document'} is {_short(data)}", why=rule, fix=fix, field=where)


def _short(data: object) -> str:
    if isinstance(data, int) and not isinstance(data, bool) and abs(data) >= 10**18:
        return "a number of 19 or more digits"
    shown = _REPR.repr(data)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


# --- from pydantic's location to a path and the type that stands there


def _place(kind: type, location: Iterable[int | str], path: str) -> tuple[str, list[Any], str]:
    """Dotted path of a location, the types its value may have, and an example line for its key.

    The location also names the member of a union: by its kind, which leads on, or by its type, which ends it.
    """
    wanted: list[Any] = [kind]
    example = ""
    for step in location:
        if len(wanted) > 1:
            wanted = [member for member in wanted if step in _tags(member)] or wanted
            continue
        holder = wanted[0] if wanted else None
        arguments = get_args(holder)
        if get_origin(holder) in (tuple, list) and isinstance(step, int):
            path += f"[{step}]"
            wanted = _kinds(
                arguments[step] if get_origin(holder) is tuple and arguments[-1] is not ... else arguments[0]
            )
        else:
            path = _join(path, str(step))
            wanted = _kinds(_keys(holder).get(str(step)))
            example = _example(holder, str(step))
    return path, wanted, example


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _kinds(hint: Any) -> list[Any]:
    """The types a hint allows, None apart."""
    if get_origin(hint) is Annotated:
        source, *marks = get_args(hint)
        by_kind = next((mark for mark in marks if isinstance(mark, ByKind)), None)
        return _kinds(source if by_kind is None else by_kind.members(source))
    if get_origin(hint) in (Union, UnionType):
        return [kind for member in get_args(hint) for kind in _kinds(member) if kind is not NoneType]
    return [] if hint is None else [hint]


@cache
def _keys(kind: Any) -> dict[str, Any]:
    """Keys of a table and the types of their values."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {field.name: hints[field.name] for field in fields(kind) if field.init}
    return {}


def _example(kind: Any, key: str) -> str:
    field = kind.model_fields.get(key) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return f"for example {key} = {field.examples[0]}" if field and field.examples else ""


def _tags(kind: Any) -> tuple[Any, ...]:
    """Words that the `kind` of a table may be."""
    hint = _keys(kind).get("kind")
    return get_args(hint) if get_origin(hint) is Literal else ()
