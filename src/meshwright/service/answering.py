"""One question answered in this process: the bytes of its answer, or the error as `application/problem+json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.app.verbs import VERBS
from meshwright.errors import InfeasibleError, InputError, MeshwrightError, UnsupportedError
from meshwright.records import as_json
from meshwright.service.body import Question, question_of

JSON = "application/json"
PROBLEM = "application/problem+json"
UNSUPPORTED, NOT_THERE = 422, 404
_OF_ERRORS: tuple[tuple[type[MeshwrightError], int, str], ...] = (
    (InfeasibleError, 422, "the question is well formed and nothing satisfies it"),
    (UnsupportedError, UNSUPPORTED, "something named is not supported"),
    (InputError, 400, "the question is malformed or contradicts itself"),
)
MEMORY = "MW102"
_LISTS = {"model": "/v1/models", "device": "/v1/gpus"}
"""Where the names that a field takes are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What goes back over HTTP."""

    status: int
    content: bytes
    media_type: str = JSON

    @property
    def not_there(self) -> Reply:
        """The same problem as that of an address, which names nothing."""
        content = as_json({**json.loads(self.content), "status": NOT_THERE})
        return replace(self, status=NOT_THERE, content=content.encode())


def priced(body: Mapping[str, Any]) -> dict[str, Any]:
    """One plan priced, as `POST /v1/estimate` answers it.

    Args:
        body: fields of `estimate`, with `files`.

    Returns:
        The answer as data.

    Raises:
        InputError: anything is malformed; all problems together.
        UnsupportedError: an unknown name.
    """
    return answer_of(question_of("estimate", body), Path.cwd())


def answer_of(question: Question, folder: Path) -> dict[str, Any]:
    """The answer to a question as data, with its documents as files of a folder while it is answered.

    Args:
        question: the question with fields that name documents.
        folder: the working folder of this process, where nothing else lies.
    """
    paths = [folder / name for name in question.files]
    try:
        for path in paths:
            path.write_text(question.files[path.name], encoding="utf-8")
        found: dict[str, Any] = VERBS[question.verb].answer(question.read()).to_dict()
        return found
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def reply_to(verb: str, body: Mapping[str, Any], folder: Path) -> Reply:
    """The answer to a body, whatever comes of it.

    Args:
        verb: one that is served.
        body: the body as it was parsed.
        folder: the working folder of this process.
    """
    try:
        return Reply(status=200, content=as_json(answer_of(question_of(verb, body), folder)).encode())
    except MeshwrightError as error:
        return problem_reply(error)
    except MemoryError:
        return problem_reply(too_large_error(), 422)
    except Exception as error:
        return problem_reply(fault(error), 500)


def problem_reply(error: MeshwrightError, status: int | None = None, **more: Any) -> Reply:
    """An error as a problem document: the same object as `--json` prints, with the members of RFC 9457.

    Args:
        error: the error with all its problems.
        status: the number of status of HTTP; by the kind of error unless it is given.
        more: further members.
    """
    usual, title = next(((code, text) for kind, code, text in _OF_ERRORS if isinstance(error, kind)), (500, "an error"))
    members: dict[str, Any] = {
        "type": f"urn:meshwright:{error.code}",
        "title": title,
        "status": status or usual,
        "detail": error.render(),
    }
    if isinstance(error, UnsupportedError):
        lists = {_LISTS[problem.field] for problem in error.problems if problem.field in _LISTS}
        members |= {"see": sorted(lists)} if lists else {}
    content = as_json({**error.to_dict(), **members, **more}).encode()
    return Reply(status=status or usual, content=content, media_type=PROBLEM)


def too_large_error() -> MeshwrightError:
    """The error of a question that needs more memory than a request may take."""
    fix = "ask for fewer devices, a smaller batch, or a narrower space with pin"
    why = "the question is larger than the service's limit for one request"
    return MeshwrightError(what="the request ran out of memory", why=why, fix=fix, code=MEMORY)


def fault(error: BaseException) -> MeshwrightError:
    """The error of a fault of ours."""
    why = "this is a bug in meshwright, not in your input"
    what = f"{type(error).__name__}: {str(error)[:200]}"
    return MeshwrightError(what=what, why=why, fix="please report it with the request", code="MW100")
