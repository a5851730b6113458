"""`--json`: exactly one object with the documented keys; equal questions give equal bytes, `timing` apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main
from tests.cli.conftest import Run
from tests.cli.files import DEVICE, SMALL_LLAMA

UNSIGNED = {"meshwright.validation/1"}
"""What names its own source; all else says what made it."""
PLAN_SET = {"made_by", "schema", "inputs", "verdict", "plans", "tie", "rank_map", "warnings"}
ESTIMATE = {
    *("step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s_per_device", "mfu", "hfu"),
    *("breakdown_s", "stages", "fits", "basis", "price_per_step", "energy_j", "traffic"),
}
BREAKDOWN = {
    *("compute", "recompute", "bubble", "tp", "cp", "ep", "pp", "dp"),
    *("optimizer", "offload", "host"),
}
MEMORY = {"weights", "gradients", "optimizer", "activations", "transient", "comm_buffers", "overhead"}
STAGE = {
    *("pipeline", "stage", "layers", "group", "devices", "tp", "cp", "ep", "dp", "mbs"),
    *("memory_bytes", "peak_memory_bytes", "capacity_bytes", "peak_moment", "busy_s"),
}
SEARCHED = PLAN_SET | {"search", "timing"}
ON_FEW = SEARCHED | {"trainers"}

QUESTIONS = {
    "plan gpt2 --gpus 2xH100 --gbs 8": ("meshwright.plan-set/1", ON_FEW),
    "plan gpt2 --gpus 2xH100 --gbs 8 --tokens 1T": ("meshwright.plan-set/1", ON_FEW | {"run"}),
    "plan gpt2 --gpus 1xH100 --gbs 4 --pareto": ("meshwright.plan-set/1", ON_FEW | {"pareto"}),
    "estimate llama-3-8b --gpus 8xH100 --plan tp4.pp2": ("meshwright.plan-set/1", PLAN_SET | {"trainers"}),
    "check gpt2 --gpus 2xH100 --gbs 8 --plan tp2": (
        "meshwright.check/1",
        {
            *("schema", "name", "title", "text", "ok", "exit_code", "legal", "fits", "dominated_by", "violations"),
            *("repairs", "mends", "warnings", "estimate", "inputs", "post_mortem", "read", "fix", "run"),
        },
    ),
    "explain plans.json": (
        "meshwright.explanation/1",
        {"schema", "name", "title", "text", "estimate", "ladder", "neighbours", "sensitivity", "notes"},
    ),
    "compare plans.json#1 plans.json#2": (
        "meshwright.comparison/1",
        {"schema", "text", "tie", "plans", "settings", "breakdown_s", "memory_bytes", "notes"},
    ),
    "size gpt2 --device H100 --gbs 8 --step-time 1": (
        "meshwright.size/1",
        {"schema", "device", "devices", "goal", "text", "considered", "curve", "plan_set"},
    ),
    "export plans.json --to megatron -o launch": (
        "meshwright.export/1",
        {"schema", "target", "name", "plan_hash", "directory", "files", "notes", "warnings", "start"},
    ),
    "schedule list": ("meshwright.schedules/1", {"schema", "schedules"}),
    "schedule 1f1b --p 4 --m 8": (
        "meshwright.schedule/1",
        {"schema", "name", "p", "m", "v", "makespan_s", "bubble_makespan", "bubble_span", "exact_semantics", "workers"},
    ),
    "schedule best --p 2 --m 3": (
        "meshwright.best-schedule/1",
        {
            *(
                "schema",
                "name",
                "p",
                "m",
                "v",
                "rule",
                "verdict",
                "objective",
                "makespan_s",
                "span_s",
                "bound_s",
                "gap",
                "best_named",
                "gain",
            ),
            *("bubble_makespan", "bubble_span", "candidates", "workers"),
        },
    ),
    "models list": ("meshwright.models/1", {"schema", "models"}),
    "models show llama-3.1-70b": (
        "meshwright.model/1",
        {
            *("schema", "name", "family", "parameters", "active_parameters", "layers", "mtp_layers", "hidden", "vocab"),
            *("max_seq_len", "mtp_parameters", "embedding_parameters", "head_parameters", "tied_embeddings"),
            *("layer_kinds", "aliases", "source", "notes"),
        },
    ),
    "models add config.json --name tiny --library lib": ("meshwright.model-added/1", {"schema", "path", "model"}),
    "gpus list": ("meshwright.gpus/1", {"schema", "gpus"}),
    "gpus show A100-80": (
        "meshwright.gpu/1",
        {
            *("schema", "name", "vendor", "year", "aliases", "peak_flop_per_s", "memory_bytes", "units"),
            *("memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s", "devices_per_node", "power_w"),
            *("price_per_device_hour", "efficiency", "node", "provenance", "notes"),
        },
    ),
    "gpus add gpu.toml --library lib": ("meshwright.gpu-added/1", {"schema", "path", "findings", "gpu"}),
    "doctor": (
        "meshwright.doctor/1",
        {"schema", "ok", "version", "python", "platform", "core", "optional", "library", "checks", "timing"},
    ),
    "validate measured.csv -o predictions.csv": (
        "meshwright.validation/1",
        {"schema", "measured", "rows", "predicted", "scores"},
    ),
}
"""Command line, schema, keys."""

MEASURED = (
    "id,usable,source,model_name,gpu,n_gpus,n_layers,hidden,ffn_hidden,n_heads,n_kv_heads,vocab,seq_len,gated_mlp,tp,pp,"
    "micro_batch,global_batch_seqs,dtype,target_iter_time_s\n"
    "one,True,here,llama-3-8b,H100,8,32,4096,14336,32,8,128256,4096,True,4,2,1,64,bf16,4.0\n"
)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan set of two plans that Megatron-LM can run."""
    path = tmp_path_factory.mktemp("plans") / "plans.json"
    words = "plan gpt2 --gpus 2xH100 --gbs 8 --top 2 --target megatron --json --output"
    assert main([*words.split(), str(path)]) == 0
    return path.read_text()


