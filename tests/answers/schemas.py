"""The published schemas of what `--json` prints, one a document: `python -m tests.answers.schemas [plans]`.

Plan files are read by records, and theirs is made of those. The others are made of answers to the questions of this
folder: a key has the types that it had in them, and is required where every object of the place had it. Keys may be
added within a version of a document, so that none is forbidden. Every answer that a test or the fuzzer gets is then
held against them.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.formats import document_schemas
from meshwright.formats.document_schemas import PRINTED
from meshwright.formats.plan_json import PLAN_SCHEMA, plan_schemas
from meshwright.formats.writing import write_file

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = document_schemas.FOLDER
PAGE = DOCS / "json.md"
START, END = "<!-- schemas: make schemas -->\n", "<!-- end of schemas -->\n"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MORE = (
    "report gpt2 --gpus 4xH100 --gbs 16 -o page.html",
    "plan --replan-from dense.plans#1 --lost 2-3",
    "compare dense.plans#1 --with-run steps.csv",
    "plan gpt2 --gpus 2xH100,2xA100-80 --gbs 16 --objective energy",
)
"""Lines whose documents no question prints."""
NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
LISTS = {"type": "array", "items": {"type": "object"}}
TEXTS = {"type": "array", "items": {"type": "string"}}


def _stated(**keys: Any) -> dict[str, Any]:
    return {"type": "object", "properties": keys, "required": sorted({"schema", *keys})}


FIXED: dict[str, dict[str, Any]] = {
    "meshwright.doctor/1": _stated(
        version={"type": "string"},
        python={"type": "string"},
        platform={"type": "string"},
        core={"type": "object", "additionalProperties": {"type": "string"}},
        optional={"type": "object", "additionalProperties": {"type": ["null", "string"]}},
        library={"type": "object", "additionalProperties": {"type": "integer"}},
        checks=LISTS,
        timing=NUMBERS,
        ok={"type": "boolean"},
    ),
    "meshwright.web/1": _stated(url={"type": "string"}),
    "meshwright.serve/1": _stated(url={"type": "string"}),
    "meshwright.profile/1": _stated(
        machine={"type": "object"},
        base={"type": ["string", "null"]},
        launch_s={"type": "number"},
        peak_flop_per_s=NUMBERS,
        memory_bytes_per_s={"type": "number"},
        curves=LISTS,
        device_file={"type": "string"},
        timing=NUMBERS,
    ),
    "meshwright.xray/1": _stated(
        title={"type": "string"},
        text={"type": "string"},
        stage={"type": "integer"},
        framework={"type": "string"},
        rank={"type": "integer"},
        world={"type": "integer"},
        products=LISTS,
        collectives=LISTS,
        differences=TEXTS,
        warnings=TEXTS,
    ),
}
"""Of verbs that do not end by themselves, and of those that look at this machine or need a framework."""
MADE_BY = {
    "type": "object",
    "description": "What made the answer.",
    "properties": {
        "version": {"type": "string"},
        "commit": {"type": ["string", "null"], "description": "Null where neither build nor installer wrote it down."},
        "calibration": {
            "type": ["object", "null"],
            "description": "Of the prices; null where nothing is priced.",
            "properties": {"date": {"type": "string"}, "hash": {"type": "string", "pattern": "^sha256:"}},
            "required": ["date", "hash"],
        },
        "command": {"type": "string", "description": "Asks the same again; only where one command does."},
    },
    "required": ["version", "commit", "calibration"],
}
UNSIGNED = ("plan", "error", "calibration", "profile", "serve", "web", "validation")
"""Documents that are no answers with `made_by`: files, errors, what names its own source."""
WITHIN_OTHERS = ("schedule",)
"""Documents that stand within others, too, which then say what made them."""
PRINTED_BY = {name: {name.removeprefix("meshwright.").partition("/")[0]} for name in FIXED}
SEEN_OFTEN = 12
"""Objects of a place from which on what all of them have is required, and what none of them lacks is never null."""
DRAWN = 40
"""Inputs of each door of the fuzzer that are asked besides: real logs and scripts say less than a question does."""
DATA = {
    "core",
    "looked_at",
    "numbers",
    "optional",
    "peak_flop_per_s",
    "point",
    "predicted_by_kind_s",
    "pruned",
    "seen",
    "spread",
    "values",
}
"""Keys of objects whose own keys are data: number formats, packages, rules, axes."""
NULLABLE = {"place", "post_mortem.capacity_bytes", "tuning.lora"}
"""Keys, of any object or of one, that may be null though no question shows it: options that came from no line of a
script, memory that a log does not state, adapters where layers are frozen without any."""
OF_A_KIND = {"ffn_hidden", "gated", "head_dim", "heads", "kv_heads", "window"}
"""Keys of layers that have them, where others of the same list need not."""
DIVIDED = re.compile(
    r"optim|^cut$|_space|_size$|flops$|_accessed$|_req$|^(?:weight|activation)(?:_grad)?$|_(?:bytes|flop|s|w|j)$"
)
"""Keys of amounts, often shared out among devices: whole in most answers, but not in all."""
ERROR = "meshwright.error/1"
KEY = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(slots=True)
class Shape:
    """What values of one place of a document look like."""

    types: set[str] = field(default_factory=set)
    objects: int = 0
    keys: dict[str, Shape] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    items: Shape | None = None
    documents: set[str] = field(default_factory=set)
    """Schemas of whole documents that stand there."""

    def add(self, value: Any, *, whole: bool = False) -> Iterator[Mapping[str, Any]]:
        """Take in a value; documents within it are given back, as they have schemas of their own."""
        match value:
            case None:
                self.types.add("null")
            case bool():
                self.types.add("boolean")
            case int():
                self.types.add("integer")
            case float():
                self.types.add("number")
            case str():
                self.types.add("string")
            case list():
                self.types.add("array")
                for one in value:
                    self.items = self.items or Shape()
                    yield from self.items.add(one)
            case {"schema": str(name)} if not whole:
                self.documents.add(name)
                yield value
            case _:
                self.types.add("object")
                self.objects += 1
                for key, one in value.items():
                    self.seen[key] = self.seen.get(key, 0) + 1
                    yield from self.keys.setdefault(key, Shape()).add(one)

    def schema(self, name: str = "", *, top: bool = False) -> dict[str, Any]:
        """As JSON Schema.

        Args:
            name: the key it stands under.
            top: it is a whole document.
        """
        ways = [{"$ref": file_of(name)} for name in sorted(self.documents)]
        types = {"number" if one == "integer" and DIVIDED.search(name) else one for one in self.types}
        types -= {"integer"} if "number" in types else set()
        if types and not (types == {"null"} and not ways):
            ways.append({"type": sorted(types) if len(types) > 1 else next(iter(types)), **self._within(name, top)})
        return {} if not ways else ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _within(self, name: str, top: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.items is not None:
            found["items"] = self.items.schema()
        always = [key for key, count in self.seen.items() if count == self.objects]
        named = top or (all(KEY.fullmatch(key) for key in self.keys) and (always or self.objects < SEEN_OFTEN))
        if self.keys and named and name not in DATA:
            found["properties"] = {key: shape.schema(key) for key, shape in sorted(self.keys.items())}
            if top or self.objects >= SEEN_OFTEN:
                found["required"] = sorted(set(always) - OF_A_KIND)
            few = self.objects < SEEN_OFTEN
            for key, one in found["properties"].items():
                if few or NULLABLE & {key, f"{name}.{key}"}:
                    found["properties"][key] = _or_null(one)
        elif self.keys:
            found["additionalProperties"] = _one_of([shape.schema() for shape in self.keys.values()])
        return found


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """What a schema takes, or null: of a place that was seen too seldom to say that there is always something."""
    if "type" not in schema:
        return schema if not schema or "anyOf" not in schema else {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": sorted({*types, "null"})}


def _one_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """What any of several schemas takes, where keys are data and not names of ours."""
    different = {json.dumps(one, sort_keys=True): one for one in schemas}
    if json.dumps({"type": "number"}) in different:
        different.pop(json.dumps({"type": "integer"}), None)
    return next(iter(different.values())) if len(different) == 1 else {"anyOf": list(different.values())}


def file_of(name: str) -> str:
    """`meshwright.plan-set/1` is in `plan-set-1.json`."""
    return name.removeprefix("meshwright.").replace("/", "-") + ".json"


def schemas_of(documents: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Schemas by name, from documents that were printed."""
    shapes: dict[str, Shape] = {}
    waiting = list(documents)
    while waiting:
        document = waiting.pop()
        waiting += shapes.setdefault(document["schema"], Shape()).add(document, whole=True)
    found = {name: shape.schema(top=True) for name, shape in shapes.items()} | FIXED
    found[PLAN_SCHEMA] = plan_schemas()
    return {name: _published(name, schema) for name, schema in sorted(found.items())}


