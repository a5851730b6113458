"""Lengths of sequences as users have them: a file of lengths, a histogram, or a distribution by name.

    lognormal:mean=1200,sigma=1.1,max=32768     uniform:low=128,high=4096     histogram:512=.4,2048=.4,8192=.2

Files: one length a line; JSON lines with a length each; one JSON list of lengths; one JSON object of length to count.
Whatever comes in leaves as at most `MOST` lengths with their shares.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from meshwright.errors import InputError, Problem, unknown_name
from meshwright.formats.files import read_text
from meshwright.shapes import Float, Int
from meshwright.specs.lengths import Lengths

MOST = 512
"""Lengths that are told apart; of more, neighbours are joined at their mean."""
LONGEST = 2**26
"""No sequence that anybody trains on is longer."""
FIELDS = ("length", "len", "seq_len", "num_tokens", "n_tokens", "tokens", "token_count", "input_length")
"""Names of the length in a JSON line, the first that is there."""
_MAX_BYTES = 256 * 1024**2
DISTRIBUTIONS = ("lognormal", "uniform", "histogram")
_EXAMPLE = "for example lognormal:mean=1200,sigma=1.1,max=32768, or a file with one length a line"


def lengths_of(source: object) -> Lengths:
    """A distribution of lengths from a file, a name with parameters, or pairs of length and share.

    Args:
        source: a path, a text such as `uniform:low=128,high=4096`, or pairs (length, weight), or lengths.

    Returns:
        (length, share), ascending; shares sum to 1.

    Raises:
        InputError: a file that cannot be read or lines that hold no length, with their numbers; an unknown
            distribution; parameters that are missing or wrong, all together.
    """
    if isinstance(source, str | os.PathLike):
        text = os.fspath(source)
        name, colon, after = text.partition(":")
        if name.partition("(")[0] in DISTRIBUTIONS:  # lognormal(7,1), as libraries of statistics spell it
            name, _, after = text.removesuffix(")").replace(":", "(", 1).partition("(")
        if (name in DISTRIBUTIONS or (colon and name.isalpha())) and not os.path.exists(text):
            return _named(name, after)
        return _of_file(str(text))
    if isinstance(source, Iterable):
        found: list[Any] = list(source)
        if found and all(isinstance(one, Sequence) and len(one) == 2 for one in found):
            return _of_pairs([(length, weight) for length, weight in found], "lengths")
        return _of_entries(found, lambda number: f"entry {number}", "lengths")
    raise InputError(what=f"lengths is {source!r:.60}", why="names no lengths", fix=_EXAMPLE, field="lengths")


def _named(name: str, text: str) -> Lengths:
    readers: tuple[Callable[[str], Lengths], ...] = (_lognormal, _uniform, _histogram)
    known = dict(zip(DISTRIBUTIONS, readers, strict=True))
    if name not in known:
        raise InputError(unknown_name("distribution of lengths", name, known), code="MW206")
    return known[name](text)


def _parameters(name: str, text: str, wanted: tuple[str, ...]) -> dict[str, float]:
    """Numbers by name; all that are missing, unknown or not positive together."""
    problems, found = [], {}
    example = {"lognormal": "lognormal:mean=1200,sigma=1.1,max=32768", "uniform": "uniform:low=128,high=4096"}[name]
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition("=")
        number = _number(value)
        if key not in wanted:
            problems.append(Problem(what=f"{name} has no {key[:40]!r}", fix=f"say {example}", field="lengths"))
        elif not 0 < number <= LONGEST:
            why = f"must be a number above 0, at most {LONGEST:,}"
            problems.append(Problem(what=f"{key} of {name} is {value[:40]!r}", why=why, field="lengths"))
        else:
            found[key] = number
    named = {part.partition("=")[0].strip() for part in text.split(",")}
    for key in wanted:
        if key not in named:
            why = f"a {name} distribution is given by {', '.join(wanted)}"
            problems.append(Problem(what=f"{name} without {key}", why=why, fix=f"say {example}", field="lengths"))
    if problems:
        raise InputError(problems, code="MW206")
    return found


def _number(text: str) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return math.nan


def _lognormal(text: str) -> Lengths:
    """Quantiles of exp(mu + sigma z) with the stated mean before it is cut at `max`: mu = log(mean) - sigma^2 / 2."""
    given = _parameters("lognormal", text, ("mean", "sigma", "max"))
    if given["mean"] > given["max"]:
        why = "sequences are cut at the longest, so that their mean is below it"
        what = f"mean of lognormal is {given['mean']:g}, max is {given['max']:g}"
        raise InputError(what=what, why=why, fix="raise max", field="lengths", code="MW206")
    mu = math.log(given["mean"]) - 0.5 * given["sigma"] ** 2
    normal = NormalDist(mu, given["sigma"])
    at = (np.arange(4096) + 0.5) / 4096
    values = np.exp([normal.inv_cdf(place) for place in at.tolist()])
    return _compact(np.clip(np.rint(values), 1, int(given["max"])).astype(np.int64))


def _uniform(text: str) -> Lengths:
    given = _parameters("uniform", text, ("low", "high"))
    low, high = int(given["low"]), int(given["high"])
    if low > high or low < 1:
        what, why = f"uniform from {low} to {high}", "low is at least 1 and at most high"
        raise InputError(what=what, why=why, fix="uniform:low=128,high=4096", field="lengths", code="MW206")
    count = min(high - low + 1, 4096)
    return _compact(np.rint(np.linspace(low, high, count)).astype(np.int64))


def _histogram(text: str) -> Lengths:
    parts = (part.partition("=") for part in text.split(",") if part.strip())
    return _of_pairs([(length.strip(), weight.strip()) for length, _, weight in parts], "lengths")


def _of_pairs(pairs: Sequence[tuple[Any, Any]], where: str) -> Lengths:
    """Lengths with weights, of any sum; every wrong pair is named."""
    problems = []
    good: dict[int, float] = {}
    for length, weight in pairs:
        own, share = _whole(length), _number(str(weight))
        if own is None or not (0 < share < math.inf):
            why = f"a length is a whole number from 1 to {LONGEST:,}, its weight a number above 0"
            problems.append(
                Problem(what=f"{where}: {str(length)[:40]}={str(weight)[:40]}", why=why, fix=_EXAMPLE, field="lengths")
            )
        else:
            good[own] = good.get(own, 0.0) + share
    if not pairs:
        problems.append(Problem(what=f"{where} holds no lengths", fix="histogram:512=.4,2048=.6", field="lengths"))
    if problems:
        raise InputError(problems[:20], code="MW206")
    ordered = sorted(good)
    return _compact(np.array(ordered), np.array([good[length] for length in ordered]))


def _whole(value: object) -> int | None:
    """A length, None for what is none."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"\s*[0-9]{1,12}\s*", value) else None
    good = isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= value <= LONGEST
    return int(value) if good else None  # type: ignore[call-overload]


