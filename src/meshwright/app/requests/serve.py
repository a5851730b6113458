"""What may be asked of `serve` and `mcp`: where they listen, for whom, within which limits."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from meshwright.fields.field import ask
from meshwright.fields.host import MemorySize
from meshwright.fields.kinds import Duration, FieldKind, Flag, Whole
from meshwright.fields.request import Reading, Request
from meshwright.units import GIB

HERE = "127.0.0.1"
TOKEN = "MESHWRIGHT_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenRequest(Request):
    """Where a service listens, and for whom."""

    host: str = ask(
        "Address to listen on; anything but loopback needs --open and a token.",
        FieldKind(metavar="ADDRESS"),
        default=HERE,
        usual=HERE,
    )
    port: int | None = ask("Port to listen on.", Whole(high=65_535), usual="8417 or the next free")
    open: bool = ask("Accept requests from other machines.", Flag())
    token: str | None = ask(
        f"Bearer token that requests must carry; {TOKEN} sets it without showing it in a list of processes.",
        FieldKind(metavar="TEXT"),
    )

    def rules(self, reading: Reading) -> None:
        """Other machines are let in by a flag and a token, and never by mistake."""
        shown = self.token or os.environ.get(TOKEN)
        if is_own_address(self.host):
            reading.refuse(("open",), f"with {reading.called('host')} {self.host}", "only this machine reaches it")
            return
        why = f"{self.host[:80]} is reached by other machines"
        if not self.open:
            reading.problem(
                f"{reading.called('open')} is missing", why, f"add it, or leave out {reading.called('host')}"
            )
        if not shown:
            reading.problem(f"{reading.called('token')} is missing", why, f"set {TOKEN}, or give --token", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest(ListenRequest):
    """Serve the verbs over HTTP until interrupted.

    POST /v1/plan, /v1/estimate and so on take the fields of the verb as JSON and give what --json prints; long
    questions are jobs. GET /openapi.json describes all of it.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "serve",
        "serve --port 8080 --workers 4 --queue jobs.db",
        "serve --host 0.0.0.0 --open",
        "serve --ray 10.0.0.1:6379 --queue jobs.db",
    )
    returns: ClassVar[str] = "The service's address."

    workers: int = ask("Search processes; estimates have others, one or two.", Whole(high=256), default=2, usual="2")
    time_limit: float = ask("Time limit per request.", Duration(), default=60.0, usual="60s")
    job_time_limit: float = ask("Time limit per job.", Duration(), default=3600.0, usual="1h")
    memory_limit: float = ask("Memory limit per request.", MemorySize(), default=4.0 * GIB, usual="4GiB")
    body_limit: float = ask("Largest request body.", MemorySize(), default=8.0 * 2**20, usual="8MiB")
    ray: str | None = ask(
        "Run jobs on a Ray cluster: host:port; alone, the cluster of this machine or RAY_ADDRESS; local starts one.",
        FieldKind(metavar="[ADDRESS]"),
    )
    queue: Any = ask(
        "SQLite file of the job queue, so that jobs survive a restart.",
        FieldKind(metavar="FILE", annotation="str | os.PathLike[str]"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpRequest(ListenRequest):
    """Serve the verbs over MCP, the Model Context Protocol. On stdin and stdout, or with --http."""

    examples: ClassVar[tuple[str, ...]] = ("mcp", "mcp --http --port 8418")
    returns: ClassVar[str] = "Nothing; it ends with its caller."

    http: bool = ask("Serve streamable HTTP instead of stdin and stdout.", Flag())
    workers: int = ask("Search processes.", Whole(high=256), default=1, usual="1")
    time_limit: float = ask("Time limit per call.", Duration(), default=300.0, usual="5min")
    memory_limit: float = ask("Memory limit per call.", MemorySize(), default=4.0 * GIB, usual="4GiB")

    def rules(self, reading: Reading) -> None:
        """Check that only what listens has an address."""
        if self.http:
            ListenRequest.rules(self, reading)
        else:
            called = reading.called("http")
            why = "without it the server uses stdin and stdout and listens on no port"
            reading.refuse(("host", "port", "open", "token"), f"without {called}", why)


@lru_cache(maxsize=64)
def is_own_address(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
