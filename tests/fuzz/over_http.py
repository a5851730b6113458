"""The long run over HTTP: bodies of all kinds to a service that runs, none of which may end in a fault of its own.

Body n is drawn from the seed and n alone. What fails is kept as a file, and how far a seed is, so that it goes on
where it was stopped.

    python -m tests.fuzz.over_http --bodies 100000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from meshwright.app.requests.serve import ServeRequest
from meshwright.app.verbs import VERBS
from meshwright.fields.request import request_fields
from meshwright.formats.writing import write_file
from meshwright.service.answering import PROBLEM
from meshwright.service.body import json_types
from meshwright.service.catalogue import REFUSED, SERVED, asked_fields, path_of
from tests.answers.schemas import faults
from tests.fuzz import doors, mutate, samples, service_doors
from tests.service.conftest import Service, started, stop

MOST_BYTES = int(ServeRequest().body_limit)
WITHOUT_FAULT = (200, 202, 304, 400, 403, 404, 405, 408, 413, 422)
NO_MORE_JOBS = 503
WAIT_S = 1800.0
"""A search that is nice may wait long for its minute of processor time on a machine that others use."""
SAVED_EVERY = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict)


def drawn(seed: int, number: int) -> Asked:
    """Request `number` of a seed."""
    chance = Random(f"over-http/{seed}/{number}")
    verb, text = json.loads(service_doors.http_body(chance) if chance.random() < 0.5 else _nearly_right(chance))
    content, path, headers = text.encode("latin-1"), f"/v1/{path_of(verb)}", {"Content-Type": "application/json"}
    method, kind = "POST", chance.random()
    if kind < 0.02:
        content = chance.choice(_TWISTED)(content)
    elif kind < 0.03:
        path = "/v1/jobs"
        content = json.dumps({"verb": chance.choice([*SERVED, *REFUSED, 1, None])}).encode()
    elif kind < 0.05:
        path = chance.choice([path + "/", "/v1/" + chance.choice(list(REFUSED)).replace(" ", "/"), *_PATHS])
        method = chance.choice(["POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
    elif kind < 0.08:
        headers |= chance.choice(_HEADERS)
    elif kind < 0.09:
        content = mutate.written(chance, [json.loads("[" * 90 + "]" * 90)])
    return Asked(method, path, content, headers)


SEARCHING = ("plan", "size", "report", "explain", "trace")
"""Verbs that take seconds where others take milliseconds; fewer bodies are theirs."""
RIGHT: dict[str, list[Any]] = {
    "model": ["gpt2", "llama-3.1-8b", "mixtral-8x7b"],
    "gpus": ["2xH100", "1xH100,1xA100-80", "8xH100", "2x8xH100"],
    "plan": ["tp2.mbs1", "tp1.mbs1.z3", "tp2.pp2.dp2.mbs1", "tp8.mbs1", *samples.plan_sets()[:1]],
    "first": ["tp2.mbs1", "tp1.mbs1.z3"],
    "second": ["tp1.mbs1.z3", "tp4.mbs1"],
    "global_batch": [8, 64],
    "p": [2, 4],
    "m": [4, 8],
    "name": ["1f1b", "zb-h1", "H100"],
    "target": ["megatron", "torchtitan"],
    "step_time": [10],
    "device": ["H100", "A100-80"],
    "source": ["2xH100", samples.CLUSTER],
    "app": ["gpt3-13B"],
    "system": ["a100_80g"],
    "execution": [samples.calculon()[0][1]],
}
"""Of fields, what most bodies that are nearly right have."""


def _typed(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _nearly_right(chance: Random) -> str:
    """A question that is answered, or has one or two fields wrong: what is deeper than reading it."""
    verb = chance.choice(SERVED)
    if verb in SEARCHING and chance.random() < 0.8:
        verb = chance.choice(SERVED)
    known = [one for one in request_fields(VERBS[verb].request) if one.name in asked_fields(verb)]
    body = {one.name: chance.choice(RIGHT[one.name]) for one in known if one.name in RIGHT}
    for one in chance.sample(known, min(len(known), chance.choice([0, 0, 1, 1, 2]))):
        value = chance.choice([doors._good(chance, one), chance.choice(mutate.VALUES)])
        body[one.name] = _typed(value) if "number" in json_types(one) else value
    if "time_limit" in asked_fields(verb):
        body["time_limit"] = 1
    return json.dumps([verb, mutate.written(chance, body).decode("latin-1")])


_TWISTED = (
    lambda content: content[: len(content) // 2],
    lambda content: content.decode("latin-1").encode("utf-16"),
    lambda content: b"\xef\xbb\xbf" + content,
    lambda content: content.replace(b'"', b"'"),
    lambda content: content.replace(b":", b":NaN,", 1),
    lambda content: b'{"files": {"a": "' + b"x" * MOST_BYTES + b'"}}',
    lambda content: b"[" * 100_000,
    lambda content: b'{"a":' * 50_000,
    lambda content: b'{"model": ' + b"9" * 5000 + b"}",
    lambda content: b'{"model": "\\ud800"}',
    lambda content: b'{"model": "gpt2\\u0000"}',
)
_PATHS = (
    "/",
    "/v2/plan",
    "/v1/../../etc/passwd",
    "/v1/models/%00",
    "/v1/models/gpt2",
    "/v1/gpus/%f0",
    "/v1/jobs/%27--",
    "//v1/plan",
)
_HEADERS: tuple[dict[str, str], ...] = (
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Encoding": "gzip"},
    {"Accept": "text/html;q=nan"},
    {"If-None-Match": '"' + "0" * 64 + '", W/"*"'},
    {"Authorization": "Bearer \xff"},
    {"X-Forwarded-For": "127.0.0.1, " * 100},
    {"Range": "bytes=5-1"},
)


def fault_of(service: Service, connection: HTTPConnection, asked: Asked) -> tuple[int, str]:
    """The status of a request, and what is wrong with its answer; empty for nothing."""
    fresh = connection.sock is None
    try:
        connection.request(asked.method, asked.path, asked.content, asked.headers)
        response = connection.getresponse()
        status, content, kind = response.status, response.read(), response.headers.get("Content-Type", "")
    except (OSError, HTTPException) as error:
        connection.close()
        if not fresh:  # as every client does: the other end may have shut a connection that it keeps open
            return fault_of(service, connection, asked)
        # A body above the limit is answered before it is read; whoever goes on writing may find the door shut.
        return (413, "") if len(asked.content) > MOST_BYTES else (0, f"no answer: {type(error).__name__}")
    if status not in WITHOUT_FAULT and not (status == NO_MORE_JOBS and asked.path == "/v1/jobs"):
        return status, f"status {status}: {content[:300]!r}"
    if status == 304 or (status == 200 and not kind.startswith("application/json")):
        return status, ""
    document = json.loads(content)
    if status not in (200, 202):
        sound = kind == PROBLEM and document["status"] == status and all(one["what"] for one in document["problems"])
        return status, "" if sound else f"a problem of {status} without what is wrong: {content[:300]!r}"
    if status == 202:
        _forget(service, document["links"]["self"])
    elif str(document.get("schema", "")).startswith("meshwright.") and "verbs" not in document:
        return status, next(iter(faults(document)), "")
    return status, ""


def _forget(service: Service, job: str) -> None:
    """End a job: that it was accepted is what was asked."""
    service.ask("DELETE", job)


@dataclass(slots=True)
class Run:
    """What has been asked of a seed."""

    seed: int
    folder: Path
    done: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    slowest_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state(self) -> Path:
        """Where it is kept how far the seed is."""
        return self.folder / f"http-{self.seed}.json"

    def resumed(self) -> None:
        """Go on where this seed was stopped."""
        if self.state.exists():
            kept = json.loads(self.state.read_text())
            self.done, self.failed, self.slowest_s = kept["done"], kept["failed"], kept["slowest_s"]
            self.statuses = Counter({int(status): count for status, count in kept["statuses"].items()})

    def add(self, number: int, asked: Asked, status: int, fault: str, took_s: float) -> None:
        """One request more; kept where it failed."""
        with self.lock:
            self.done += 1
            self.statuses[status] += 1
            self.slowest_s = max(self.slowest_s, took_s)
            if fault:
                self.failed += 1
                kept = {
                    "number": number,
                    "path": asked.path,
                    "fault": fault,
                    "body": asked.content[:20_000].decode("latin-1"),
                }
                write_file(self.folder / f"http-{self.seed}-{number}.json", json.dumps(kept, indent=1))
                print(f"{number}: {asked.method} {asked.path}: {fault}", flush=True)
            if self.done % SAVED_EVERY == 0:
                self.save()

    def save(self) -> None:
        """Keep how far it is."""
        found = {"done": self.done, "failed": self.failed, "slowest_s": self.slowest_s, "statuses": dict(self.statuses)}
        write_file(self.state, json.dumps(found, indent=1))


def ask(run: Run, service: Service, numbers: Iterator[int], end: float) -> None:
    """Send requests one after the other over one connection."""
    connection = HTTPConnection(urlsplit(service.url).netloc, timeout=WAIT_S)
    while time.monotonic() < end:
        with run.lock:
            number = next(numbers, None)
        if number is None:
            break
        asked = drawn(run.seed, number)
        begun_s = time.monotonic()
        status, fault = fault_of(service, connection, asked)
        run.add(number, asked, status, fault, time.monotonic() - begun_s)
    connection.close()


def main() -> int:
    """Ask, and print what came of it."""
    words = argparse.ArgumentParser(prog="python -m tests.fuzz.over_http")
    words.add_argument("--bodies", type=int, default=100_000)
    words.add_argument("--minutes", type=float, default=600.0, help="at most")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--connections", type=int, default=4)
    words.add_argument("--workers", type=int, default=2, help="that search")
    words.add_argument("--folder", default=".fuzz", help="where failures and progress are kept")
    given = words.parse_args()
    folder = Path(given.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(given.seed, folder)
    run.resumed()
    service = started(folder, "--workers", str(given.workers), "--queue", str(folder / "http-jobs.db"))
    numbers, end = iter(range(run.done, given.bodies)), time.monotonic() + 60 * given.minutes
    threads = [threading.Thread(target=ask, args=(run, service, numbers, end)) for _ in range(given.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alive = service.ask("GET", "/healthz").status
    stop(service)
    run.save()
    counts = ", ".join(f"{count:,} of {status}" for status, count in sorted(run.statuses.items()))
    lead = f"seed {run.seed}: {run.done:,} bodies, {run.failed:,} failed, slowest {run.slowest_s:.1f} s"
    print(f"{lead}; {counts}; healthz {alive}")
    return 1 if run.failed or alive != 200 else 0


if __name__ == "__main__":
    raise SystemExit(main())
