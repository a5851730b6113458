"""Doors of programs: bodies of requests over HTTP and calls of tools, answered in this process as a worker does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from meshwright.app.verbs import VERBS
from meshwright.errors import InputError
from meshwright.fields.request import request_fields
from meshwright.service.answering import PROBLEM, Reply, problem_reply, reply_to
from meshwright.service.body import FILES, json_types, parsed_body
from meshwright.service.catalogue import SERVED, asked_fields
from tests.answers.schemas import faults
from tests.fuzz import mutate, samples
from tests.fuzz.doors import _good

NEEDED = ("model", "gpus", "plan", "first", "second", "name", "p", "m", "device", "step_time", "app", "system")
TOOLS_ASKED = ("plan", "estimate", "check", "explain", "compare", "schedule", "size", "run", "", "plan\0", "é")


def http_body(chance: Random) -> str:
    """A verb and the bytes of a body, as latin-1 so that any byte can be said."""
    verb = chance.choice(SERVED)
    content = mutate.written(chance, mutate.data(chance, _body(chance, verb)))
    if chance.random() < 0.05:
        content = chance.choice([b"", b"[]", b"\xff", b"{" * 5000, b'{"a": 1, "a": 2}', b'"x"', b"1e400", content * 2])
    return json.dumps([verb, content.decode("latin-1")])


def answered(text: str) -> None:
    """What a worker answers to a body is a document of its schema, or a problem, and never a fault of ours."""
    verb, content = json.loads(text)
    try:
        reply = reply_to(verb, parsed_body(content.encode("latin-1")), Path.cwd())
    except InputError as error:
        reply = problem_reply(error)
    _sound(reply)


def tool_call(chance: Random) -> str:
    """A tool's name and its arguments."""
    name = chance.choice(TOOLS_ASKED[:7]) if chance.random() < 0.95 else chance.choice(TOOLS_ASKED)
    arguments = _body(chance, name) if name in VERBS and name != "run" else {"model": "gpt2"}
    return json.dumps([name, mutate.data(chance, arguments)])


def called(text: str) -> None:
    """A tool's answer has a text, and data as its description promises them."""
    from meshwright.service.mcp import _called, described_tools

    name, arguments = json.loads(text)
    said, answer, failed = asyncio.run(_called(_Here(), name, arguments if isinstance(arguments, dict) else {}))  # type: ignore[arg-type]
    assert said
    assert failed == (answer is None)
    if answer is not None:
        schema = next(one["output_schema"] for one in described_tools() if one["name"] == name)
        assert set(schema["required"]) <= set(answer), f"{name} lacks {set(schema['required']) - set(answer)}"


class _Here:
    """The desk of a service without workers: this process answers."""

    async def ask(self, verb: str, body: Mapping[str, Any], *, limit_s: float = 0.0) -> Reply:
        reply = reply_to(verb, body, Path.cwd())
        _sound(reply)
        return reply


def _sound(reply: Reply) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in an answer")

    document = json.loads(reply.content, parse_constant=refuse)
    assert reply.status in (200, 400, 422), document.get("detail", "")
    assert (reply.media_type == PROBLEM) == (reply.status != 200)
    if reply.status == 200:
        assert not (wrong := list(faults(document))), wrong[0]
    else:
        assert document["detail"]
        assert document["status"] == reply.status


def _body(chance: Random, verb: str) -> dict[str, Any]:
    """Fields of a verb with values of their kinds, and documents."""
    known = asked_fields(verb)
    body: dict[str, Any] = {}
    for one in request_fields(VERBS[verb].request):
        if one.name not in known:
            continue
        if chance.random() < (0.92 if one.argument or one.name in NEEDED else 0.05):
            types = json_types(one)
            value: Any = _good(chance, one)
            if "boolean" in types:
                value = chance.choice([True, False])
            elif "number" in types and chance.random() < 0.6:
                value = chance.choice([1, 2, 8, 64, 0.5, 0, -1, 1e300])
            elif "array" in types and chance.random() < 0.4:
                value = [value, _good(chance, one)]
            elif "object" in types and chance.random() < 0.3:
                value = chance.choice([*samples.models()[:3], samples.plan_sets()[0], samples.calibration()])
            body[one.name] = value
    if "time_limit" in known:
        body["time_limit"] = 3
    if chance.random() < 0.15:
        name = chance.choice(["plans.json", "c.toml", "../x", ""])
        body[FILES] = {name: chance.choice([samples.CLUSTER, {}, 1, "x"])}
        body[chance.choice([*sorted(known), "x"])] = name
    return body
