"""The service as an application: questions in, answers equal to `--json` out."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.routing import Match, Route

from meshwright.app.requests.serve import is_own_address
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, nearest
from meshwright.records import as_json
from meshwright.service.answering import JSON, UNSUPPORTED, Reply, problem_reply
from meshwright.service.body import parsed_body
from meshwright.service.catalogue import LISTS, REFUSED, SERVED, VERSION, path_of, verb_at
from meshwright.service.desk import Desk
from meshwright.service.job_queue import CANCELLED, DONE, MOST_OPEN
from meshwright.service.jobs import Jobs
from meshwright.service.meters import Meters
from meshwright.service.openapi import openapi
from meshwright.service.replies import Replies
from meshwright.service.settings import Settings

DEFAULTS = Settings()
OPEN_TO_ALL = ("/healthz",)
"""Addresses that need no token: a probe has none."""
Door = Callable[[Request], Awaitable[Response]]


class TooLargeError(Exception):
    """A body is above the limit."""


def create_app(settings: Settings = DEFAULTS) -> FastAPI:
    """The service.

    Args:
        settings: its limits, and who may ask it.
    """
    service = Service(settings)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await service.desk.open()
        await service.jobs.open()
        try:
            yield
        finally:
            await service.jobs.close()
            await service.desk.close()

    app = FastAPI(title="meshwright", lifespan=life, openapi_url=None)
    app.state.service = service
    routes: list[tuple[str, str, str, Door]] = [
        ("GET", "/healthz", "health", service.health),
        ("GET", "/metrics", "metrics", service.metrics),
        ("GET", "/openapi.json", "openapi", service.described),
        ("GET", f"/{VERSION}", "verbs", service.verbs),
        ("POST", f"/{VERSION}/jobs", "jobs", service.add_job),
        ("GET", f"/{VERSION}/jobs/{{name}}", "jobs", service.job),
        ("DELETE", f"/{VERSION}/jobs/{{name}}", "jobs", service.cancel_job),
        ("GET", f"/{VERSION}/jobs/{{name}}/answer", "jobs", service.job_answer),
        ("GET", f"/{VERSION}/jobs/{{name}}/events", "jobs", service.job_events),
        *(("POST", f"/{VERSION}/{path_of(verb)}", verb, service.asks(verb)) for verb in SERVED),
    ]
    for kind, verb in LISTS.items():
        routes += [
            ("GET", f"/{VERSION}/{kind}", verb, service.shows(verb)),
            ("GET", f"/{VERSION}/{kind}/{{name}}", f"{kind} show", service.shows(f"{kind} show")),
        ]
    for method, path, name, door in routes:
        app.add_route(path, service.guarded(name, door), methods=[method])
    every = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
    app.add_route("/{path:path}", service.guarded("unknown", service.unknown), methods=every)
    return app


class Service:
    """What answers at each address."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.desk = Desk(settings)
        self.jobs = Jobs(self.desk)
        self.replies = Replies()
        self.meters = Meters(self.desk, self.jobs)
        self._most = int(settings.body_limit_bytes)
        self._token = settings.token.encode() if settings.token else None
        self._own = is_own_address(settings.host)

    def guarded(self, name: str, door: Door) -> Door:
        """A door that is counted, and shut to those who may not ask."""

        async def enter(request: Request) -> Response:
            started = time.perf_counter()
            refused = self._refusal(request)
            asks = {"WWW-Authenticate": "Bearer"} if refused and refused.status == 401 else {}
            response = sent(refused, asks) if refused else await self._entered(request, door)
            self.meters.answered(name, response.status_code, time.perf_counter() - started)
            return response

        return enter

    def asks(self, verb: str) -> Door:
        """The door of a verb."""

        async def ask(request: Request) -> Response:
            return await self._answer(request, verb, parsed_body(await request_body(request, self._most)))

        return ask

    def shows(self, verb: str) -> Door:
        """The door of a list, or of one entry of it."""
        field = {"models show": "model", "gpus show": "name"}.get(verb)

        async def show(request: Request) -> Response:
            named = {field: request.path_params["name"]} if field else {}
            return await self._answer(request, verb, named, entry=bool(field))

        return show

    async def health(self, request: Request) -> Response:
        """Whether questions are answered."""
        quick, searches = self.desk.quick.alive, self.desk.searches.alive
        found = {"status": "ok" if quick and searches else "starting", "workers": {"quick": quick, "search": searches}}
        return Response(as_json(found), 200 if quick and searches else 503, media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """Counts and times for Prometheus."""
        text, media_type = self.meters.text()
        return Response(text, headers={"Content-Type": media_type})

    async def described(self, request: Request) -> Response:
        """Every address in OpenAPI."""
        return Response(as_json(openapi()), media_type=JSON)

    async def verbs(self, request: Request) -> Response:
        """What can be asked, and what cannot."""
        served = {verb: f"/{VERSION}/{path_of(verb)}" for verb in SERVED}
        document = {"schema": "meshwright.service/1", "verbs": served, "refused": REFUSED, "openapi": "/openapi.json"}
        return Response(as_json(document), media_type=JSON)

    async def unknown(self, request: Request) -> Response:
        """Why there is nothing at an address."""
        version, _, path = request.path_params["path"].partition("/")
        if version != VERSION:
            problem = _nothing(request.url.path, f"the version served is {VERSION}", f"ask below /{VERSION}/")
            return sent(problem_reply(UnsupportedError(problem, code="MW275"), 404, versions=[VERSION]))
        if taken := _methods_at(request):
            methods = ", ".join(taken)
            problem = _nothing(f"{request.method} {request.url.path}", f"it takes {methods}", f"ask with {methods}")
            return sent(problem_reply(InputError(problem, code="MW275"), 405), {"Allow": methods})
        verb = verb_at(path)
        if verb in REFUSED:
            problem = _nothing(request.url.path, REFUSED[verb], f"ask the command: meshwright {verb}")
            return sent(problem_reply(UnsupportedError(problem, code="MW276"), 403))
        close = nearest(verb[:80], SERVED)
        fix = f"did you mean /{VERSION}/{path_of(close[0])}?" if close else f"GET /{VERSION} lists what can be asked"
        problem = _nothing(request.url.path, "no verb is called so", fix)
        return sent(problem_reply(UnsupportedError(problem, code="MW275"), 404, verbs=list(SERVED)))

    async def add_job(self, request: Request) -> Response:
        """Accept a question that may take long."""
        body = parsed_body(await request_body(request, self._most))
        verb = body.pop("verb", None)
        if verb not in SERVED:
            what = "verb is missing" if verb is None else f"verb is {str(verb)[:80]!r}"
            why = REFUSED.get(str(verb), f"must be one of {', '.join(SERVED)}")
            problem = Problem(what=what, why=why, fix='for example "verb": "plan"', field="verb")
            return sent(problem_reply(InputError(problem, code="MW276")))
        job = await self.jobs.add(verb, body)
        if job is None:
            problem = Problem(what="too many jobs wait", why=f"at most {MOST_OPEN} are accepted", fix="ask again later")
            return sent(problem_reply(MeshwrightError(problem, code="MW273"), 503), {"Retry-After": "10"})
        state = self.jobs.state(job)
        return Response(as_json(state), 202, {"Location": state["links"]["self"]}, media_type=JSON)

    async def job(self, request: Request) -> Response:
        """How far a job is."""
        found = self.jobs.queue.get(request.path_params["name"])
        return _no_job() if found is None else Response(as_json(self.jobs.state(found)), media_type=JSON)

    async def cancel_job(self, request: Request) -> Response:
        """Stop a job."""
        await self.jobs.cancel(request.path_params["name"])
        return await self.job(request)

    async def job_answer(self, request: Request) -> Response:
        """The answer of a job that is done, or its error."""
        found = self.jobs.queue.get(request.path_params["name"])
        if found is None:
            return _no_job()
        if found.reply is None:
            listen = f"listen at /{VERSION}/jobs/{found.id}/events until it is {DONE}"
            fix = "add the job again" if found.state == CANCELLED else listen
            problem = Problem(what=f"the job is {found.state}", why="it has no answer", fix=fix)
            return sent(problem_reply(MeshwrightError(problem, code="MW277"), 409))
        return sent(found.reply)

    async def job_events(self, request: Request) -> Response:
        """What becomes of a job, as it happens."""
        name = request.path_params["name"]
        if self.jobs.queue.get(name) is None:
            return _no_job()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self.jobs.events(name), media_type="text/event-stream", headers=headers)

    async def _answer(self, request: Request, verb: str, body: Mapping[str, Any], *, entry: bool = False) -> Response:
        tag = self.replies.tag(verb, body)
        headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
        if f'"{tag}"' in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        reply = self.replies.get(tag)
        if reply is None:
            reply = await self.desk.ask(verb, body)
            self.replies.keep(tag, reply)
        else:
            self.meters.repeated(verb)
        if entry and reply.status == UNSUPPORTED:
            reply = reply.not_there
        return sent(reply, headers if reply.status == 200 else {})

    async def _entered(self, request: Request, door: Door) -> Response:
        try:
            return await door(request)
        except TooLargeError:
            what, why = "the body is too large", f"at most {self._most:,} bytes are read"
            problem = Problem(what=what, why=why, fix="leave out what the question does not need")
            return sent(problem_reply(InputError(problem, code="MW271"), 413), {"Connection": "close"})
        except MeshwrightError as error:
            return sent(problem_reply(error))

    def _refusal(self, request: Request) -> Reply | None:
        """The reply to one who may not ask."""
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if self._own and not is_own_address(host.strip("[]")):
            why = "the service accepts requests by names of this machine alone, to keep web pages of other sites out"
            problem = Problem(what=f"the request is to {host[:80]!r}", why=why, fix="ask 127.0.0.1")
            return problem_reply(MeshwrightError(problem, code="MW278"), 421)
        origin = request.headers.get("origin")
        if self._own and origin not in (None, f"http://{request.headers.get('host')}"):
            why = "a browser sent it for a page of another site"
            problem = Problem(what=f"the request comes from {str(origin)[:80]!r}", why=why, fix="ask without a browser")
            return problem_reply(MeshwrightError(problem, code="MW278"), 403)
        if self._token is None or request.url.path in OPEN_TO_ALL:
            return None
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), self._token):
            return None
        problem = Problem(
            what="no token, or a wrong one", why="the service asks for one", fix="Authorization: Bearer T"
        )
        return problem_reply(MeshwrightError(problem, code="MW278"), 401)


