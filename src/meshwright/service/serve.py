"""`serve`: the service on a port, until it is interrupted."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from meshwright.app.requests.serve import TOKEN, ListenRequest, ServeRequest
from meshwright.errors import InputError, Problem
from meshwright.ray_cluster import connect, ray_module
from meshwright.service.local import http_of, listening, needs_web
from meshwright.service.settings import Settings

STARTS_IN = 2048
"""Connections that wait while one is accepted."""


def serve(request: ServeRequest, tell: Callable[[str], None]) -> None:
    """Answer requests.

    Args:
        request: the request: where to serve, for whom, within which limits.
        tell: is given the address.

    Raises:
        InputError: the port is taken, the Ray cluster does not answer, or the extra is not installed.
        UnsupportedError: Ray is asked for and not installed.
    """
    try:
        import uvicorn

        from meshwright.service.app import create_app
    except ModuleNotFoundError:
        raise needs_web("the service") from None
    settings = service_settings(request)
    if settings.queue is not None:
        _check_queue(settings.queue)
    if settings.ray is not None:
        connect(ray_module(), settings.ray)
    listener = listening(request.port, request.host)
    app = create_app(settings)
    config = http_of(app, backlog=STARTS_IN)
    tell(f"http://{request.host}:{listener.getsockname()[1]}")
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _check_queue(path: str) -> None:
    """Open the file of jobs once, before anybody is answered.

    Raises:
        InputError: it cannot be used.
    """
    from meshwright.service.job_queue import JobQueue

    try:
        JobQueue(Path(path)).close()
    except sqlite3.Error as error:
        problem = Problem(
            what=f"--queue {path!r} cannot be used",
            why=str(error),
            fix="name a file in a folder that can be written, or one that an earlier service made",
            field="queue",
        )
        raise InputError(problem, code="MW271") from None


def service_settings(request: ServeRequest) -> Settings:
    """The limits of a request to serve."""
    return Settings(
        host=request.host,
        workers=request.workers,
        time_limit_s=request.time_limit,
        job_limit_s=request.job_time_limit,
        memory_limit_bytes=request.memory_limit,
        body_limit_bytes=request.body_limit,
        token=stated_token(request),
        ray=request.ray,
        queue=None if request.queue is None else os.fspath(request.queue),
    )


def stated_token(request: ListenRequest) -> str | None:
    """What callers must show, by the request or by the environment; None where it is nothing."""
    return request.token or os.environ.get(TOKEN) or None
