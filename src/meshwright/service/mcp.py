"""`mcp`: verbs as tools and the library as resources, for programs that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import meshwright
from meshwright.app.requests.serve import McpRequest
from meshwright.app.verbs import VERBS, docstring_of
from meshwright.errors import InputError, Problem
from meshwright.formats.document_schemas import embedded_schema, printed_by, schemas, with_those_named
from meshwright.library import devices, models
from meshwright.records import as_json
from meshwright.service.body import parsed_body
from meshwright.service.catalogue import SERVED
from meshwright.service.desk import Desk
from meshwright.service.local import http_of, listening
from meshwright.service.openapi import request_schema, summary
from meshwright.service.serve import stated_token
from meshwright.service.settings import Settings

TOOLS = ("plan", "estimate", "check", "explain", "compare", "schedule", "size")
SCHEME = "meshwright"
INSTRUCTIONS = (
    "Plans and predicts the training of large language models on GPUs. Start with plan: a model of "
    f"{SCHEME}://models and devices such as 64xH100. Predictions carry ranges; quote them. Files are given inline."
)
_JSON = "application/json"
_SCHEMA_JSON = "application/schema+json"


def serve_mcp(request: McpRequest, tell: Callable[[str], None]) -> None:
    """Answer until the caller leaves.

    Args:
        request: the request over which transport, within which limits.
        tell: is given the address, where there is one.

    Raises:
        InputError: the port is taken, or the extra is not installed.
    """
    try:
        import mcp.server.stdio  # noqa: F401
    except ModuleNotFoundError:
        raise _needs_mcp() from None
    with contextlib.suppress(KeyboardInterrupt):
        if request.http:
            _over_http(request, tell)
        else:
            asyncio.run(_over_stdio(request))


def mcp_server(settings: Settings) -> Any:
    """The server of the SDK, with its tools and resources.

    Args:
        settings: limits of a question.
    """
    from mcp import MCPError, types
    from mcp.server.lowlevel import Server

    desk = Desk(settings)

    @asynccontextmanager
    async def life(server: Any) -> AsyncIterator[dict[str, Any]]:
        await desk.open()
        try:
            yield {}
        finally:
            await desk.close()

    async def tools(context: Any, asked: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(**one) for one in described_tools()])

    async def call(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        text, answer, failed = await _called(desk, asked.name, asked.arguments or {})
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content=answer, is_error=failed
        )

    async def resources(context: Any, asked: Any) -> types.ListResourcesResult:
        found = [types.Resource(uri=uri, name=name, mime_type=kind) for uri, name, kind in _resources()]
        return types.ListResourcesResult(resources=found)

    async def read(context: Any, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            kind, text = await _read(desk, str(asked.uri))
        except InputError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=error.render()) from None
        contents = types.TextResourceContents(uri=str(asked.uri), mime_type=kind, text=text)
        return types.ReadResourceResult(contents=[contents])

    return Server(
        "meshwright",
        version=meshwright.__version__,
        instructions=INSTRUCTIONS,
        lifespan=life,
        on_list_tools=tools,
        on_call_tool=call,
        on_list_resources=resources,
        on_read_resource=read,
    )


def described_tools() -> list[dict[str, Any]]:
    """The tools: their fields with types, defaults and help, and the schemas of their answers."""
    return [
        {
            "name": name,
            "description": summary(name)[1],
            "input_schema": request_schema(name),
            "output_schema": _answer_schema(name),
        }
        for name in TOOLS
    ]


def _answer_schema(tool: str) -> dict[str, Any]:
    """The published schemas of a tool's answers in one; those of documents within them are resources."""
    names = printed_by(tool)
    inner = [name for name in with_those_named(names) if name not in names]
    kept = {name: embedded_schema(name, lambda other: f"#/$defs/{other}") for name in names}
    held = {name: _elsewhere(name) for name in inner}
    alone: dict[str, Any] = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    alone = kept[names[0]] if len(names) == 1 else alone
    named = {"schema": {"type": "string", "description": "Names the document."}}
    outer = {"type": "object", "properties": named, "required": ["schema"]}
    return {**outer, **alone, "$defs": {**alone.get("$defs", {}), **held, **(kept if len(names) > 1 else {})}}


