"""The load of experts as users have it: `balanced`, a factor, `zipf:S`, or a file of counted tokens.

balanced        every rank the same
1.3             the fullest rank of every layer has 1.3 times the mean, however many ranks there are
zipf:1.2        tokens are drawn; the n-th most popular expert has a share proportional to n^-1.2
loads.csv       tokens of each expert: a line per layer, or a header `layer,expert,tokens` and a line per pair
loads.jsonl     {"layer": 3, "tokens": [510, 498, ...]} per line; lines of one layer are summed over steps
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.errors import InputError, nearest
from meshwright.formats.files import read_text
from meshwright.specs.expert_load import ExpertLoad

_EXAMPLE = "for example balanced, 1.3, zipf:1.2, or a file with the tokens of each expert, a line per layer"
_MAX_BYTES = 64 * 1024**2
_LONG = ["layer", "expert", "tokens"]


def expert_load_of(source: object) -> float | ExpertLoad:
    """The fullest rank over the mean where that is all that is stated, else the load of experts.

    Args:
        source: a text as above, a number, a path, an `ExpertLoad`, or rows of counts.

    Raises:
        InputError: a file that cannot be read, lines that hold no counts, layers of unlike lengths or sums.
    """
    if isinstance(source, ExpertLoad):
        return source
    if isinstance(source, bool) or source is None:
        raise _wrong(source, "states no load")
    if isinstance(source, int | float):
        try:
            return _factor(float(source), source)
        except OverflowError:
            raise _wrong(source, "is beyond all floats") from None
    if isinstance(source, str | os.PathLike):
        return _of_text(os.fspath(source))
    if isinstance(source, Sequence) and source:
        rows = source if isinstance(source[0], Sequence) else [source]
        return ExpertLoad(counts=tuple(tuple(_tokens(one, "counts") for one in row) for row in rows))
    raise _wrong(source, "states no load")


def _of_text(text: str) -> float | ExpertLoad:
    word = text.strip().lower()
    if word == "balanced":
        return 1.0
    name, colon, exponent = word.partition(":")
    if colon and name.isalpha() and not os.path.exists(text):
        if name != "zipf":
            close = nearest(name, ("zipf", "balanced"))
            raise _wrong(text, "names no law of loads", f"did you mean {close[0]}?" if close else _EXAMPLE)
        return ExpertLoad(zipf=_number(exponent, text))
    try:
        factor = float(word)
    except ValueError:
        return _of_file(text)
    return _factor(factor, text)


def _factor(factor: float, source: object) -> float:
    if not 1.0 <= factor < float("inf"):
        raise _wrong(source, "the fullest rank has at least the mean, 1")
    return factor


def _of_file(path: str) -> ExpertLoad:
    if not os.path.exists(path) and nearest(path, ("balanced", "zipf:1")):
        raise _wrong(path, "is neither a word nor a file", _EXAMPLE)
    text = read_text(path, "file of expert loads", max_bytes=_MAX_BYTES)
    layers: dict[int, list[float]] = {}
    pairs = _of_lines(text, path) if text.lstrip().startswith(("{", "[")) else _of_table(text, path)
    for layer, row in pairs:
        held = layers.setdefault(layer, [0.0] * len(row))
        if len(held) != len(row):
            raise _wrong(path, f"layer {layer} has {len(row)} experts in one line and {len(held)} in another")
        layers[layer] = [one + more for one, more in zip(held, row, strict=True)]
    if not layers:
        raise _wrong(path, "holds no counts")
    return ExpertLoad(counts=tuple(tuple(layers[layer]) for layer in sorted(layers)))


def _of_lines(text: str, path: str) -> Iterator[tuple[int, list[float]]]:
    for number, line in enumerate(filter(str.strip, text.splitlines())):
        where = f"line {number + 1} of {path}"
        try:
            entry: Any = json.loads(line)
        except ValueError as error:
            raise _wrong(where, f"is no JSON: {error}") from None
        if isinstance(entry, list):
            rows = entry if entry and isinstance(entry[0], list) else [entry]
            yield from ((number + at, [_tokens(one, where) for one in row]) for at, row in enumerate(rows))
        elif isinstance(entry, dict) and isinstance(entry.get("tokens"), list):
            layer = entry.get("layer", number)
            if not isinstance(layer, int) or isinstance(layer, bool):
                raise _wrong(where, f"names layer {_shown(layer)}, which is no whole number")
            yield layer, [_tokens(one, where) for one in entry["tokens"]]
        else:
            raise _wrong(where, "holds no tokens", 'each line is {"layer": 3, "tokens": [510, 498, ...]}')


def _of_table(text: str, path: str) -> Iterator[tuple[int, list[float]]]:
    lines = [[cell.strip() for cell in line] for line in csv.reader(text.splitlines()) if any(map(str.strip, line))]
    header = [cell.lower() for cell in lines[0]] if lines else []
    if sorted(header) != sorted(_LONG):
        first = 1 if header and not _is_number(header[0]) else 0
        for number, line in enumerate(lines[first:]):
            where = f"line {number + first + 1} of {path}"
            cells = line[1:] if first and header[0] == "layer" else line
            yield number, [_tokens(cell, where) for cell in cells]
        return
    places = [header.index(name) for name in _LONG]
    found: dict[int, dict[int, float]] = {}
    for number, line in enumerate(lines[1:]):
        where = f"line {number + 2} of {path}"
        if len(line) != len(header):
            raise _wrong(where, f"has {len(line)} cells, not {len(header)}")
        layer, expert, tokens = (_tokens(line[place], where) for place in places)
        row = found.setdefault(int(layer), {})
        row[int(expert)] = row.get(int(expert), 0.0) + tokens
    width = 1 + max((max(row) for row in found.values()), default=0)
    yield from ((layer, [row.get(expert, 0.0) for expert in range(width)]) for layer, row in found.items())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _tokens(value: object, where: str) -> float:
    try:
        tokens = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise _wrong(where, f"has {_shown(value)} where tokens are counted") from None
    if not 0 <= tokens < float("inf"):
        raise _wrong(where, f"has {_shown(value)} tokens, which is no count")
    return tokens


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong(whole, "a Zipf exponent is a number", "zipf:1.2") from None


def _wrong(value: object, why: str, fix: str = _EXAMPLE) -> InputError:
    return InputError(what=f"expert_load: {_shown(value)}", why=why, fix=fix, field="expert_load", code="MW206")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
