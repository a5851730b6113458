"""The body of a request: one JSON object, its fields of the types they have, and no way to a file of this machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.app.verbs import VERBS
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, unknown_name
from meshwright.fields.field import Field
from meshwright.fields.gather import Gather
from meshwright.fields.kinds import Choice, FieldKind, Flag, Numbers, Texts, shortened
from meshwright.records import as_json
from meshwright.service.catalogue import OWN_PARALLELIZERS, TEXT_OF_SCRIPT, asked_fields, takes_document
from meshwright.units import MOST_DIGITS

FILES = "files"
"""Documents of a request by name, as a command line would find them in its folder."""
MOST_FILES = 32
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OUTSIDE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]|-$|(.*[/#\\])?\.\.($|[/#\\])")
"""Starts of texts that name a place of a machine: rooted, of a home, above the folder, standard input."""
CODE = "MW270"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a request asks: fields as a Python call has them, and the documents they name."""

    verb: str
    fields: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[MeshwrightError, ...] = ()
    """What is wrong already; the rest is read all the same, so that all problems come together."""
    left_out: frozenset[str] = frozenset()
    """Fields whose value was wrong."""

    def read(self) -> Any:
        """The request of the verb.

        Raises:
            InputError: anything is malformed or contradictory; all problems together.
            UnsupportedError: all that is wrong are unknown names.
        """
        gather = Gather(errors=list(self.wrong))
        found = self._attempt(gather, lambda: VERBS[self.verb].request.read(self.fields))
        job = getattr(found, "job", None)
        if self.wrong and job is not None:
            from meshwright.planning.question.job_inputs import job_inputs

            self._attempt(gather, lambda: job_inputs(job))
        gather.done()
        assert found is not None
        return found

    def _attempt(self, gather: Gather, work: Callable[[], Any]) -> Any:
        """The result of a function; without it, what is wrong with fields that were not left out is noted."""
        try:
            return work()
        except (InputError, UnsupportedError) as error:
            left_out = {*self.left_out, *(("cluster",) if "gpus" in self.left_out else ())}
            rest = [problem for problem in error.problems if problem.field not in left_out]
            if rest:
                gather.errors.append(type(error)(rest, code=error.code))
        return None


