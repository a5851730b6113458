"""The shape of what pages show of a plan set beside its plans: files of it may have been edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.fields.kinds import shortened

NUMBER = (int, float)
_GROUP = {"name": str, "groups": int, "size": int, "stride": int, "domain": str, "leaves_domain": bool}
_POINT = {"title": str, "devices": int, "step_time_s": NUMBER, "peak_memory_bytes": NUMBER, "device_seconds": NUMBER}
SHAPE: Mapping[str, Any] = {
    "plans": [{}],
    "warnings": [str],
    "verdict": {"text": str, "why": [str]},
    "inputs": {"assumptions": [{"name": str, "value": str, "basis": str}]},
    "rank_map": {"groups": [_GROUP], "stages": [str], "warnings": [str]},
}
"""What is always there: a type, a list of one kind, or the keys of an object."""
OPTIONAL: Mapping[str, Any] = {"pareto": [_POINT], "trainers": [{"trainer": str}], "search": {}}
_CALLED = {str: "a text", NUMBER: "a number", int: "a whole number", bool: "true or false"}


def require_plan_set(document: Mapping[str, Any], path: str) -> None:
    """Refuse a plan set whose shown parts are not as `plan -o` writes them, all of them at once.

    Args:
        document: read from a file.
        path: the path of the file, for the message.

    Raises:
        InputError: a part is missing or of another kind.
    """
    wrong = list(_wrong(document, SHAPE, ""))
    for name, shape in OPTIONAL.items():
        if document.get(name) is not None:
            wrong += _wrong(document[name], shape, name)
    verdict = document.get("verdict")
    if isinstance(verdict, Mapping):
        if verdict.get("runner_up") is not None:
            wrong += _wrong(verdict["runner_up"], {"title": str, "loses_because": str}, "verdict.runner_up")
        elif "runner_up" not in verdict:
            wrong.append(("verdict.runner_up", "is missing"))
    if wrong:
        fix = "write the file again with `plan -o`, or report one plan of it: FILE#1"
        raise InputError([Problem(what=f"{at} {why} in {path}", fix=fix, field=at) for at, why in wrong], code="MW222")


def _wrong(value: Any, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    """Places of a value that are not of a shape, and why."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield at, f"is {shortened(value)}, must be a list"
            return
        for number, one in enumerate(value):
            yield from _wrong(one, shape[0], f"{at}[{number}]")
    elif isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            yield at, f"is {shortened(value)}, must be an object"
            return
        for name, inner in shape.items():
            place = f"{at}.{name}" if at else name
            if name not in value:
                yield place, "is missing"
            else:
                yield from _wrong(value[name], inner, place)
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        yield at, f"is {shortened(value)}, must be {_CALLED[shape]}"
