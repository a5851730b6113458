"""Parameter counts that readers of models are held against, and the configs they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "models" / "counts.json"

COUNTS: dict[str, dict[str, dict[str, Any]]] = json.loads(DATA.read_text())
LIBRARY, FAMILIES = COUNTS["library"], COUNTS["families"]

TOLERANCE = {"class": 1e-3, "card": 5e-3}
"""A class has every weight; a card prints three digits."""
ACTIVE = 5e-3
