"""Galvatron's search engine for one slice: a question on standard input, an answer on standard output.

Runs in the interpreter that Galvatron is installed in and imports nothing of this package. As shipped, importing the
engine imports the runtime beside it, which needs torch, Megatron and a GPU's libraries; the engine itself needs numpy,
scipy and tqdm only. So its packages are entered without running their own imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

MILLI = 1e-3
MIB = 1024**2
SIZES_MIB = tuple(2**k for k in range(11))
"""Message sizes of a profile of collectives; the engine fits a line through them."""


def engine_module() -> Any:
    """Galvatron's search engine, without the packages around it."""
    spec = importlib.util.find_spec("galvatron")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("Galvatron is not installed here: pip install --no-deps hetu-galvatron, and scipy tqdm")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in ("galvatron", "galvatron.core", "galvatron.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    for part in ("config_utils", "strategy_utils"):
        module = importlib.import_module(f"galvatron.utils.{part}")
        for name in vars(module):
            if not name.startswith("_"):
                setattr(sys.modules["galvatron.utils"], name, getattr(module, name))
    return importlib.import_module("galvatron.core.search_engine.search_engine")


def profile_files(asked: dict[str, Any], devices: int, folder: Path) -> tuple[int, int]:
    """Write what Galvatron's profilers would have measured; the nodes and devices of a node that it is for."""
    profile, seq = asked["profile"], asked["workload"]["seq_len"]
    per_node = min(devices, asked["island"]["devices_per_node"])
    nodes = devices // per_node
    reach = {int(size): speed for size, speed in profile["allreduce_gb_s"].items()}
    name = f"{nodes}nodes_{per_node}gpus_per_node.json"

    def write(file: str, content: dict[str, Any]) -> None:
        (folder / file).write_text(json.dumps(content))

    sizes = [size for size in reach if 2 <= size <= devices]
    bandwidth = {}
    for size in sizes:
        bandwidth[f"allreduce_size_{size}_consec_1"] = reach[size]
        # A group that is not consecutive spans all devices.
        bandwidth[f"allreduce_size_{size}_consec_0"] = reach[devices]
    write(f"allreduce_bandwidth_{name}", bandwidth)
    write(f"p2p_bandwidth_{name}", {})
    write("overlap_coefficient.json", {"overlap_coe": profile["overlap_slowdown"]})
    times = {}
    for size in sizes:
        for mib in SIZES_MIB:
            once_ms = profile["latency_s"] / MILLI + mib / reach[size]
            times[f"allreduce_size_{size}_{mib}MB_time"] = 2 * (size - 1) / size * once_ms
            times[f"all2all_size_{size}_{mib}MB_time"] = (size - 1) / size * once_ms
    write(f"sp_time_{name}", times)
    layer, edges = profile["layer"], profile["edges"]
    write(
        "computation_profiling_bf16_slice.json",
        {
            f"layertype_0_bsz1_seq{seq}": layer["forward_s"] / MILLI,
            f"layertype_other_bsz1_seq{seq}": edges["forward_s"] / MILLI,
        },
    )
    degrees = [1, *sizes]
    kept = {str(tp): layer["kept_bytes"] / tp / MIB for tp in degrees}
    other = {
        "model_states": {str(tp): 16 * edges["parameters"] / tp / MIB for tp in degrees},
        "activation": {str(tp): edges["kept_bytes"] / tp / MIB for tp in degrees},
    }
    memory: dict[str, Any] = {
        "layertype_0_sp": {
            str(seq): {
                "parameter_size": 4 * layer["parameters"] / MIB,
                "tp_activation_per_bsz_dict": kept | {"checkpoint": layer["input_bytes"] / MIB},
            }
        }
    }
    memory |= {f"other_memory_pp_{where}_sp": {str(seq): other} for where in ("off", "on_first", "on_last")}
    write("memory_profiling_bf16_slice.json", memory)
    return nodes, per_node


def engine_settings(asked: dict[str, Any], nodes: int, per_node: int, folder: Path) -> types.SimpleNamespace:
    """The engine's settings: one stage, one micro-batch, tensor and data degrees, sharding, recompute by layer."""
    limit_gib = int(asked["island"]["memory_bytes"] / 1024**3)
    return types.SimpleNamespace(
        num_nodes=nodes,
        num_gpus_per_node=per_node,
        memory_constraint=limit_gib,
        min_bsz=1,
        max_bsz=1,
        bsz_scale=1,
        recommend_min_bsz=0,
        settle_bsz=asked["micro_batch"],
        settle_chunk=1,
        search_space="full",
        sp_space="tp",
        disable_dp=0,
        disable_tp=0,
        disable_vtp=0,
        disable_pp=1,
        disable_sdp=0,
        disable_ckpt=0,
        disable_tp_consec=1,
        max_tp_deg=per_node,
        max_pp_deg=1,
        default_dp_type="ddp",
        embed_sdp=0,
        mixed_precision="bf16",
        pipeline_type="pipedream_flush",
        use_pipeline_costmodel=1,
        costmodel_coe=1.0,
        sequence_parallel=True,
        global_memory_buffer=False,
        async_grad_reduce=True,
        make_vocab_size_divisible_by=128,
        fine_grained_mode=1,
        time_profile_mode="static",
        memory_profile_mode="static",
        parallel_search=False,
        hidden_size=asked["model"]["hidden"],
        log_dir=str(folder / "logs"),
        **{
            f"{name}_path": f"{folder}/"
            for name in (
                "memory_profiling",
                "time_profiling",
                "allreduce_bandwidth_config",
                "p2p_bandwidth_config",
                "overlap_coe",
                "sp_time",
                "output_config",
            )
        },
    )


def searched(module: Any, asked: dict[str, Any], devices: int, folder: Path) -> dict[str, Any] | None:
    """The engine's plan for so many devices as an answer; None where it finds none."""
    nodes, per_node = profile_files(asked, devices, folder)
    found: list[dict[str, Any]] = []

    class Engine(module.GalvatronSearchEngine):  # type: ignore[misc]
        def dynamic_programming(
            self,
            strategies: Any,
            batch: Any,
            chunk: Any,
            global_micro_batches: Any,
            stages: Any,
            min_tp: int,
            max_tp: int,
            *more: Any,
        ) -> dict[str, Any]:
            result = super().dynamic_programming(
                strategies, batch, chunk, global_micro_batches, stages, min_tp, max_tp, *more
            )
            # The memory of a strategy depends on the tensor degrees that the engine allowed beside it.
            return {**result, "tensor_limits": (min_tp, max_tp)}

        def save_results(self, results: dict[str, Any], *_: Any) -> None:
            found.append(results)

    engine = Engine(engine_settings(asked, nodes, per_node, folder))
    seq, layers = asked["workload"]["seq_len"], asked["slice"]["layers"]
    shape = {"hidden_size": asked["model"]["hidden"], "layer_num": layers, "seq_len": seq}
    engine.set_search_engine_info(str(folder), [shape], "slice")
    engine.initialize_search_engine()
    engine.parallelism_optimization()
    if not found or not found[0]["min_res_list"]:
        return None
    chosen = found[0]["min_res_list"]
    while isinstance(chosen[0][0], list):
        chosen = [strategy for stage in chosen for strategy in stage]
    limits = dict(zip(("min_tp", "max_tp"), found[0]["tensor_limits"], strict=True))
    return priced_answer(module, engine, asked, chosen, float(found[0]["min_cost"]), limits)


def priced_answer(
    module: Any, engine: Any, asked: dict[str, Any], chosen: list[Any], whole_s: float, limits: dict[str, int]
) -> dict[str, Any]:
    """Times and bytes of the chosen strategies by Galvatron's own cost models, under the limits it chose them with."""
    global_micro_batch = asked["micro_batch"]
    models = {
        "model_args": engine.model_args_list[0],
        "train_args": engine.train_args_list[0],
        "parallel_args": engine.parallel_args_list[0],
        "profile_model_args": engine.profile_model_args_list[0],
    }
    forward_s = backward_s = sync_s = state_mib = kept_mib = 0.0
    for strategy in chosen:
        hardware = {"profile_hardware_args": engine.profile_hardware_args_list[0]}
        alone = module.TimeCostModel(strategy, global_micro_batch, no_comm=True, **models, **hardware)
        with_s = module.TimeCostModel(strategy, global_micro_batch, **models, **hardware).gen_result()
        alone_s = alone.gen_result()
        # Of what tensor ranks send, a third or a half is in forward: 2 of 6 with recompute, 2 of 4 without.
        share = 1 / 3 if strategy[-1].get("cpt") else 1 / 2
        once_s = MILLI * (alone.fct + share * alone.tp_communication_time) / alone.layer_num
        forward_s += once_s
        backward_s += alone_s - once_s
        sync_s += with_s - alone_s
        memory = module.MemoryCostModel(strategy, global_micro_batch, mbsz=global_micro_batch, **limits, **models)
        state_mib += memory.model_states_size
        kept_mib += memory.activation_size
    rest_s = max(0.0, whole_s - forward_s - backward_s - sync_s)
    edges = asked["profile"]["edges"]
    tp, dp = max(strategy[1] for strategy in chosen), min(strategy[2] for strategy in chosen)
    return {
        "runs": runs_of(chosen),
        "forward_s": forward_s + rest_s / 3,
        "backward_s": backward_s + rest_s * 2 / 3,
        "sync_s": max(0.0, sync_s),
        "state_bytes": state_mib * MIB + 16 * edges["parameters"] / tp,
        "activation_bytes": kept_mib * MIB + edges["kept_bytes"] * global_micro_batch / (tp * dp),
    }


def runs_of(chosen: list[Any]) -> list[dict[str, Any]]:
    """Equal neighbours together, in the one-line form."""
    runs: list[dict[str, Any]] = []
    for _, tp, dp, flags in chosen:
        words = [f"tp{tp}", f"dp{dp}", *(["z3"] if flags.get("fsdp") and dp > 1 else [])]
        text = ".".join([*words, *(["rc-full"] if flags.get("cpt") else [])])
        if runs and runs[-1]["strategy"] == text:
            runs[-1]["layers"] += 1
        else:
            runs.append({"layers": 1, "strategy": text})
    return runs


def main() -> None:
    """Answer one question; what the engine prints goes to standard error."""
    here = Path(__file__).parent.resolve()
    # Modules beside this file are no modules of Galvatron's.
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != here]
    asked = json.load(sys.stdin)
    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = engine_module()
    plans = []
    for power in range(asked["island"]["devices"].bit_length()):
        devices = 1 << power
        per_node = min(devices, asked["island"]["devices_per_node"])
        if devices > asked["island"]["devices"] or devices % per_node or asked["micro_batch"] % (devices // per_node):
            continue
        with tempfile.TemporaryDirectory() as folder:
            plan = searched(module, asked, devices, Path(folder))
        if plan is not None:
            plans.append(plan)
    json.dump({"plans": plans}, answer_to)
    answer_to.close()


if __name__ == "__main__":
    main()