def _elsewhere(name: str) -> dict[str, Any]:
    """Kind of a document within an answer and where its schema is: that of a plan file alone is 64 kB."""
    title = schemas()[name]["title"]
    return {
        "type": "object",
        "description": f"{title}, as the resource {SCHEME}://schemas/{name} says",
        "properties": {"schema": {"const": title}},
        "required": ["schema"],
    }


async def _called(desk: Desk, name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None, bool]:
    """A tool's answer as text, as data, and whether it is an error."""
    if name not in TOOLS:
        return f"there is no tool {name[:80]!r}; there are {', '.join(TOOLS)}", None, True
    try:
        body = parsed_body(json.dumps(arguments).encode())
    except InputError as error:
        return error.render(), None, True
    reply = await desk.ask(name, body)
    answer: dict[str, Any] = json.loads(reply.content)
    if reply.status != 200:
        return str(answer["detail"]), None, True
    verdict = answer.get("verdict")
    text = verdict.get("text") if isinstance(verdict, dict) else None
    return str(text or answer.get("text") or answer["schema"]), answer, False


def _resources() -> list[tuple[str, str, str]]:
    """Address, name and type of each."""
    found = [(f"{SCHEME}://models", "all models", _JSON), (f"{SCHEME}://gpus", "all devices", _JSON)]
    found += [(f"{SCHEME}://models/{name}", name, _JSON) for name in models.names()]
    found += [(f"{SCHEME}://gpus/{name}", name, _JSON) for name in devices.device_names()]
    titles = {name: schema["title"] for name, schema in schemas().items()}
    found += [(f"{SCHEME}://schemas/{name}", f"schema of {title}", _SCHEMA_JSON) for name, title in titles.items()]
    return found + [(f"{SCHEME}://docs/{verb.replace(' ', '-')}", f"help of {verb}", "text/plain") for verb in SERVED]


async def _read(desk: Desk, uri: str) -> tuple[str, str]:
    """Type and text of a resource.

    Raises:
        InputError: there is none at this address.
    """
    kind, _, name = uri.removeprefix(f"{SCHEME}://").partition("/")
    helped = {verb.replace(" ", "-"): verb for verb in SERVED}
    if kind == "docs" and name in helped:
        return "text/plain", docstring_of(VERBS[helped[name]].request)
    if kind == "schemas" and name in schemas():
        return _SCHEMA_JSON, as_json(schemas()[name])
    if kind in ("models", "gpus"):
        field = {"models": "model", "gpus": "name"}[kind]
        reply = await desk.ask(f"{kind} show" if name else f"{kind} list", {field: name} if name else {})
        if reply.status == 200:
            return _JSON, reply.content.decode()
    why = f"there are {SCHEME}://models/NAME, {SCHEME}://gpus/NAME, {SCHEME}://schemas/NAME and {SCHEME}://docs/VERB"
    raise InputError(what=f"nothing is at {uri[:120]!r}", why=why, fix="list the resources", code="MW275")


async def _over_stdio(request: McpRequest) -> None:
    from mcp.server.stdio import stdio_server

    server = mcp_server(_settings(request))
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def _over_http(request: McpRequest, tell: Callable[[str], None]) -> None:
    import uvicorn

    listener = listening(request.port, request.host)
    settings = _settings(request)
    app = mcp_server(settings).streamable_http_app(host=request.host)
    config = http_of(_behind_token(app, settings.token))
    tell(f"http://{request.host}:{listener.getsockname()[1]}/mcp")
    uvicorn.Server(config).run(sockets=[listener])


def _behind_token(app: Any, token: str | None) -> Any:
    """An application that answers only those who show the token."""
    if token is None:
        return app

    async def asked(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        shown = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if scope["type"] != "lifespan" and not hmac.compare_digest(shown, token.encode()):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"the service asks for a token\n"})
            return
        await app(scope, receive, send)

    return asked


def _settings(request: McpRequest) -> Settings:
    return Settings(
        host=request.host,
        workers=request.workers,
        time_limit_s=request.time_limit,
        memory_limit_bytes=request.memory_limit,
        token=stated_token(request),
    )


def _needs_mcp() -> InputError:
    """The error of a package that was installed without the SDK."""
    problem = Problem(
        what="the protocol needs its SDK",
        why="it is not installed with meshwright alone",
        fix="pip install 'meshwright[mcp]'",
    )
    return InputError(problem, code="MW241")