def parsed_body(content: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        InputError: it is no JSON, no object, or has numbers or texts that no field takes.
    """
    try:
        found = _READ.decode(content.decode("utf-8-sig") or "{}")
        if isinstance(found, dict):
            json.dumps(found, ensure_ascii=False).encode()
            return found
        why = f"it is a {type(found).__name__}"
    except RecursionError:
        why = "it is nested too deeply"
    except UnicodeError:
        why = "it is not UTF-8"
    except ValueError as error:
        why = str(error)
    fix = 'for example {"model": "llama-3.1-70b", "gpus": "64xH100"}'
    raise InputError(what="the body is no JSON object", why=why, fix=fix, code=CODE)


def question_of(verb: str, body: Mapping[str, Any]) -> Question:
    """What a body asks of a verb.

    Args:
        verb: one that is served.
        body: the body as `parsed_body` read it.

    Returns:
        The question, with what is wrong so far: fields that the verb does not have, values of another type, places of
        a machine.
    """
    known, gather = asked_fields(verb), Gather()
    files = dict(gather.attempt(lambda: _files(body.get(FILES, {}))) or {})
    fields: dict[str, Any] = {}
    left_out: set[str] = set()
    for name, value in body.items():
        if name == FILES or value is None:
            continue
        one = known.get(name)
        if one is None:
            unknown = unknown_name(f"field of {verb}", name[:80], [*known, FILES])
            gather.problem(replace(unknown, field=name[:80]), CODE)
        elif isinstance(value, Mapping) and takes_document(one):
            own = f"{name}.json"
            if own in files:
                why = f"the document of {name} is read as it"
                gather.problem(Problem(what=f"a file is called {own}", why=why, fix="rename it", field=FILES), CODE)
            files[own] = as_json(value)
            fields[name] = own
        else:
            problem = _type_problem(one, value) or _place_problem(one, value)
            if problem is None:
                fields[name] = value
            else:
                gather.problem(problem, CODE)
                left_out.add(name)
    return Question(verb=verb, fields=fields, files=files, wrong=tuple(gather.errors), left_out=frozenset(left_out))


def json_types(one: Field) -> tuple[str, ...]:
    """The types of JSON that a field takes, as JSON Schema calls them."""
    if isinstance(one.kind, Flag):
        return ("boolean",)
    if isinstance(one.kind, Numbers):
        return ("string", "number", "array")
    if isinstance(one.kind, Texts):
        return ("string", "array")
    if type(one.kind) is FieldKind or isinstance(one.kind, Choice):
        return ("string", "object") if takes_document(one) else ("string",)
    if one.kind.annotation in ("int", "float"):
        return ("number", "string")
    return ("string", "number") if "float" in one.kind.annotation else ("string",)


_CALLED = {
    "boolean": "true or false",
    "number": "a number",
    "string": "a text",
    "array": "a list",
    "object": "a document",
}


def _type_problem(one: Field, value: Any) -> Problem | None:
    types = json_types(one)
    if _type_of(value) in types and not (isinstance(value, list) and not all(_is_plain(part) for part in value)):
        return None
    why = f"must be {' or '.join(_CALLED[name] for name in types)}"
    return Problem(what=f"{one.name} is {shortened(value)}", why=why, fix=one.explained, field=one.name)


def _place_problem(one: Field, value: Any) -> Problem | None:
    """The problem of a text that would be looked for on this machine, or load what is there."""
    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    if one.name == "parallelizer":
        named = [part.strip() for text in texts for part in text.split(",")]
        for name in named:
            if name not in OWN_PARALLELIZERS:
                why = f"a service plans with {', '.join(OWN_PARALLELIZERS)}; others load code or start programs"
                return Problem(what=f"parallelizer is {shortened(name)}", why=why, fix="leave it out", field=one.name)
    free = type(one.kind) is not FieldKind and not isinstance(one.kind, Texts)
    if free or one.name in TEXT_OF_SCRIPT:
        return None
    for text in texts:
        if "\0" in text or (_OUTSIDE.match(text.strip()) and "\n" not in text):
            why = "a request names no file of the service's machine"
            fix = f'put the document into the request: "{FILES}": {{"NAME": "its text"}}, and name NAME'
            return Problem(what=f"{one.name} is {shortened(text)}", why=why, fix=fix, field=one.name)
    return None


def _files(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise _file_error(f"{FILES} is {shortened(given)}", "must be documents by name")
    if len(given) > MOST_FILES:
        raise _file_error(f"{FILES} has {len(given)} documents", f"at most {MOST_FILES} are read")
    found = {}
    for name, content in given.items():
        if not _FILE_NAME.fullmatch(name):
            raise _file_error(f"a file is called {shortened(name)}", "a name has letters, digits, dots, - and _ alone")
        if not isinstance(content, str | Mapping | list):
            raise _file_error(f"{name} is {shortened(content)}", "must be a text, or a document as JSON")
        found[name] = content if isinstance(content, str) else as_json(content)  # type: ignore[arg-type]
    return found


def _file_error(what: str, why: str) -> InputError:
    fix = f'for example "{FILES}": {{"cluster.toml": "[[groups]] ..."}}'
    return InputError(what=what, why=why, fix=fix, field=FILES, code=CODE)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {"number": (int, float), "string": str, "array": list, "object": Mapping}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), "null")  # type: ignore[arg-type]


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shortened(next(name for name in names if names.count(name) > 1))} is given twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number has more than {MOST_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:40]} is too large")
    return found


_READ = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number, parse_int=_whole, parse_float=_finite)
