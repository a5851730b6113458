"""How a service is set up."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.requests.serve import HERE
from meshwright.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits of a service, and who may ask it."""

    host: str = HERE
    """The address it listens on; where that is this machine's own, other names in requests are refused."""
    workers: int = 2
    """Processes that search."""
    time_limit_s: float = 60.0
    """Time limit of one request; a job has `job_limit_s`."""
    job_limit_s: float = 3600.0
    memory_limit_bytes: float = 4 * GIB
    """Memory limit of one worker, above what it has when it is ready."""
    body_limit_bytes: float = 8 * 2**20
    token: str | None = None
    """What `Authorization: Bearer` must hold; None where everyone who reaches the service may ask."""
    ray: str | None = None
    """The Ray cluster that jobs run on, which this process has joined; None for workers of this machine."""
    queue: str | None = None
    """The file that holds the jobs; None for one that goes with the service."""
