"""What exported runs hold that a framework started, as the programs beside this one print it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from tests.targets.test_round_trip import written


def exported(jobs: Sequence[tuple[str, Job]], within: Path) -> Iterator[tuple[Path, str, Job]]:
    """The folders of exported plans.

    Args:
        jobs: each with the target that it is exported to.
        within: the folder that theirs are made in.
    """
    for number, (target, job) in enumerate(jobs):
        run = within / str(number)
        run.mkdir()
        for name, text in written(target, job).items():
            (run / name).write_text(text)
        yield run, target, job


def small(model: ModelSpec, within: Path) -> Path:
    """A config.json of a model of as many layers and heads as another, that a process builds quickly."""
    heads = getattr(next(model.layers()).attention, "heads", 0)
    return (gpt if model.learned_positions else llama)(within, model.num_layers, heads)


def llama(within: Path, layers: int, heads: int, **more: Any) -> Path:
    """A config.json of a small Llama.

    Args:
        within: the folder that its folder is made in.
        layers, heads: of it; heads are 8 wide.
        more: keys beside the others.
    """
    said = {"model_type": "llama", "hidden_size": 8 * heads, "intermediate_size": 24 * heads, "hidden_act": "silu"}
    said |= {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 512}
    said |= {"max_position_embeddings": 8192, "rms_norm_eps": 3e-5, "rope_theta": 10000.0, "attention_bias": False}
    return _config(within / f"llama-{layers}-{heads}", said | {"tie_word_embeddings": False, "mlp_bias": False} | more)


def gpt(within: Path, layers: int, heads: int, positions: int = 4096) -> Path:
    """As `llama`, of a small GPT-2 of so many positions."""
    said = {"model_type": "gpt2", "n_embd": 8 * heads, "n_layer": layers, "n_head": heads, "vocab_size": 500}
    said |= {"n_positions": positions, "activation_function": "gelu", "layer_norm_epsilon": 3e-5}
    return _config(within / f"gpt-{layers}-{heads}", said)


def _config(folder: Path, said: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(said))
    return folder / "config.json"


def found_by(program: str, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Of each run, what it holds or how it was refused.

    Args:
        program: that starts them, `bridge_start.py`; in a process of its own, as stand-ins do not go away again.
        runs: what each is started with, with colons between.
    """
    words = [sys.executable, Path(__file__).with_name(program), *runs]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
