"""`meshwright mcp` as the SDK's own client sees it, over stdin and stdout and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from mcp import Client, MCPError, StdioServerParameters

import meshwright as mw
from meshwright.formats.document_schemas import printed_by
from meshwright.service.mcp import TOOLS
from tests.service.conftest import free_port

COMMAND = StdioServerParameters(command=sys.executable, args=["-m", "meshwright", "mcp"], env=dict(os.environ))
ESTIMATE = {"model": "llama-3.1-8b", "plan": "tp2.mbs1.z1", "gpus": "8xH100"}


def asked(work: Callable[[Client], Awaitable[None]], server: Any = COMMAND) -> None:
    """Let a client work with a server that it starts."""

    async def session() -> None:
        async with Client(server) as client:
            await work(client)

    asyncio.run(session())


def test_tools_answer_with_the_data_of_the_command() -> None:
    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tuple(tools) == TOOLS
        field = tools["plan"].input_schema["properties"]["seq_len"]
        assert field["description"].startswith("Sequence length; 32k is 32,768.")
        estimate = await client.call_tool("estimate", ESTIMATE)
        known = mw.estimate("llama-3.1-8b", "tp2.mbs1.z1", gpus="8xH100").to_dict()
        assert estimate.structured_content == json.loads(json.dumps(known))
        assert estimate.content[0].text == known["verdict"]["text"]
        conforms("estimate", estimate, tools)
        plans = (
            await client.call_tool("plan", {"model": "gpt2", "gpus": "2xH100", "global_batch": 8})
        ).structured_content
        for name, arguments in {
            "check": ESTIMATE,
            "explain": {"plan": plans},
            "compare": {"first": "p.json#1", "second": "p.json#2", "files": {"p.json": plans}},
            "schedule": {"name": "1f1b", "p": 2, "m": 4},
            "plan": {"model": "gpt2", "gpus": "1xH100,1xA100-80", "global_batch": 8},
            "size": {"model": "gpt2", "device": "H100", "step_time": 10, "global_batch": 8},
        }.items():
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result.content
            conforms(name, result, tools)

    asked(work)


def conforms(name: str, result: Any, tools: dict[str, Any]) -> None:
    """Hold an answer against what the tool promised, as the SDK's client does when it knows the promise."""
    schema = tools[name].output_schema
    Draft202012Validator(schema).validate(result.structured_content)
    named = result.structured_content["schema"]
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate({"schema": named})
    assert named.removeprefix("meshwright.").replace("/", "-") in printed_by(name)


def test_errors_say_all_that_is_wrong_and_resources_are_read() -> None:
    async def work(client: Client) -> None:
        wrong = await client.call_tool("plan", {"model": "/etc/passwd", "gpus": "8xH1000", "seq": 1})
        assert wrong.is_error
        said = wrong.content[0].text
        assert all(word in said for word in ("/etc/passwd", "'H1000'", "'seq'"))
        uris = {str(one.uri) for one in (await client.list_resources()).resources}
        assert {"meshwright://models", "meshwright://gpus/H100", "meshwright://docs/plan"} <= uris
        read = {
            "meshwright://models/gpt2": "gpt2",
            "meshwright://docs/plan": "Args:",
            "meshwright://schemas/plan-1": '"title": "meshwright.plan/1"',
        }
        for uri, text in read.items():
            assert text in (await client.read_resource(uri)).contents[0].text
        with pytest.raises(MCPError, match="nothing is at"):
            await client.read_resource("meshwright://models/../../etc/passwd")

    asked(work)


def test_over_http() -> None:
    command = [sys.executable, "-m", "meshwright", "mcp", "--http", "--quiet", "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()

        async def work(client: Client) -> None:
            assert not (await client.call_tool("estimate", ESTIMATE)).is_error

        asked(work, url)
        server.terminate()
