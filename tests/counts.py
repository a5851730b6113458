"""Parameter counts that readers of models are held against, and the configs they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "models" / "counts.json"
FILES = Path(__file__).parents[2] / "shared" / "configs"

COUNTS: dict[str, dict[str, dict[str, Any]]] = json.loads(DATA.read_text())
LIBRARY, REAL, FAMILIES = COUNTS["library"], COUNTS["files"], COUNTS["families"]

TOLERANCE = {"class": 1e-3, "card": 5e-3}
"""A class has every weight; a card prints three digits."""
ACTIVE = 5e-3


def real_config(name: str) -> dict[str, Any] | None:
    """The text model's part of a real config.json by the name of its entry, None where the files are not at hand."""
    for path in (FILES / f"{name}_config.json", FILES / f"{name}.json"):
        if path.is_file():
            config: dict[str, Any] = json.loads(path.read_text())
            text = {"model_type", "text_config", "tie_word_embeddings"}
            return {key: value for key, value in config.items() if key in text} if "text_config" in config else config
    return None
