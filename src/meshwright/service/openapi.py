"""The service as OpenAPI says it: every field of a request with its type, unit, default, help and examples."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import meshwright
from meshwright.app.verbs import VERBS
from meshwright.fields.field import Field
from meshwright.fields.kinds import Choice, Whole
from meshwright.formats.document_schemas import embedded_schema, printed_by, with_those_named
from meshwright.service.answering import JSON, PROBLEM
from meshwright.service.body import FILES, json_types
from meshwright.service.catalogue import LISTS, SERVED, VERSION, asked_fields, path_of

_TEXT = {"type": ["string", "null"]}
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457, with every problem of the request; the rest is what `--json` prints.",
    "required": ["type", "title", "status", "code", "problems"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "examples": ["MW203"]},
        "exit_code": {"type": "integer"},
        "schema": {"type": "string"},
        "see": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Addresses that list the names there are.",
        },
        "problems": {
            "type": "array",
            "items": {"type": "object", "properties": {"field": _TEXT, "what": _TEXT, "why": _TEXT, "fix": _TEXT}},
        },
    },
}
_JOB = {
    "type": "object",
    "required": ["id", "verb", "state", "links"],
    "properties": {
        "id": {"type": "string"},
        "verb": {"type": "string"},
        "state": {"enum": ["queued", "running", "done", "failed", "cancelled"]},
        "attempts": {"type": "integer"},
        "elapsed_s": {"type": "number"},
        "progress": {"type": ["object", "null"]},
        "links": {"type": "object"},
    },
}
_FILES = {
    "type": "object",
    "description": "Documents by name, as a command line finds them in its folder: texts, or JSON. Fields name them.",
    "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]},
}


def request_schema(verb: str) -> dict[str, Any]:
    """The JSON Schema of a verb's requests."""
    fields = asked_fields(verb)
    found = {
        "type": "object",
        "additionalProperties": False,
        "properties": {**{name: field_schema(one) for name, one in fields.items()}, FILES: _FILES},
    }
    required = [name for name, one in fields.items() if one.required is not None]
    return found | ({"required": required} if required else {})


def field_schema(one: Field) -> dict[str, Any]:
    """The JSON Schema of a field."""
    types = json_types(one)
    found: dict[str, Any] = {"description": one.explained}
    if isinstance(one.kind, Choice):
        found["enum"] = list(one.kind.names)
    else:
        found["type"] = types[0] if len(types) == 1 else list(types)
    if "array" in types:
        found["items"] = {"type": ["string", "number"]}
    if isinstance(one.kind, Whole):
        found |= {"minimum": one.kind.low, "maximum": one.kind.high}
    if isinstance(one.default, bool | int | float | str):
        found["default"] = one.default
    if one.placeholder:
        found["x-placeholder"] = one.placeholder
    return found


@cache
def openapi() -> dict[str, Any]:
    """The whole service."""
    paths: dict[str, Any] = {
        "/healthz": {"get": _get("Whether questions are answered.")},
        "/metrics": {"get": {"summary": "Counts and times.", "responses": {"200": {"description": "Prometheus text"}}}},
        f"/{VERSION}": {"get": _get("What can be asked, and what cannot.")},
        f"/{VERSION}/jobs": {"post": _job_post()},
        f"/{VERSION}/jobs/{{id}}": {
            "get": _get("How far a job is.", _ref("Job"), ("id",)),
            "delete": _get("Stop a job.", _ref("Job"), ("id",)),
        },
        f"/{VERSION}/jobs/{{id}}/answer": {
            "get": _get("The answer of a job that is done.", _any_of(_documents()), ("id",))
        },
        f"/{VERSION}/jobs/{{id}}/events": {
            "get": {
                "summary": "What becomes of a job, as server-sent events.",
                "parameters": _parameters(("id",)),
                "responses": {"200": {"description": "events", "content": {"text/event-stream": {}}}},
            }
        },
    }
    for verb in SERVED:
        paths[f"/{VERSION}/{path_of(verb)}"] = {"post": _post(verb)}
    for kind, verb in LISTS.items():
        paths[f"/{VERSION}/{kind}"] = {"get": _get(f"All {kind} with a name.", answers_of(verb))}
        one = answers_of(f"{kind} show")
        paths[f"/{VERSION}/{kind}/{{name}}"] = {"get": _get(f"One of the {kind}.", one, ("name",))}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "meshwright",
            "version": meshwright.__version__,
            "description": "Questions as the command line asks them; answers equal to its `--json`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Problem": _PROBLEM,
                "Job": _JOB,
                **{_name(verb): request_schema(verb) for verb in SERVED},
                **{name: embedded_schema(name, _place) for name in with_those_named(_documents())},
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def summary(verb: str) -> tuple[str, str]:
    """What a verb does in a sentence, and in full."""
    text = inspect.cleandoc(VERBS[verb].request.__doc__ or "").replace("\b\n", "")
    return text.partition("\n\n")[0], text


def _post(verb: str) -> dict[str, Any]:
    first, whole = summary(verb)
    asked = VERBS[verb].request
    lines = "\n".join(f"    meshwright {line}" for line in asked.examples)
    return {
        "operationId": _name(verb),
        "summary": first,
        "description": f"{whole}\n\nAs a command:\n\n{lines}",
        "requestBody": {"required": True, "content": {JSON: {"schema": _ref(_name(verb))}}},
        "responses": {
            "200": {"description": asked.returns or "The answer.", "content": {JSON: {"schema": answers_of(verb)}}},
            "304": {"description": "The answer is the one that If-None-Match names."},
            "408": {"description": "It took longer than a request may; ask it as a job."},
            **_problems(),
        },
    }


def _job_post() -> dict[str, Any]:
    schema = {"type": "object", "required": ["verb"], "properties": {"verb": {"enum": list(SERVED)}}}
    return {
        "summary": "Ask a question that may take long.",
        "description": "The fields of the verb, and `verb`.",
        "requestBody": {"required": True, "content": {JSON: {"schema": schema}}},
        "responses": {"202": {"description": "accepted", "content": {JSON: {"schema": _ref("Job")}}}, **_problems()},
    }


def _get(text: str, schema: dict[str, Any] | None = None, parameters: tuple[str, ...] = ()) -> dict[str, Any]:
    content = {JSON: {"schema": schema or {"type": "object"}}}
    return {
        "summary": text,
        "parameters": _parameters(parameters),
        "responses": {"200": {"description": text, "content": content}, **_problems()},
    }


def _parameters(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _problems() -> dict[str, Any]:
    return {"default": {"description": "All that is wrong.", "content": {PROBLEM: {"schema": _ref("Problem")}}}}


def answers_of(verb: str) -> dict[str, Any]:
    """The schema of a verb's answers: the published ones of the documents that it prints."""
    return _any_of(printed_by(verb))


def _documents() -> tuple[str, ...]:
    """Names of all documents that the service answers with."""
    return tuple(dict.fromkeys(name for verb in SERVED for name in printed_by(verb)))


def _any_of(names: tuple[str, ...]) -> dict[str, Any]:
    references = [_ref(name) for name in names]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _place(name)}


def _place(name: str) -> str:
    return f"#/components/schemas/{name}"


def _name(verb: str) -> str:
    return verb.replace(" ", "_")
