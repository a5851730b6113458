"""Our operator list beside the classes of Transformers, layer kind by layer kind: `python -m benchmarks.xray_kinds`.

Needs an interpreter that has Transformers (`make test-targets` makes one). Every model is run as its class with the
first layers of its published shape, forward and backward, on tensors without contents (`xray --framework module`).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.estimate.hardware import hardware_of
from meshwright.fields.job import JobFields
from meshwright.library.models import config_of
from meshwright.planning.plan_source import plan_question
from meshwright.xray.compare import ProductRow, product_rows
from meshwright.xray.ours import FORMS, rank_work
from meshwright.xray.traced import Traced

KINDS: Mapping[str, tuple[str, int]] = {
    "gated, grouped queries": ("llama-3.2-1b", 2),
    "biases on queries, keys and values": ("qwen2.5-0.5b", 2),
    "norms of heads": ("qwen3-0.6b", 2),
    "plain MLP, learned positions": ("gpt2-medium", 2),
    "attention and MLP side by side": ("gpt-j-6b", 2),
    "one key head": ("falcon-7b", 2),
    "ALiBi": ("bloom-7b1", 2),
    "sliding windows, capped scores": ("gemma-2-2b", 2),
    "windows of five in six layers": ("gemma-3-1b", 6),
    "experts beside an MLP, keys that are values": ("gemma-4-26b-a4b", 6),
    "inputs of each layer, keys of earlier layers": ("gemma-4-e2b", 35),
    "experts": ("mixtral-8x7b", 2),
    "small experts, norms of heads": ("qwen3-30b-a3b", 2),
    "a gated shared expert": ("qwen1.5-moe-a2.7b", 2),
    "sinks, experts with biases": ("gpt-oss-20b", 2),
    "latent attention": ("minicpm3-4b", 2),
    "latent attention, experts in groups": ("deepseek-v3", 5),
    "Mamba, experts in every other layer": ("jamba-52b", 8),
    "Mamba-2 alone": ("mamba-codestral-7b", 2),
    "Mamba-2, attention, experts, one each a layer": ("nemotron-3-nano-30b-a3b", 8),
    "gated delta net, gated attention, experts": ("qwen3-next-80b-a3b", 4),
    "gated delta net, dense": ("olmo-hybrid-7b", 4),
    "windows, sinks, experts": ("mimo-v2-flash", 6),
    "an encoder": ("bert-base", 2),
    "encoder and decoder": ("t5-small", 6),
}
"""Kind of layer, a model of the library that has it, and how many layers show it."""
STEPWISE = "jamba-52b"
"""Its class goes through the sequence token by token without CUDA kernels."""
LIMIT_S = 120


def cut(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The config with its first layers: every list of one entry a layer is cut with them."""
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    counts = [key for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if key in config]
    whole = config[counts[0]] if counts else 0

    def of(key: str, value: Any) -> Any:
        if key in counts:
            return min(layers, value)
        return value[:layers] if isinstance(value, (list, str)) and len(value) == whole > 1 else value

    return {key: of(key, value) for key, value in config.items() if key != "num_nextn_predict_layers"}


def tokens_of(model: str, config: Mapping[str, Any]) -> int:
    """A sequence that experts share evenly, of a length that no width of the model is likely to have."""
    experts = [v for k, v in config.items() if k in _EXPERTS and isinstance(v, int)]
    return 7 * max(experts, default=32) if model != STEPWISE else 224


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def compared(model: str, layers: int, folder: Path) -> tuple[int, tuple[ProductRow, ...], Traced, int]:
    """Tokens, products seen beside ours, the whole of what was seen, and parameters that we count."""
    from meshwright.xray.__main__ import run

    config = cut(config_of(model) or {}, layers)
    path = folder / f"{model}.json"
    path.write_text(json.dumps(config))
    tokens = tokens_of(model, config)
    job = plan_question("dp1.z0.mbs1.gbs1", JobFields(model=str(path), gpus="1xH100", seq_len=tokens)).job
    question = {"framework": "module", "rank": 0, "world": 1, "config": config, "sequence": tokens, "micro_batch": 1}
    found = json.loads(json.dumps(run(question)))
    seen = Traced.of(found)
    work = rank_work(job, 0, 1, FORMS["module"])
    hardware = hardware_of(job.cluster.groups[0], job.workload)
    rows = product_rows(seen, work, hardware, job.workload.precision, in_pieces=True)
    return tokens, rows, seen, job.model.parameters


def lines(models: Mapping[str, tuple[str, int]]) -> Iterator[str]:
    """A row of the table a kind, what differs below it."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, (model, layers) in models.items():
            signal.signal(signal.SIGALRM, _late)
            signal.alarm(LIMIT_S)
            try:
                tokens, rows, seen, ours = compared(model, layers, Path(folder))
            except Exception as error:
                yield f"| {kind} | {model} | not run: {type(error).__name__} {str(error)[:150]!r} | | |"
                continue
            finally:
                signal.alarm(0)
            same = sum(row.same for row in rows)
            off = seen.parameters / ours - 1.0
            yield f"| {kind} | {model}, {layers} layers, {tokens:,} tokens | {same} of {len(rows)} | {off:+.3%} |"
            for row in rows:
                if not row.same:
                    shape = f"{row.groups} x {row.result} over {row.inner}"
                    yield f"    {row.phase} {shape}: {row.seen} seen, {row.ours} ours"


def _late(*_: object) -> None:
    raise TimeoutError(f"not done after {LIMIT_S} s")


def main() -> None:
    """Print the table, or only these models of the library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names of the library, in place of those that stand for a kind")
    parser.add_argument("--layers", type=int, default=4)
    asked = parser.parse_args()
    sys.setrecursionlimit(10_000)
    for line in lines({one: (one, asked.layers) for one in asked.models} or KINDS):
        print(line, flush=True)


if __name__ == "__main__":
    main()
