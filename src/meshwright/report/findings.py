"""What `check` found, as pipelines take it: SARIF 2.1.0, JUnit's XML, and the annotations of GitHub's workflows."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from meshwright.records import as_json, visible

RULES = {
    "ASK": "every value that the script depends on is known",
    "OPTIONS": "options are known and compatible",
    "MODEL": "the options describe the model that is named",
    "LEGAL": "the degrees suit model, devices and batch",
    "MEM_STAGE": "every stage fits its devices",
    "LAUNCH": "the framework starts what the options ask for",
}
FASTER = "FASTER"


def sarif(document: Mapping[str, Any], path: str, version: str) -> str:
    """The findings as SARIF 2.1.0, each at its line where the script says one.

    Args:
        document: a `meshwright.check/1`.
        path: the path of the file that was checked; empty where there is none.
        version: the version of this package.
    """
    results = [
        _result(one["code"], "error", _message(one), _place(one["place"], path)) for one in document["violations"]
    ]
    better = document["dominated_by"]
    if better:
        results.append(_result(FASTER, "warning", _faster(better), _place("", path)))
    results += [_result("NOTE", "note", text, _place("", path)) for text in document["warnings"]]
    rules = [{"id": code, "shortDescription": {"text": text}} for code, text in RULES.items()]
    rules += [{"id": FASTER, "shortDescription": {"text": "no other plan of the default space is faster"}}]
    rules += [{"id": "NOTE", "shortDescription": {"text": "assumptions made while reading"}}]
    known = {rule["id"] for rule in rules}
    rules += [{"id": code, "shortDescription": {"text": code}} for code in {r["ruleId"] for r in results} - known]
    driver = {"name": "meshwright", "version": version, "rules": rules}
    return as_json(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": results}],
        }
    )


def github(document: Mapping[str, Any], path: str) -> str:
    """The findings as commands of a GitHub workflow, which annotate the lines of a pull request.

    Source: workflow commands for GitHub Actions, docs.github.com (read 2026-11).

    Args:
        document: a `meshwright.check/1`.
        path: the path of the file that was checked; empty where there is none.
    """
    found = [("error", one["code"], _message(one), _place(one["place"], path)) for one in document["violations"]]
    if document["dominated_by"]:
        found.append(("warning", FASTER, _faster(document["dominated_by"]), _place("", path)))
    found += [("notice", "NOTE", text, _place("", path)) for text in document["warnings"]]
    return "".join(_command(level, code, text, place) for level, code, text, place in found)


def _command(level: str, code: str, text: str, place: tuple[str, int] | None) -> str:
    said = {} if place is None else {"file": _of_project(place[0]), **({"line": str(place[1])} if place[1] else {})}
    words = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in {**said, "title": code}.items())
    return f"::{level} {words}::{_escaped(text)}\n"


def _escaped(text: str, besides: str = "") -> str:
    """Text in which a command neither ends nor begins."""
    return "".join(f"%{ord(one):02X}" if one in f"%\r\n{besides}" else one for one in visible(text))


def junit(document: Mapping[str, Any], path: str) -> str:
    """The findings as JUnit's XML: one test a rule, failed by its violations.

    Args:
        document: a `meshwright.check/1`.
        path: the path of the file that was checked; empty where there is none.
    """
    found: dict[str, list[str]] = {code: [] for code in RULES}
    for one in document["violations"]:
        where = _place(one["place"], path)
        line = f" (line {where[1]})" if where is not None and where[1] else ""
        found.setdefault(one["code"], []).append(_message(one) + line)
    name = path or document["title"]
    cases = [line for code, texts in found.items() for line in _case(name, code, texts)]
    better = document["dominated_by"]
    note = _faster(better) if better else document["text"]
    failed = sum(bool(texts) for texts in found.values())
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<testsuites tests="{len(found)}" failures="{failed}">',
            f'<testsuite name="meshwright check" tests="{len(found)}" failures="{failed}">',
            *cases,
            f"<system-out>{escape(visible(note))}</system-out>",
            "</testsuite>",
            "</testsuites>",
            "",
        ]
    )


def _case(name: str, code: str, texts: list[str]) -> Iterator[str]:
    title = f"{code}: {RULES.get(code, code)}"
    if not texts:
        yield f"<testcase classname={_attribute(name)} name={_attribute(title)}/>"
        return
    yield f"<testcase classname={_attribute(name)} name={_attribute(title)}>"
    text = "\n".join(texts)
    yield f"<failure message={_attribute(texts[0])}>{escape(visible(text))}</failure>"
    yield "</testcase>"


def _attribute(text: str) -> str:
    """Text of anybody in quotes; XML has no way to write most control characters."""
    return quoteattr(visible(text))


def _message(violation: Mapping[str, Any]) -> str:
    parts = [violation["what"], violation["why"], violation["fix"]]
    return "; ".join(part for part in parts if part)


def _faster(better: Mapping[str, Any]) -> str:
    return f"a faster plan is {better['name']}, {better['because']}"


def _place(place: str, path: str) -> tuple[str, int] | None:
    """File and line that a finding is about; line 0 where none is said."""
    if not path:
        return None
    file, _, line = place.rpartition(":")
    if not line.isdigit() or file.startswith("--"):
        return path, 0
    return posixpath.join(posixpath.dirname(path), file), int(line)


def _of_project(path: str) -> str:
    """A path as its project calls it: from the folder where the pipeline runs, where it lies below that."""
    below = os.path.relpath(path) if os.path.isabs(path) else os.path.normpath(path)
    inside = not below.startswith(os.pardir) or not os.path.isabs(path)
    return (below if inside else path).replace("\\", "/")


def _uri(path: str) -> str:
    """A path as a reference of SARIF: relative to its project where it lies in it."""
    own = _of_project(path)
    return PurePath(own).as_uri() if os.path.isabs(own) else quote(visible(own))


def _result(code: str, level: str, text: str, place: tuple[str, int] | None) -> dict[str, Any]:
    result: dict[str, Any] = {"ruleId": code, "level": level, "message": {"text": text}}
    if place is not None:
        location: dict[str, Any] = {"artifactLocation": {"uri": _uri(place[0])}}
        if place[1]:
            location["region"] = {"startLine": place[1]}
        result["locations"] = [{"physicalLocation": location}]
    return result
