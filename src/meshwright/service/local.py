"""`web`: the page on this machine alone, until it is interrupted."""

from __future__ import annotations

import html
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from meshwright.app.requests.page import WebRequest
from meshwright.errors import InputError, Problem
from meshwright.service.example import ASKED, example_page
from meshwright.service.waiting import DRAWN_WITHIN_S, question_page, waiting_page

if TYPE_CHECKING:
    import uvicorn

ADDRESS = "127.0.0.1"
FIRST_PORT, PORTS = 8417, 100
SWITCHING_S = 0.0005
"""How long a thread computes before another one goes on: repairs and others that take long are priced beside sliders,
each of whose answers changes threads some times."""
ENDING_S = 2
"""How long an interrupted page waits for what it is working out."""


def serve_page(request: WebRequest, tell: Callable[[str], None], note: Callable[[str], None]) -> None:
    """Answer the question, say the page's address, and serve it until an interrupt; a browser shows the question first,
    or the recorded answer of the example.

    Args:
        request: what is shown first.
        tell: is given the address.
        note: is given the reason where no plan answers the question; the page then has it, and the nearest plans.

    Raises:
        InputError: the question is malformed, the port is taken, or the extra is not installed.
        UnsupportedError: an unknown name.
        InfeasibleError: no plan answers the question, and none comes near it.
    """
    if not all(map(_installed, ("uvicorn", "fastapi"))):
        raise needs_web("the page")
    listener = listening(request.port)
    sys.setswitchinterval(SWITCHING_S)
    asked = WebRequest.read(ASKED) if request.example else request
    key = secrets.token_urlsafe(18)
    url = f"http://{ADDRESS}:{listener.getsockname()[1]}/{key}/"
    shown = example_page() if request.example else question_page(_question(asked))
    with ExitStack() as open_until_the_end:
        with waiting_page(listener, key, shown) as drawn:
            if not request.no_browser:
                file = open_until_the_end.enter_context(redirect_file(url))
                opened = webbrowser.open(file.as_uri())
                if opened and request.example:
                    # The answer is there: what loads and plans behind it would take processors from its drawing.
                    drawn.wait(DRAWN_WITHIN_S)
            server = _server(asked, key, note)
        tell(url)
        server.run(sockets=[listener])


def _server(asked: WebRequest, key: str, note: Callable[[str], None]) -> uvicorn.Server:
    """The page of an answer, which is worked out here."""
    # Loaded while the browser shows the question already.
    import uvicorn

    from meshwright.app.pages.answers import PageAnswers
    from meshwright.app.pages.source import page_source
    from meshwright.errors import InfeasibleError
    from meshwright.service.page import page_app

    answers = PageAnswers()
    try:
        source = page_source(asked)
    except InfeasibleError as error:
        from meshwright.app.pages.without_answer import page_without_answer

        source = page_without_answer(asked, error)
        note(error.render())
    first = answers.add(source)
    config = http_of(page_app(answers, first, key), timeout_graceful_shutdown=ENDING_S)
    return uvicorn.Server(config)


def _question(asked: WebRequest) -> str:
    """What is worked out, in words."""
    if asked.plan_file is not None:
        return f"Reading {asked.plan_file} ..."
    if asked.answer is not None:
        return "Reading the answer ..."
    cluster = asked.job.gpus or asked.job.cluster or "the cluster"
    return f"Planning {asked.job.model} on {cluster} ..."


def _installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return find_spec(package) is not None


@contextmanager
def redirect_file(url: str) -> Iterator[Path]:
    """A file in a folder of this user alone that sends a browser on to an address; both are gone after the body.

    The command line of a browser is shown to every user of the machine, and the address holds the key of the page.

    Args:
        url: the address.
    """
    with TemporaryDirectory(prefix="meshwright-web-") as folder:
        file = Path(folder) / "open.html"
        shown = html.escape(url)
        file.write_text(
            '<!DOCTYPE html><meta charset="utf-8"><title>meshwright</title>'
            f'<meta http-equiv="refresh" content="0; url={shown}"><a href="{shown}">{shown}</a>\n'
        )
        yield file


def http_of(app: Any, *, log_level: str = "critical", **more: Any) -> uvicorn.Config:
    """How an application is served.

    Args:
        app: the app of ASGI.
        log_level: the log level of uvicorn.
        more: settings of uvicorn's.

    Returns:
        Its settings. The parser is named: uvicorn else takes httptools where another package has brought it, which
        reads headers without an end into memory; h11 stops at 64 KiB. Headers of a proxy are not read, as none is used.
    """
    import uvicorn

    own: dict[str, Any] = {"http": "h11", "proxy_headers": False, "access_log": False, "lifespan": "on"}
    return uvicorn.Config(app, log_level=log_level, **own, **more)


def needs_web(what: str) -> InputError:
    """The error of a package that was installed without what the page needs."""
    problem = Problem(
        what=f"{what} needs FastAPI and uvicorn",
        why="they are not installed with meshwright alone",
        fix="pip install 'meshwright[web]'",
    )
    return InputError(problem, code="MW241")


def listening(port: int | None, host: str = ADDRESS) -> socket.socket:
    """A socket on this machine's own address.

    Args:
        port: the port that is asked for; None for the first that is free.
        host: the address that it belongs to.

    Raises:
        InputError: the host has no address here; or the port is taken, with the next one that is free.
    """
    try:
        socket.getaddrinfo(host, None, socket.AF_INET)
    except OSError:
        problem = Problem(
            what=f"host {host[:80]!r} has no address",
            why="it does not resolve to an IPv4 address",
            fix="--host 127.0.0.1, or an address of this machine",
            field="host",
        )
        raise InputError(problem, code="MW242") from None
    free = next((found for at in ([port] if port else _usual()) if (found := _bound(at, host)) is not None), None)
    if free is not None:
        return free
    start = port or FIRST_PORT
    following = (at for at in range(start + 1, min(start + PORTS, 65_536)) if _is_free(at, host))
    nearest = next(following, None)
    fix = f"--port {nearest}" if nearest else "leave --port out"
    raise InputError(
        what=f"port {start} is in use", why="one program listens on a port", fix=fix, field="port", code="MW242"
    )


def _usual() -> Any:
    return (*range(FIRST_PORT, FIRST_PORT + PORTS), 0)


def _bound(port: int, host: str) -> socket.socket | None:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":
        # Connections of a service that stopped hold its port for a minute; no other program can take it over by this.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(128)
    except OSError:
        found.close()
        return None
    return found


def _is_free(port: int, host: str) -> bool:
    found = _bound(port, host)
    if found is None:
        return False
    found.close()
    return True