def sent(reply: Reply, headers: Mapping[str, str] | None = None) -> Response:
    """A reply as a response."""
    return Response(reply.content, status_code=reply.status, media_type=reply.media_type, headers=dict(headers or {}))


async def request_body(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises:
        InputError: it is encoded.
        TooLargeError: it has more bytes than `most`; the rest is left unread.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        why = "a body is read as it is, so that its size is known"
        problem = Problem(what=f"the body is encoded as {encoding[:40]!r}", why=why, fix="send it without")
        raise InputError(problem, code="MW270")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise TooLargeError
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > most:
            raise TooLargeError
    return bytes(found)


def _methods_at(request: Request) -> list[str]:
    """Methods that an address takes where another one was used; empty where there is nothing."""
    routes = (one for one in request.app.routes if isinstance(one, Route))
    beside = (one.methods or set() for one in routes if one.matches(request.scope)[0] is Match.PARTIAL)
    return sorted(set[str]().union(*beside))


def _nothing(what: str, why: str, fix: str) -> Problem:
    return Problem(what=f"nothing answers at {what[:120]}", why=why, fix=fix)


def _no_job() -> Response:
    problem = Problem(what="there is no such job", why="its answer is kept for a day", fix="ask again")
    return sent(problem_reply(UnsupportedError(problem, code="MW277"), 404))
