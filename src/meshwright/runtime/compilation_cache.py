"""JAX's disk cache of compiled programs, each entry whole or not there.

JAX writes an entry into its place and never writes it again: a process that is killed meanwhile, as workers of a run
are, leaves a part behind, of which every later process that needs the program warns, and compiles it anew.
"""

from __future__ import annotations

import os
import secrets
from functools import cache
from typing import Any


@cache
def write_whole_entries() -> None:
    """Write entries under names of their own, and move them when complete; once a process.

    Caches with a limit of their size, which JAX locks, and those that are not on a file system stay as they are.
    """
    from jax._src.lru_cache import LRUCache

    put_in_place = LRUCache.put

    def put(entries: Any, key: str, value: bytes) -> None:
        place = os.path.join(entries.path, f"{key}-cache")
        if entries.eviction_enabled or "://" in place:
            put_in_place(entries, key, value)
        elif not os.path.exists(place):
            partial = f".{secrets.token_hex(8)}"
            put_in_place(entries, partial, value)
            os.replace(os.path.join(entries.path, f"{partial}-cache"), place)

    LRUCache.put = put