def prepare(folder: Path, plans: str) -> None:
    (folder / "plans.json").write_text(plans)
    (folder / "config.json").write_text(json.dumps(SMALL_LLAMA))
    (folder / "gpu.toml").write_text(DEVICE)
    (folder / "measured.csv").write_text(MEASURED)


@pytest.mark.parametrize("line", QUESTIONS)
def test_one_object_with_the_documented_keys(run: Run, tmp_path: Path, plans: str, line: str) -> None:
    prepare(tmp_path, plans)
    schema, keys = QUESTIONS[line]
    ran = run(*line.split(), "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert document["schema"] == schema
    assert set(document) == keys | (set() if schema in UNSIGNED else {"made_by"})
    assert ran.out == json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    "line", [line for line in QUESTIONS if line.split()[0] in ("plan", "estimate", "check", "size")]
)
def test_equal_questions_give_equal_bytes(run: Run, tmp_path: Path, plans: str, line: str) -> None:
    prepare(tmp_path, plans)

    def answer() -> dict[str, Any]:
        document = run(*line.split(), "--json").document
        document.pop("timing", None)
        if "plan_set" in document:
            document["plan_set"].pop("timing", None)
        return document

    assert answer() == answer()


def test_an_estimate_sums_to_its_totals(run: Run) -> None:
    document = run(
        "estimate", "mixtral-8x7b", "--gpus", "16xH100", "--plan", "tp2.pp2.ep4.mbs1.z1.rc-sel", "--json"
    ).document
    (plan,) = document["plans"]
    estimate = plan["estimate"]
    assert set(estimate) == ESTIMATE
    assert set(estimate["breakdown_s"]) == BREAKDOWN
    assert math.isclose(sum(estimate["breakdown_s"].values()), estimate["step_time_s"], rel_tol=1e-9)
    assert min(estimate["breakdown_s"].values()) >= 0
    assert estimate["step_time_low_s"] <= estimate["step_time_s"] <= estimate["step_time_high_s"]
    assert estimate["fits"] in ("yes", "tight", "no")
    layers = 0
    for stage in estimate["stages"]:
        assert set(stage) == STAGE
        assert set(stage["memory_bytes"]) == MEMORY
        assert math.isclose(sum(stage["memory_bytes"].values()), stage["peak_memory_bytes"], rel_tol=1e-9)
        layers += sum(last - first + 1 for first, last in stage["layers"])
    assert layers == document["inputs"]["model"]["layers"]
    assert sum(stage["devices"] for stage in estimate["stages"]) == 16
    assert plan["plan"]["schema"] == "meshwright.plan/1"
    assert document["inputs"]["assumptions"]