def _published(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    named = {"$schema": DIALECT, "$id": file_of(name), "title": name, **schema}
    if "properties" in schema:
        named["properties"] = {**schema["properties"], "schema": {"const": name}}
        kind = name.removeprefix("meshwright.").partition("/")[0]
        if kind not in UNSIGNED:
            named["properties"]["made_by"] = MADE_BY
        if kind not in (*UNSIGNED, *WITHIN_OTHERS):
            named["required"] = sorted({*schema.get("required", ()), "made_by"})
    return named


@cache
def validator_of(name: str) -> Any:
    """What holds documents of a schema against it; None where none is published."""
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    if not (FOLDER / file_of(name)).is_file():
        return None
    files = {path.name: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}
    registry: Any = Registry().with_resources((key, Resource.from_contents(one)) for key, one in files.items())
    return Draft202012Validator(files[file_of(name)], registry=registry)


def faults(document: Mapping[str, Any]) -> list[str]:
    """Where a document is not as its schema says.

    Args:
        document: as `--json` prints it.
    """
    checks = validator_of(document["schema"])
    if checks is None:
        return [f"{document['schema']} has no published schema"]
    found = sorted(checks.iter_errors(document), key=lambda error: error.json_path)
    return [f"{document['schema']} at {error.json_path}: {error.message[:200]}" for error in found]


def page_of(names: Iterable[str], verbs: Mapping[str, set[str]]) -> str:
    """The table of the page: document, schema, and the verbs that print it."""
    rows = ["| document | schema | printed by |", "|---|---|---|"]
    for name in names:
        by = "all" if name == ERROR else ", ".join(f"`{verb}`" for verb in sorted(verbs.get(name, ())))
        rows.append(f"| `{name}` | [{file_of(name)}](schemas/{file_of(name)}) | {by or 'within others'} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Ask everything, and write schemas and page anew."""
    from tests.answers.ask import printed
    from tests.answers.questions import QUESTIONS, verb_of

    documents: list[Mapping[str, Any]] = []
    verbs = {name: set(by) for name, by in PRINTED_BY.items()}
    with tempfile.TemporaryDirectory() as folder:
        for line in (*QUESTIONS, *MORE):
            for document in printed(line, Path(folder)):
                documents.append(document)
                verbs.setdefault(document["schema"], set()).add(verb_of(line))
            print(f"\r{len(documents):5} documents", end="", file=sys.stderr)
    documents += drawn()
    write(schemas_of(documents), verbs)


def write_plans() -> None:
    """The schema of plan files alone, which a change of their records changes."""
    schema = _published(PLAN_SCHEMA, plan_schemas()) | {PRINTED: []}
    text = json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False)
    write_file(FOLDER / file_of(PLAN_SCHEMA), text + "\n")


def drawn() -> list[Mapping[str, Any]]:
    """Documents that inputs of the fuzzer's doors are answered with."""
    from random import Random
    from unittest.mock import patch

    from tests.fuzz import cases, doors

    documents: list[Mapping[str, Any]] = []
    with patch.object(cases, "faults", lambda document: documents.append(document) or []):
        for door in doors.DOORS:
            for number in range(DRAWN):
                cases.fault_of(door.draw(Random(f"schemas/{door.name}/{number}")), 20.0)
    return documents


def write(schemas: Mapping[str, dict[str, Any]], verbs: Mapping[str, set[str]]) -> None:
    """The files, and the table of the page."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name, schema in schemas.items():
        schema = schema | {PRINTED: sorted(verbs.get(name, ()))}
        write_file(FOLDER / file_of(name), json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    write_file(PAGE, before + START + page_of(schemas, verbs) + END + rest.partition(END)[2])


if __name__ == "__main__":
    write_plans() if sys.argv[1:] == ["plans"] else main()
