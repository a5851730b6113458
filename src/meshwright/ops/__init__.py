"""What must be computed: a layer as a list of operators, before anyone decides who computes it."""

from __future__ import annotations