def test_the_search_says_what_it_proves(run: Run) -> None:
    document = run("plan", "gpt2", "--gpus", "2xH100", "--gbs", "8", "--json").document
    search = document["search"]
    assert set(search) >= {"space", "priced", "feasible", "pruned", "optimal", "bound_step_time_s"}
    assert search["optimal"] is True
    best = document["plans"][0]["estimate"]["step_time_s"]
    assert search["bound_step_time_s"] <= best * (1 + 1e-9)
    assert [plan["rank"] for plan in document["plans"]] == list(range(1, len(document["plans"]) + 1))
    assert document["verdict"]["text"]
    assert set(document["verdict"]["runner_up"]) == {"name", "title", "step_time_s", "loses_because"}


def test_the_written_file_is_the_answer_and_reads_back(run: Run, tmp_path: Path) -> None:
    ran = run("plan", "gpt2", "--gpus", "2xH100", "--gbs", "8", "--top", "2", "-o", "plans.json", "--json")
    assert json.loads((tmp_path / "plans.json").read_text()) == ran.document
    again = run("estimate", "--plan", "plans.json#2", "--json").document
    assert again["plans"][0]["estimate"] == ran.document["plans"][1]["estimate"]
    assert again["plans"][0]["plan"]["hash"] == ran.document["plans"][1]["plan"]["hash"]


def test_a_schedule_is_listed_in_full(run: Run) -> None:
    words = (
        "schedule",
        "interleaved",
        "--p",
        "2",
        "--m",
        "4",
        "--v",
        "2",
        "--tf",
        "1",
        "--ti",
        "1",
        "--tw",
        "1",
        "--json",
    )
    document = run(*words).document
    assert document["makespan_s"] == pytest.approx(4 * 3 + 1 * 3 / 2)
    for worker in document["workers"]:
        assert set(worker) == {"order", "peak_activations", "busy_s", "weight_copies"}
        assert len(worker["order"]) == 2 * 2 * 4
        assert worker["busy_s"] == pytest.approx(12)
    assert document["workers"][0]["order"][:2] == ["F0.0", "F0.1"]


def test_checks_and_searches_that_fail_say_so_in_their_exit_code(run: Run) -> None:
    illegal = run("check", "llama-3-8b", "--gpus", "4xH100", "--gbs", "8", "--plan", "tp3.dp2", "--json")
    assert illegal.code == 5
    assert illegal.document["ok"] is False
    assert illegal.document["repairs"]
    assert illegal.document["mends"] == illegal.document["repairs"]
    too_large = run("check", "llama-3-8b", "--gpus", "1xH100", "--gbs", "8", "--plan", "dp1", "--json")
    assert too_large.code == 5
    assert too_large.document["fits"] == "no"
    infeasible = run("plan", "llama-3-8b", "--gpus", "1xA100-40", "--gbs", "8", "--json")
    assert infeasible.code == 3
    assert infeasible.document["schema"] == "meshwright.error/1"
    assert infeasible.document["exit_code"] == 3


def test_a_regression_still_gives_its_scores(run: Run, tmp_path: Path) -> None:
    (tmp_path / "measured.csv").write_text(MEASURED)
    ran = run("validate", "measured.csv", "--fail-above", "0.001", "--json")
    assert ran.code == 5
    assert ran.document["schema"] == "meshwright.validation/1"
    assert "error[MW501]" in ran.err
