"""Searches behind a page: each in a process of its own, so that it can be stopped and sliders stay quick."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock
from typing import Any

from meshwright.app.pages.answers import PageAnswers
from meshwright.app.pages.source import answered, page_source, planned
from meshwright.app.requests.page import WebRequest
from meshwright.errors import InputError, MeshwrightError
from meshwright.fields.command_line import NOT_OF_THE_ANSWER, command_line
from meshwright.fields.kinds import Choice
from meshwright.fields.request import request_fields
from meshwright.interruptions import end_with
from meshwright.records import fields_of as fields_of_record
from meshwright.search.watching import SearchProgress, seldom, watched
from meshwright.service.answering import fault

MOST_AT_ONCE = 2
TOLD_S = 0.1
"""Seconds between two messages about progress."""
NOT_ASKED = (*NOT_OF_THE_ANSWER, "no_browser", "replan_from", "lost", "added", "horizon", "profiles", "parallelizer")
"""Fields that a page does not ask for: files to write, plug-ins to load, questions of other verbs."""


@dataclass(eq=False, kw_only=True)
class Search:
    """One search under way, or done."""

    process: BaseProcess
    answers: Connection
    request: WebRequest
    started: float = field(default_factory=time.monotonic)
    progress: dict[str, Any] | None = None
    """Progress as a `SearchProgress`: how much of the space is decided, the quickest plan so far."""
    result: dict[str, Any] | None = None

    @property
    def command(self) -> str:
        """The same on a command line."""
        return command_line("plan", self.request, without=NOT_ASKED)


class Searches:
    """Searches by name; a few at once."""

    def __init__(self, answers: PageAnswers) -> None:
        self.answers = answers
        self._searches: dict[str, Search] = {}
        self._lock = Lock()

    def fields(self) -> dict[str, Any]:
        """What may be asked, for the form: fields of the request, with their help."""
        found = [
            {
                "name": one.name,
                "spelled": one.spelled,
                "help": one.explained,
                "placeholder": one.placeholder,
                "flag": one.flag,
                "rare": one.rare,
                "choices": list(one.kind.names) if isinstance(one.kind, Choice) else None,
            }
            for one in request_fields(WebRequest)
            if one.cli and one.name not in NOT_ASKED
        ]
        from meshwright.library.models import names

        return {"fields": found, "models": sorted(names())}

    def start(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a search.

        Args:
            asked: `fields`, texts by name as a command line would have them.

        Raises:
            InputError: the question is malformed.
        """
        fields = asked.get("fields", {})
        known = {one.name for one in request_fields(WebRequest) if one.cli} - set(NOT_ASKED)
        if not isinstance(fields, Mapping) or fields.keys() - known:
            unknown = sorted(fields.keys() - known) if isinstance(fields, Mapping) else ["this"]
            what = f"{', '.join(unknown)[:80]} cannot be asked here"
            raise InputError(what=what, why="the form has the fields that can", field="fields")
        for name, value in fields.items():
            if not isinstance(value, str) and value is not True:
                raise InputError(what=f"{name} is no text", why="fields are texts, as typed", field=name)
        request = WebRequest.read(fields, typed=True)
        if request.plan_file is not None:
            return {"answer": self.answers.add(page_source(request))}
        with self._lock:
            running = [one for one in self._searches.values() if one.process.is_alive()]
            if len(running) >= MOST_AT_ONCE:
                why = f"at most {MOST_AT_ONCE} run at once"
                raise InputError(what="searches are under way", why=why, fix="cancel one of them")
            ours, theirs = multiprocessing.Pipe(duplex=False)
            asked_by = (fields, theirs, os.getpid())
            process = multiprocessing.get_context("spawn").Process(target=_search, args=asked_by, daemon=True)
            name = secrets.token_hex(8)
            self._searches[name] = Search(process=process, answers=ours, request=request)
            process.start()
            theirs.close()
        return {"search": name, "command": self._searches[name].command}

    def state(self, name: str) -> dict[str, Any]:
        """How far a search is: seconds, the best so far, and the answer's name when it is done.

        Raises:
            InputError: there is no such search, or its question cannot be answered.
        """
        found = self._search(name)
        self._listen(found)
        state = {"search": name, "command": found.command, "elapsed_s": time.monotonic() - found.started}
        if found.result is not None:
            return state | found.result
        return state | {"state": "searching", "progress": found.progress}

    def cancel(self, name: str) -> dict[str, Any]:
        """Stop a search."""
        found = self._search(name)
        if found.result is None:
            found.process.terminate()
            found.result = {"state": "cancelled", "progress": found.progress}
        return self.state(name)

    def stop(self) -> None:
        """Stop all of them."""
        for one in self._searches.values():
            if one.process.is_alive():
                one.process.terminate()

    def _search(self, name: str) -> Search:
        found = self._searches.get(name)
        if found is None:
            raise InputError(what="no such search", why="it is of another start of `meshwright web`")
        return found

    def _listen(self, search: Search) -> None:
        with self._lock:
            try:
                while search.result is None and search.answers.poll():
                    kind, value = search.answers.recv()
                    if kind == "progress":
                        search.progress = value
                    elif kind == "error":
                        search.result = {"state": "failed", "error": value}
                    else:
                        name = self.answers.add(answered(search.request, value))
                        search.result = {"state": "done", "answer": name}
            except EOFError:
                what = "the search ended without an answer"
                error = MeshwrightError(what=what, why="its process was stopped", fix="ask again", code="MW102")
                search.result = {"state": "failed", "error": error.to_dict()}


def _search(fields: Mapping[str, Any], out: Connection, parent: int) -> None:
    """Run the search in its own process, which ends with its parent: answer, or say why not."""
    end_with(parent)

    def tell(progress: SearchProgress) -> None:
        out.send(("progress", fields_of_record(progress)))

    try:
        with watched(seldom(tell, TOLD_S)):
            out.send(("done", planned(WebRequest.read(fields, typed=True))))
    except MeshwrightError as error:
        out.send(("error", error.to_dict()))
    except Exception as error:
        out.send(("error", fault(error).to_dict()))
    finally:
        out.close()
