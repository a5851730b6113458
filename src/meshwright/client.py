"""A client of `meshwright serve`: verbs as functions, answers as data. The standard library alone.

from meshwright.client import Client
service = Client("http://127.0.0.1:8417")
answer = service.ask("plan", model="llama-3.1-70b", gpus="64xH100")
print(answer["verdict"]["text"])
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from meshwright.errors import InfeasibleError, InputError, MeshwrightError, Problem, UnsupportedError

VERSION = "v1"
_BY_EXIT_CODE: dict[int, type[MeshwrightError]] = {2: InputError, 3: InfeasibleError, 4: UnsupportedError}
_ENDED = ("done", "failed", "cancelled")


class Client:
    """A service at an address.

    Args:
        url: the URL of the service, as `meshwright serve` prints it.
        token: what the service asks for, if it does.
        timeout_s: longest wait for one answer.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8417", *, token: str | None = None, timeout_s: float = 120.0
    ) -> None:
        self._address = urlsplit(url)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """The answer of a verb, as `--json` prints it.

        Args:
            verb: such as plan, estimate or "models list".
            fields: the fields of the verb; `files` holds documents by name.

        Raises:
            InputError: the question is malformed; all problems together.
            UnsupportedError: an unknown name.
            InfeasibleError: nothing fits.
            MeshwrightError: the service does not answer, or was too slow.
        """
        found: dict[str, Any] = self._json("POST", f"/{VERSION}/{verb.replace(' ', '/')}", fields)
        return found

    def start(self, verb: str, **fields: Any) -> str:
        """Ask a question that may take long; the id of its job."""
        return str(self._json("POST", f"/{VERSION}/jobs", {"verb": verb, **fields})["id"])

    def job(self, name: str) -> dict[str, Any]:
        """How far a job is."""
        found: dict[str, Any] = self._json("GET", self._of_job(name))
        return found

    def cancel(self, name: str) -> dict[str, Any]:
        """Stop a job."""
        found: dict[str, Any] = self._json("DELETE", self._of_job(name))
        return found

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """The states of a job as they change, until it has ended."""
        with self._opened("GET", f"{self._of_job(name)}/events", None) as response:
            while line := response.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def wait(self, name: str, *, every_s: float = 0.2) -> dict[str, Any]:
        """The answer of a job, when it has one.

        Raises:
            MeshwrightError: an error of `ask`, or the job was cancelled.
        """
        while self.job(name)["state"] not in _ENDED:
            time.sleep(every_s)
        found: dict[str, Any] = self._json("GET", f"{self._of_job(name)}/answer")
        return found

    def _of_job(self, name: str) -> str:
        return f"/{VERSION}/jobs/{quote(name, safe='')}"

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        with self._opened(method, path, body) as response:
            return json.loads(response.read())

    @contextmanager
    def _opened(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[HTTPResponse]:
        kind = HTTPSConnection if self._address.scheme == "https" else HTTPConnection
        connection = kind(self._address.netloc, timeout=self._timeout_s)
        content = None if body is None else json.dumps(body).encode()
        with closing(connection), self._sent(connection, method, path, content) as response:
            if response.status >= 400:
                raise _error(response.status, response.read())
            yield response

    def _sent(self, connection: HTTPConnection, method: str, path: str, content: bytes | None) -> HTTPResponse:
        try:
            connection.request(method, f"{self._address.path.rstrip('/')}{path}", content, self._headers)
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            why, fix = str(error) or type(error).__name__, "start it with `meshwright serve`"
            problem = Problem(what=f"{self._address.geturl()} does not answer", why=why, fix=fix)
            raise MeshwrightError(problem, code="MW279") from None


def _error(status: int, content: bytes) -> MeshwrightError:
    """The error that a problem document describes."""
    try:
        document = json.loads(content)
        parts = [{key: text or "" for key, text in one.items()} for one in document["problems"]]
        kind = _BY_EXIT_CODE.get(document["exit_code"], MeshwrightError)
        return kind([Problem(**one) for one in parts], code=document["code"])
    except (ValueError, KeyError, TypeError):
        text = content[:200].decode("utf-8", "replace")
        return MeshwrightError(what=f"the service answered {status}", why=text, code="MW279")
