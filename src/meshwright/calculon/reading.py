"""Calculon's three input files: read whole, every problem found and told together.

An input is given as data (a mapping), as the path of a JSON file, or as the name of one that comes along.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from meshwright.calculon.inputs import (
    CHOICES,
    OPERATIONS,
    PROCESSING_MODES,
    STRUCTURES,
    Application,
    EfficiencyCurve,
    Execution,
    Memory,
    Network,
    Rate,
    System,
)
from meshwright.calculon.json_table import LARGEST, JsonTable, is_kind
from meshwright.errors import InputError, UnsupportedError, nearest
from meshwright.formats.files import read_table

Source = str | os.PathLike[str] | Mapping[str, Any]

DATA = Path(__file__).parent / "data"

APPLICATION_CODE, SYSTEM_CODE, EXECUTION_CODE = "MW241", "MW242", "MW243"
UNKNOWN_CODE = "MW441"
REMARKS = frozenset({"name", "comment", "description", "source"})
"""Keys that an application or a system file may have for people; they say nothing to the model."""

Read = TypeVar("Read", Application, System, Execution)


def library_names(kind: str) -> list[str]:
    """Names of the inputs that come along.

    Args:
        kind: `models` or `systems`.
    """
    return sorted(path.stem for path in (DATA / kind).glob("*.json"))


def read_application(source: Source | Application) -> Application:
    """An application: Calculon's six keys, and optionally structure_type, kv_heads and vocab_size.

    Args:
        source: a name of `library_names("models")`, the path of a JSON file, or the file's content.

    Raises:
        InputError: MW241, with all problems.
        UnsupportedError: MW441, a name that is neither built in nor a file.
    """
    return source if isinstance(source, Application) else _read(source, "models", _application, APPLICATION_CODE)


def read_system(source: Source | System) -> System:
    """A system.

    Args:
        source: a name of `library_names("systems")`, the path of a JSON file, or the file's content.

    Raises:
        InputError: MW242, with all problems.
        UnsupportedError: MW441, a name that is neither built in nor a file.
    """
    return source if isinstance(source, System) else _read(source, "systems", _system, SYSTEM_CODE)


def read_execution(source: Source | Execution) -> Execution:
    """An execution: exactly Calculon's 23 keys, each of its type; whether their values are legal is not asked here.

    Args:
        source: the path of a JSON file, or the file's content.

    Raises:
        InputError: MW243, with all problems.
    """
    return source if isinstance(source, Execution) else _read(source, "", _execution, EXECUTION_CODE)


NOUNS = {"models": "application", "systems": "system", "": "execution"}


def _read(source: Source, kind: str, build: Callable[[JsonTable, str], Read | None], code: str) -> Read:
    noun = NOUNS[kind]
    if isinstance(source, Mapping):
        data, name = source, ""
    else:
        path = _find(os.fspath(source), kind, noun)
        data, name = read_table(path, f"{noun} file"), path.stem
    table = JsonTable(data, "", [])
    found = build(table, str(data.get("name", name)) if kind else "")
    if table.problems or found is None:
        raise InputError(table.problems, code=code)
    return found


def _find(text: str, kind: str, noun: str) -> Path:
    is_name = bool(kind) and os.sep not in text and not text.endswith(".json")
    if is_name:
        known = {name.lower(): name for name in library_names(kind)}
        if text.lower() in known:
            return DATA / kind / f"{known[text.lower()]}.json"
    path = Path(text).expanduser()
    if path.suffix == ".json" or os.path.exists(path) or not is_name:
        return path
    close = nearest(text, library_names(kind))
    fix = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(library_names(kind))}"
    raise UnsupportedError(
        what=f"unknown {noun} {text!r}",
        why="no built-in name and no file is called so",
        fix=fix,
        field=noun,
        code=UNKNOWN_CODE,
    )


def _application(table: JsonTable, name: str) -> Application | None:
    required = [field.name for field in fields(Application) if field.default is MISSING and field.name != "name"]
    table.only([*required, "structure_type", "kv_heads", "vocab_size"], REMARKS)
    sizes: dict[str, Any] = {key: table.whole(key) for key in required}
    optional: dict[str, Any] = {}
    for key in ("kv_heads", "vocab_size"):
        if table.data.get(key) is not None:
            optional[key] = table.whole(key)
    if "structure_type" in table.data:
        optional["structure_type"] = table.get(
            "structure_type",
            "text",
            " or ".join(STRUCTURES),
            STRUCTURES.__contains__,
            f"it is one of {', '.join(STRUCTURES)}",
        )
    heads, kv_heads = sizes["attn_heads"], optional.get("kv_heads")
    if heads and kv_heads and heads % kv_heads:
        table.note("kv_heads", kv_heads, f"it divides attn_heads, {heads}", "give a divisor")
    return None if table.problems else Application(name=name, **sizes, **optional)


def _execution(table: JsonTable, name: str) -> Execution | None:
    keys = [field.name for field in fields(Execution)]
    table.only(keys)
    values: dict[str, Any] = {}
    for field in fields(Execution):
        if field.type == "int":
            values[field.name] = table.whole(field.name, low=-LARGEST)
        elif field.type == "bool":
            values[field.name] = table.get(field.name, "flag", "true or false", lambda x: True, "")
        else:
            values[field.name] = table.get(field.name, "text", " or ".join(CHOICES[field.name]), lambda x: True, "")
    return None if table.problems else Execution(**values)


SYSTEM_KEYS = ("matrix", "vector", "mem1", "mem2", "processing_mode", "networks")
LEAST_EFFICIENCY = 1e-9
"""Below it times of whole models overflow."""
NETWORK_KEYS = ("bandwidth", "efficiency", "size", "latency", "ops", "must_be_filled", "processor_usage")


def _system(table: JsonTable, name: str) -> System | None:
    table.only(SYSTEM_KEYS, REMARKS)
    matrix, vector = (_engines(table.table(key)) for key in ("matrix", "vector"))
    mem1, mem2 = (_memory(table.table(key)) for key in ("mem1", "mem2"))
    mode = table.get(
        "processing_mode",
        "text",
        " or ".join(PROCESSING_MODES),
        PROCESSING_MODES.__contains__,
        f"it is one of {', '.join(PROCESSING_MODES)}",
    )
    listed = table.get("networks", "list", "at least one network", lambda x: len(x) > 0, "there is at least one")
    networks = [
        _network(JsonTable(one, f"networks[{place}]", table.problems)) for place, one in enumerate(listed or ())
    ]
    if table.problems:
        return None
    return System(
        name=name,
        matrix=matrix,
        vector=vector,
        mem1=mem1,
        mem2=mem2,
        processing_mode=mode,
        networks=tuple(networks),
    )


def _engines(table: JsonTable) -> Mapping[str, Rate]:
    table.only(CHOICES["datatype"])
    if not table.broken and not table.data:
        table.note("", {}, "an engine has at least one datatype", f"add one of {', '.join(CHOICES['datatype'])}")
    found = {}
    for datatype in table.data:
        if datatype not in CHOICES["datatype"]:
            continue
        inner = table.table(datatype)
        inner.only(("tflops", "gflops_efficiency"))
        peak = inner.number("tflops", lambda x: x > 0, "it is above 0")
        found[datatype] = Rate(peak=peak * 1e12, curve=_curve(inner, "gflops_efficiency", 1e9))
    return found


def _memory(table: JsonTable) -> Memory:
    table.only(("GiB", "GBps", "MB_efficiency"))
    capacity = table.number("GiB", lambda x: x >= 0, "it is 0 or more")
    speed = table.number("GBps", lambda x: x > 0, "it is above 0")
    curve = _curve(table, "MB_efficiency", 1e6)
    return Memory(capacity_bytes=capacity * 2**30, rate=Rate(peak=speed * 1e9, curve=curve))


def _curve(table: JsonTable, key: str, unit: float) -> EfficiencyCurve:
    """Pairs of threshold and efficiency, from the highest threshold down to 0."""
    rows = table.get(key, "list", "[[1, 0.6], [0, 0.1]]", lambda x: len(x) > 0, "it has at least one pair")
    pairs: list[tuple[float, float]] = []
    for place, row in enumerate(rows or ()):
        field = f"{key}[{place}]"
        if not (is_kind(row, "list") and len(row) == 2 and all(is_kind(one, "number") for one in row)):
            table.note(field, row, "it is a pair of numbers: threshold, efficiency", "write [threshold, efficiency]")
            continue
        threshold, efficiency = float(row[0]), float(row[1])
        if not LEAST_EFFICIENCY <= efficiency <= 1:
            why = f"the efficiency is at least {LEAST_EFFICIENCY:g} and at most 1"
            table.note(field, row, why, "give the share of the peak")
        if pairs and threshold >= pairs[-1][0]:
            table.note(field, row, "thresholds descend", "order the pairs from the highest threshold down")
        pairs.append((threshold, efficiency))
    if rows and pairs and len(pairs) == len(rows) and pairs[-1][0] != 0:
        last = f"{key}[{len(rows) - 1}]"
        table.note(
            last, list(rows[-1]), "the last threshold is 0, so that every size has an efficiency", "add [0, ...]"
        )
    return EfficiencyCurve(
        thresholds=tuple(threshold * unit for threshold, _ in pairs),
        efficiencies=tuple(efficiency for _, efficiency in pairs),
    )


def _network(table: JsonTable) -> Network:
    table.only(NETWORK_KEYS)
    bandwidth = table.number("bandwidth", lambda x: x > 0, "it is above 0")
    rule = f"it is at least {LEAST_EFFICIENCY:g} and at most 1"
    efficiency = table.number("efficiency", lambda x: LEAST_EFFICIENCY <= x <= 1, rule)
    size = table.whole("size", low=0)
    latency = table.number("latency", lambda x: x >= 0, "it is 0 or more")
    usage = table.number("processor_usage", lambda x: 0 <= x < 1, "it is at least 0 and below 1")
    filled = table.get("must_be_filled", "flag", "true or false", lambda x: True, "")
    operations = table.table("ops")
    operations.only(OPERATIONS)
    return Network(
        bandwidth_bytes_per_s=bandwidth * 1e9,
        efficiency=efficiency,
        size=size,
        latency_s=latency,
        must_be_filled=bool(filled),
        processor_usage=usage,
        operations={name: _operation(operations, name) for name in OPERATIONS},
    )


def _operation(table: JsonTable, name: str) -> tuple[float, float]:
    pair = table.get(
        name,
        "list",
        "[1.0, null]" if name == "p2p" else "[2.0, -1]",
        lambda x: len(x) == 2,
        "it is a pair: scalar, offset",
    )
    if pair is None:
        return 1.0, 0.0
    scalar, offset = pair
    if not is_kind(scalar, "number") or not math.isfinite(scalar) or scalar <= 0:
        table.note(name, pair, "the scalar is a number above 0", "give how many times the size is sent")
        return 1.0, 0.0
    if name == "p2p":
        if offset is not None:
            table.note(name, pair, "p2p has no offset", "write [1.0, null]")
        return float(scalar), 0.0
    if not is_kind(offset, "number") or offset < -2:
        table.note(
            name, pair, "the offset is a number of -2 or more", "write -1 for rings, 0 for in-network collectives"
        )
        return float(scalar), 0.0
    return float(scalar), float(offset)
