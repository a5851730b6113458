"""Jobs in a SQLite file: what was accepted is there until it is done, whoever dies on the way."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.service.answering import Reply

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
ENDED = (DONE, FAILED, CANCELLED)
MOST_ATTEMPTS = 3
MOST_OPEN = 1000
"""Jobs that wait or run; above it new ones are refused."""
KEPT_S = 86_400.0
"""How long the answer of a job can be fetched."""
_TABLE = """
create table if not exists job (
  id text primary key, verb text not null, body text not null, state text not null, attempts integer not null,
  owner integer not null, created_s real not null, changed_s real not null, status integer, media_type text, reply blob
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One job as the file has it."""

    id: str
    verb: str
    body: Mapping[str, Any]
    state: str
    attempts: int
    created_s: float
    changed_s: float
    reply: Reply | None


class JobQueue:
    """The jobs of a service, oldest first; services of one machine may share a file.

    Args:
        path: the path of the file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._base = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        self._base.execute("pragma journal_mode=wal")
        self._base.execute("pragma synchronous=full")
        self._base.execute(_TABLE)
        for name, owner in self._base.execute("select id, owner from job where state = ?", (RUNNING,)).fetchall():
            if not _is_alive(owner):
                self.put_back(name)

    def close(self) -> None:
        """Close the file; what runs is taken up by the next service that opens it."""
        self._base.execute("update job set state = ?, owner = 0 where state = ? and owner = ?", _back())
        self._base.close()

    def add(self, verb: str, body: Mapping[str, Any]) -> str | None:
        """Accept a job.

        Args:
            verb: one that is served.
            body: the body as it was parsed.

        Returns:
            Its id; None where too many wait.
        """
        now = time.time()
        self._base.execute("delete from job where state in (?, ?, ?) and changed_s < ?", (*ENDED, now - KEPT_S))
        if self.open_jobs() >= MOST_OPEN:
            return None
        name = secrets.token_hex(12)
        row = (name, verb, json.dumps(body, ensure_ascii=False), QUEUED, now, now)
        self._base.execute(
            "insert into job (id, verb, body, state, attempts, owner, created_s, changed_s) "
            "values (?, ?, ?, ?, 0, 0, ?, ?)",
            row,
        )
        return name

    def take(self) -> QueuedJob | None:
        """The job that has waited longest, now ours; None where none waits."""
        found = self._base.execute(
            "update job set state = ?, owner = ?, attempts = attempts + 1, changed_s = ? where id = "
            "(select id from job where state = ? order by created_s, rowid limit 1) returning id",
            (RUNNING, os.getpid(), time.time(), QUEUED),
        ).fetchone()
        return None if found is None else self.get(found[0])

    def put_back(self, name: str) -> None:
        """Let a job whose worker died be taken again."""
        where = (QUEUED, time.time(), name, RUNNING)
        self._base.execute("update job set state = ?, owner = 0, changed_s = ? where id = ? and state = ?", where)

    def finish(self, name: str, reply: Reply) -> None:
        """Keep the reply of a job that was not cancelled meanwhile."""
        state = DONE if reply.status == 200 else FAILED
        self._base.execute(
            "update job set state = ?, changed_s = ?, status = ?, media_type = ?, reply = ? where id = ? and state = ?",
            (state, time.time(), reply.status, reply.media_type, reply.content, name, RUNNING),
        )

    def cancel(self, name: str) -> None:
        """Give a job up unless it has ended."""
        where = (CANCELLED, time.time(), name, QUEUED, RUNNING)
        self._base.execute("update job set state = ?, changed_s = ? where id = ? and state in (?, ?)", where)

    def get(self, name: str) -> QueuedJob | None:
        """A job by its id."""
        columns = "id, verb, body, state, attempts, created_s, changed_s, status, media_type, reply"
        row = self._base.execute(f"select {columns} from job where id = ?", (name,)).fetchone()
        if row is None:
            return None
        status, media_type, content = row[7:]
        reply = None if status is None else Reply(status=status, content=content, media_type=media_type)
        return QueuedJob(
            id=row[0],
            verb=row[1],
            body=json.loads(row[2]),
            state=row[3],
            attempts=row[4],
            created_s=row[5],
            changed_s=row[6],
            reply=reply,
        )

    def open_jobs(self) -> int:
        """How many wait or run."""
        count = self._base.execute("select count(*) from job where state in (?, ?)", (QUEUED, RUNNING)).fetchone()
        return int(count[0])


def _back() -> tuple[str, str, int]:
    return QUEUED, RUNNING, os.getpid()


def _is_alive(process: int) -> bool:
    """Whether a process of this machine runs, other than this one."""
    if process in (0, os.getpid()):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
