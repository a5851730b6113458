"""Answers that the tests of the views share: one device type, two, experts on thousands, one that does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread
from time import sleep

import pytest

from meshwright import estimate, plan
from meshwright.app.pages.answers import PageAnswers
from meshwright.app.pages.source import source_of
from meshwright.report.page.source import PageSource

NAMES = ("dense", "mixed", "experts", "overfull")


@cache
def source(name: str) -> PageSource:
    """One of NAMES."""
    made = {
        "dense": lambda: plan("llama-3-8b", gpus="8xH100", top=1),
        "mixed": lambda: plan("llama-3.1-70b", gpus="32xH100,32xA100-80", top=1),
        "experts": lambda: plan("deepseek-v3", gpus="2048xH800", pin=("ep=64",), top=1),
        "overfull": lambda: estimate("llama-3.1-70b", "tp4.pp2.dp1.z1.mbs2.gbs32", gpus="8xH100"),
    }
    return source_of(made[name]())


@contextmanager
def served(shown: PageSource, answers: PageAnswers | None = None) -> Iterator[str]:
    """The address of a page with its server, on a port of this machine, for as long as it is used.

    Args:
        shown: the answer that is on show first.
        answers: that keeps it, another one than usual.
    """
    uvicorn = pytest.importorskip("uvicorn")
    from meshwright.service.page import page_app

    answers = answers or PageAnswers()
    app = page_app(answers, answers.add(shown), "key")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/key/"
    finally:
        server.should_exit = True
        thread.join(10)
