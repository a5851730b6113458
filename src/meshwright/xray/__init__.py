"""A framework's own code, run here as one rank of a job: nothing is computed, everything is counted."""

from __future__ import annotations
