"""The routes of the page: its files, and what it asks while somebody moves a slider.

They lie below a path that nobody can guess, and answer only requests to this machine by its own name.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response

from meshwright.app.pages.answers import PageAnswers
from meshwright.errors import InfeasibleError, InputError, MeshwrightError
from meshwright.report.page.document import palette
from meshwright.report.page.shell import page_html
from meshwright.service.answering import fault
from meshwright.service.body import parsed_body
from meshwright.service.searches import Searches
from meshwright.service.waiting import OWN_NAMES

MOST_BYTES = 64 * 1024**2
"""Most bytes of a request: a log that is dropped on the page."""


def page_app(answers: PageAnswers, first: str, key: str) -> FastAPI:
    """The page as an application.

    Args:
        answers: what it shows.
        first: name of the answer that is painted first.
        key: the path that it lies below.
    """
    searches = Searches(answers)
    app = FastAPI(title="meshwright web", openapi_url=None, docs_url=None, redoc_url=None)

    @app.middleware("http")
    async def only_from_here(request: Request, call_next: Callable[[Request], Any]) -> Response:
        if not _from_here(request, key):
            return Response("not found\n", status_code=404)
        found: Response = await call_next(request)
        found.headers["Cache-Control"] = "no-store"
        found.headers["X-Content-Type-Options"] = "nosniff"
        found.headers["Referrer-Policy"] = "no-referrer"
        return found

    @app.get(f"/{key}/")
    def index(answer: str = first) -> HTMLResponse:
        try:
            document = answers.opened(answer)
        except InputError:
            document = answers.opened(first)
        return HTMLResponse(page_html(document, palette()))

    @app.get(f"/{key}/waiting")
    def waited() -> Response:
        """What a page that waits is told once there is an answer: it loads itself anew."""
        return Response(status_code=204)

    @app.get(f"/{key}/searches/{{name}}")
    def progress(name: str) -> JSONResponse:
        return _answered(lambda _: searches.state(name), {}, JSONResponse)

    @app.delete(f"/{key}/searches/{{name}}")
    def cancel(name: str) -> JSONResponse:
        return _answered(lambda _: searches.cancel(name), {}, JSONResponse)

    asks: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "what-if": answers.what_if,
        "view": answers.view,
        "run": answers.run,
        "accuracy": answers.accuracy,
        "study": answers.study,
        "expert-load": answers.expert_load,
        "page": lambda asked: answers.page(str(asked.get("answer", ""))),
        "plan-file": answers.plan_file,
        "trace": answers.trace,
        "export": answers.export,
        "searches": searches.start,
        "fields": lambda _: searches.fields(),
    }

    @app.post(f"/{key}/{{what}}")
    async def ask(what: str, request: Request) -> JSONResponse:
        if what not in asks:
            return JSONResponse({"problems": [{"what": f"nothing is called {what[:40]!r}"}]}, status_code=404)
        body = await _body_of(request)
        if body is None:
            return JSONResponse({"problems": [{"what": "the request is too large"}]}, status_code=413)
        try:
            asked = parsed_body(body)
        except InputError as error:
            return JSONResponse(error.to_dict(), status_code=400)
        return await run_in_threadpool(_answered, asks[what], asked, JSONResponse)

    app.router.on_shutdown = [searches.stop]
    _ = index, waited, progress, cancel, ask, only_from_here
    return app


def _from_here(request: Request, key: str) -> bool:
    """Whether a request comes from this machine, to a path below the key, and from no other site's page."""
    host = request.headers.get("host", "").rsplit(":", 1)[0]
    origin = request.headers.get("origin")
    foreign = origin is not None and origin != f"http://{request.headers.get('host')}"
    shown, slash, _ = request.url.path[1:].partition("/")
    known = bool(slash) and hmac.compare_digest(shown.encode(), key.encode())
    return host in OWN_NAMES and not foreign and known


async def _body_of(request: Request) -> bytes | None:
    """The body of a request; None where it is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            return None
    return body


def _answered(use: Callable[[Mapping[str, Any]], Any], asked: Mapping[str, Any], response: type[Any]) -> Any:
    """The answer, or the error that a command line would show."""
    try:
        return response(use(asked))
    except MeshwrightError as error:
        return response(error.to_dict(), status_code=409 if isinstance(error, InfeasibleError) else 422)
    except Exception as error:
        return response(fault(error).to_dict(), status_code=500)