def _of_file(path: str) -> Lengths:
    text = read_text(path, "file of lengths", max_bytes=_MAX_BYTES)
    start = text.lstrip()[:1]
    if start == "[" or (start == "{" and "\n" not in text.strip()) or (start == "{" and _is_one_object(text)):
        document = _json(text, path)
        if isinstance(document, list):
            if document and all(isinstance(one, list) and len(one) == 2 for one in document):
                return _of_pairs([(length, weight) for length, weight in document], path)
            return _of_entries(document, lambda number: f"entry {number}", path)
        if isinstance(document, dict) and not any(name in document for name in FIELDS):
            return _of_pairs(list(document.items()), path)
    return _of_lines(text, path)


def _is_one_object(text: str) -> bool:
    """Whether a text that begins with a brace goes on after its first line, as JSON lines do not."""
    first = text.lstrip().partition("\n")[0].rstrip()
    return not first.endswith("}")


def _json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        why = f"line {line} is not JSON: {getattr(error, 'msg', error)}"
        raise InputError(what=f"{path!r} cannot be used", why=why, fix=_EXAMPLE, field="lengths") from None


def _of_lines(text: str, path: str) -> Lengths:
    """A length a line, quickly where all are good; else line by line, to say which are not."""
    stripped = text.strip()
    if re.fullmatch(r"[0-9\s]+", stripped):
        words = stripped.split()
        if max(map(len, words)) < 10:
            numbers = np.array(words, dtype=np.int64)
            if len(words) == len(stripped.splitlines()) and numbers.min() > 0 and numbers.max() <= LONGEST:
                return _compact(numbers)
    found = _flat_objects(stripped)
    if found is not None:
        return _compact(found)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return _of_entries([line for _, line in lines], lambda place: f"line {lines[place - 1][0]:,}", path)


