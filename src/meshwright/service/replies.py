"""Replies kept by what was asked: the same question gives the same bytes, without a worker."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import meshwright
from meshwright.library.calibration import PACKAGED
from meshwright.service.answering import Reply

MOST_BYTES = 16 * 2**20
"""Some six hundred estimates; a busy service is as large after seconds as after days."""


class Replies:
    """Answers of the last questions, by the tag that callers see as ETag."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._bytes = 0
        self._release = f"{meshwright.__version__} {hashlib.sha256(PACKAGED.read_bytes()).hexdigest()}"

    def tag(self, verb: str, body: Mapping[str, Any]) -> str:
        """Names a question with all that its answer follows from: version, calibration and library.

        Args:
            verb: one that is served.
            body: the body as it was parsed.
        """
        asked = json.dumps(body, sort_keys=True, ensure_ascii=False)
        text = "\n".join([self._release, *_library(), verb, asked])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def get(self, tag: str) -> Reply | None:
        """The reply of a question that was asked before."""
        found = self._kept.get(tag)
        if found is not None:
            self._kept.move_to_end(tag)
        return found

    def keep(self, tag: str, reply: Reply) -> None:
        """Keep an answer; those asked longest ago go."""
        if reply.status != 200 or tag in self._kept:
            return
        self._kept[tag] = reply
        self._bytes += len(reply.content)
        while self._bytes > self.most_bytes:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= len(gone.content)


def _library() -> Iterator[str]:
    """Files of the library folder with their times, where there is one."""
    folder = os.environ.get("MESHWRIGHT_LIBRARY")
    if folder:
        for path in sorted(Path(folder).expanduser().rglob("*")):
            if path.is_file():
                yield f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}"