def _flat_objects(text: str) -> Int[np.ndarray, " lines"] | None:
    """Lengths of JSON lines without objects inside, all under one name; None where any line needs a closer look."""
    first = text.partition("\n")[0]
    name = next((name for name in FIELDS if f'"{name}"' in first), None)
    if name is None:
        return None
    line = rf'^\{{(?:[^{{}}\n]*[,\s])?(?<!\\)"{name}"\s*:\s*([1-9][0-9]{{0,7}})\s*[,}}]'
    numbers = re.findall(line, text, re.MULTILINE)
    if len(numbers) != text.count("\n") + 1:
        return None
    found = np.array(numbers, dtype=np.int64)
    return found if found.max() <= LONGEST else None


def _of_entries(entries: Sequence[Any], called: Callable[[int], str], where: str) -> Lengths:
    """Lengths of lines or list entries; each kind of fault once, with the first that has it and how many do."""
    faults: dict[str, list[int]] = {}
    good: list[int] = []
    for number, entry in enumerate(entries, 1):
        value, fault = _entry(entry)
        if fault:
            faults.setdefault(fault, []).append(number)
        else:
            good.append(value)
    if not entries:
        faults["holds no lengths"] = []
    if faults:
        problems = []
        for why, places in faults.items():
            more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
            said = f", {called(places[0])}{more}: {str(entries[places[0] - 1])[:60]!r}" if places else ""
            fix = f"correct or drop {'it' if len(places) == 1 else 'them'}" if places else _EXAMPLE
            problems.append(Problem(what=f"{where}{said}", why=why, fix=fix, field="lengths"))
        raise InputError(problems, code="MW206")
    return _compact(np.array(good, dtype=np.int64))


def _entry(entry: Any) -> tuple[int, str]:
    """The length of one line or entry, and what is wrong with it."""
    value = entry
    if isinstance(entry, str):
        text = entry.strip()
        if text.isdecimal() and len(text) < 10:
            value = int(text)
        else:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return 0, "is neither a whole number nor JSON"
    if isinstance(value, dict):
        name = next((name for name in FIELDS if name in value), None)
        if name is None:
            return 0, f"has no length under any of {', '.join(FIELDS)}"
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return 0, "its length is not a whole number"
    if value < 1:
        return 0, "a sequence has at least 1 token"
    return (int(value), "") if value <= LONGEST else (0, f"a sequence has at most {LONGEST:,} tokens")


def _compact(numbers: Int[np.ndarray, " lengths"], weights: Float[np.ndarray, " lengths"] | None = None) -> Lengths:
    """At most MOST lengths with their shares: exact for few, else bins of equal ratio at the mean of what they hold."""
    values, index = np.unique(numbers, return_inverse=True)
    share = np.bincount(index, weights)
    if len(values) > MOST:
        ratio = (values[-1] / values[0]) ** (1.0 / (MOST - 1))
        place = np.floor(np.log(values / values[0]) / math.log(ratio)).astype(np.int64)
        place[-1] = place.max() + 1  # the longest stays what it is
        _, place = np.unique(place, return_inverse=True)
        held = np.bincount(place, share)
        means = np.rint(np.bincount(place, share * values) / held).astype(np.int64)
        values, index = np.unique(means, return_inverse=True)
        share = np.bincount(index, held)
    share = share / share.sum()
    return tuple(zip(values.tolist(), share.tolist(), strict=True))
