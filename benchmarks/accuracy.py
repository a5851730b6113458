"""Accuracy: `python -m benchmarks.accuracy [--measured DIR] [--no-write]`.

Predicts every run of the measured files and writes what comes out, whatever it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT, machine, markdown_table, today, version, write_page
from benchmarks.accuracy_classes import classes_text, read_left_out
from benchmarks.accuracy_goals import goals_text
from benchmarks.accuracy_reasons import FINE_EXPERT, number, why_off
from benchmarks.accuracy_scale import Row, coverage_text, scale_text
from benchmarks.accuracy_tuning import ADAPTERS, tuning_rows
from benchmarks.headlines import headline_text
from benchmarks.kernels import kernels_section
from benchmarks.peers import peers_text
from benchmarks.scatter_svg import Dot, scatter_svg
from meshwright.app.validate import Prediction, compared_rows, predict
from meshwright.formats.measured import REQUIRED, campaign, read_rows
from meshwright.library.calibration import PACKAGED
from meshwright.report.score_table import HEADINGS, Compared, score, score_by_group, score_cells

VARIABLE = "MESHWRIGHT_MEASURED"
FILES = {
    "throughput.csv": ("time", "Speed", "seconds per step, runs on 1 to 6,144 devices"),
    "throughput_single_node.csv": (
        "time",
        "Speed of small models on one node",
        "GPT models of 0.2 to 1.3 billion parameters on 2, 4 or 8 A100: mostly bound by the host, not by the device",
    ),
    "throughput_2.csv": ("time", "Speed, second set", "one node of B200, FSDP2 with experts, nanotron, MaxText on TPU"),
    "throughput_3.csv": (
        "time",
        "Speed, third set",
        "Qwen3 on four devices, the Llama 3 paper, torchtitan to 262,144 tokens, GB200 of May 2025",
    ),
    "mlperf_v50.csv": ("time", "MLPerf Training", "full training in rounds v3.1 to v5.0, on 64 to 11,616 devices"),
    ADAPTERS: (
        "time",
        "Adapters",
        "seconds per step of LoRA on 1 to 1,024 devices; rows of mlperf_v50.csv and throughput_2.csv",
    ),
    "memory.csv": ("memory", "Memory", "peak per device, counted as each source counts it"),
    "memory_2.csv": ("memory", "Memory, second set", "SimuMax on B200, nanotron"),
    "memory_3.csv": ("memory", "Memory, third set", "torchtitan, 8 to 512 H100"),
}
"""File: what is scored, its heading, and what it holds."""

WORST = 10
WIDE = 4096

COLUMNS = (
    (
        "id, source, year, group",
        "name of the run, where it was published, when; runs that are near-duplicates share a group",
    ),
    ("model_name, arch, n_layers, hidden, ffn_hidden, n_heads, n_kv_heads, head_dim, vocab", "the dense shape"),
    ("n_experts, top_k, moe_ffn_hidden, gated_mlp", "experts; whether the MLP has three matrices"),
    (
        "gpu, gpu_mem_gb, n_gpus, nodes_gpus, intra_link, inter_link",
        "the cluster; `nodes_gpus` are devices of one node",
    ),
    ("seq_len, global_batch_seqs, micro_batch", "tokens of a sequence; sequences per step and per micro-batch"),
    ("tp, sp, pp, vpp, cp, ep, etp, dp, schedule", "degrees; a blank `dp` is what is left of the devices"),
    ("zero_stage, dtype, recompute, recompute_detail, attention, framework, notes", "the source's own words"),
    ("target_iter_time_s, target_peak_mem_gib", "what was measured: seconds per step; GiB per device"),
    ("mem_kind, mem_counted", "what a memory figure counts: allocated, reserved, or the whole device"),
    ("usable, why_not", "False for runs that are not scored, and why"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One measured file, predicted."""

    name: str
    records: list[dict[str, str]]
    predictions: list[Prediction]

    def compared(self, by: str) -> list[Compared]:
        """Its scored runs."""
        return compared_rows(self.records, self.predictions, FILES[self.name][0], by)

    @property
    def metric(self) -> str:
        """`time` or `memory`."""
        return FILES[self.name][0]

    @property
    def figure(self) -> str:
        """File of its figure, beside the page."""
        return f"accuracy-{self.name.removesuffix('.csv').replace('_', '-')}.svg"

    def rows(self, by: str) -> list[Row]:
        """Scored runs with their record and prediction."""
        records = {record["id"]: record for record in self.records}
        predictions = {found.id: found for found in self.predictions}
        return [(records[run.id], predictions[run.id], run) for run in self.compared(by)]


def find_folder(stated: str | None) -> Path | None:
    """The folder of the measured files: as stated, as MESHWRIGHT_MEASURED says, or one called `measured` nearby."""
    if stated or os.environ.get(VARIABLE):
        folder = Path(stated or os.environ[VARIABLE]).expanduser()
        return folder if any((folder / name).is_file() for name in FILES) else None
    near = [ROOT / "measured", ROOT.parent / "measured"]
    near += [folder / "measured" for folder in sorted(ROOT.parent.iterdir()) if folder.is_dir()]
    return next((folder for folder in near if (folder / "throughput.csv").is_file()), None)


def read_parts(folder: Path) -> list[Part]:
    """Predict every file that is there."""
    parts = []
    for name in FILES:
        records = tuning_rows(folder) if name == ADAPTERS else []
        if (folder / name).is_file():
            records = [{**record, "source": campaign(record)} for record in read_rows(folder / name)]
        if any((record.get("usable") or "True").lower() == "true" for record in records):
            parts.append(Part(name, records, [predict(record) for record in records]))
    return parts


def part_text(part: Part) -> str:
    """The section of one file."""
    _, heading, what = FILES[part.name]
    by_source, by_gpu = part.compared("source"), part.compared("gpu")
    overall = score("ALL", by_source)
    sections = [
        f"## {heading}",
        f"{len(part.records)} rows of `{part.name}` ({what}), {overall.runs} of them scored.",
        f"![{heading}: predicted against measured]({part.figure})",
        _table("source", by_source),
    ]
    for first, runs in (
        ("device", by_gpu),
        ("framework", _regrouped(part, lambda record, found: found.framework)),
        ("kind of model", _regrouped(part, lambda record, found: model_kind(record))),
        ("format", _regrouped(part, lambda record, found: record.get("dtype", "").split(" ")[0].lower())),
    ):
        if len({run.group for run in runs}) > 1:
            sections.append(_table(first, runs, overall=False))
    if part.metric == "time":
        sections.append(scale_text(part.rows("source"), by_source))
    sections += [_refused(part), _worst(part, by_source)]
    return "\n\n".join(section for section in sections if section)


def _regrouped(part: Part, group: Callable[[dict[str, str], Prediction], str]) -> list[Compared]:
    return [replace(run, group=group(record, found)) for record, found, run in part.rows("source")]


def model_kind(record: dict[str, str]) -> str:
    """Dense or with experts, by size."""
    if record.get("n_experts"):
        return "fine experts" if number(record, "moe_ffn_hidden") <= FINE_EXPERT else "wide experts"
    wide = number(record, "hidden") >= WIDE
    return f"dense, {'at least' if wide else 'less than'} {WIDE} wide"


def figure(part: Part) -> str:
    """Predicted against measured, coloured by device."""
    unit = "s" if part.metric == "time" else "GiB"
    dots = [
        Dot(
            measured=run.measured,
            predicted=run.predicted,
            kind=run.group.split(" (")[0],
            text=f"{record.get('model_name', '')}, {record.get('source', '')}: {found.plan}, {run.error:+.0%}",
        )
        for record, found, run in part.rows("gpu")
        if run.predicted
    ]
    return scatter_svg(FILES[part.name][1], unit, dots)


def _table(first: str, runs: Sequence[Compared], *, overall: bool = True) -> str:
    scores = score_by_group(runs)[0 if overall else 1 :]
    return markdown_table((first, *HEADINGS[1:]), score_cells(scores))


def _refused(part: Part) -> str:
    """Why scored runs have no prediction."""
    scored = {run.id for run in part.compared("source") if run.predicted is None}
    reasons = Counter(found.why_not for found in part.predictions if found.id in scored)
    if not reasons:
        return ""
    lines = [f"* {count} x {why}" for why, count in reasons.most_common()]
    return "Not predicted, and why:\n\n" + "\n".join(lines)


def _worst(part: Part, runs: Sequence[Compared]) -> str:
    """The runs furthest off, as factors so that half and double count alike, with what is known about them."""
    done = [run for run in runs if run.predicted]
    done.sort(key=lambda run: -max(run.measured / (run.predicted or 1), (run.predicted or 1) / run.measured))
    records = {record["id"]: record for record in part.records}
    predictions = {found.id: found for found in part.predictions}
    rows = []
    seen: set[tuple[str, str]] = set()
    for run in done:
        record = records[run.id]
        kind = record.get("source", ""), record.get("model_name", "")
        if kind in seen or len(seen) == WORST:
            continue
        seen.add(kind)
        rows.append(
            (
                f"{record.get('model_name', '')}, {record.get('n_gpus', '')} x {record.get('gpu', '')}"
                f" ({record.get('source', '')})",
                f"`{predictions[run.id].plan}`",
                f"{run.measured:.3g}",
                f"{run.predicted:.3g}",
                f"{run.error:+.0%}",
                why_off(record, run.error or 0.0, FILES[part.name][0]),
            )
        )
    unit = "s" if FILES[part.name][0] == "time" else "GiB"
    headings = ("run", "plan", f"measured, {unit}", f"predicted, {unit}", "error", "likely reason")
    return (
        f"The {len(rows)} furthest off, the worst of each model and source:\n\n" + markdown_table(headings, rows)
        if rows
        else ""
    )


def calibration_data() -> dict[str, Any]:
    """The calibration that came with the package, as it stands in its file."""
    return json.loads(PACKAGED.read_text("utf-8")) if PACKAGED.is_file() else {}


def fitted_text(record: dict[str, Any]) -> str:
    """What was fitted to runs like these, and how well it does on sources it has not seen."""
    if not record:
        return "No number was fitted to these runs: devices are data-sheet peaks with the best published kernels."
    runs = record["runs"]
    again = record["source"].partition("; ")[2]
    (before, _), (after, p90), (unseen, unseen_p90) = (
        (record["errors"][name]["median"], record["errors"][name]["p90"]) for name in ("before", "after", "left_out")
    )
    return (
        f"{len(record['numbers'])} numbers of device generations and frameworks, none of a run, a model or a source,\n"
        f"were fitted on {record['date']}{f' ({again})' if again else ''} to {runs} of these runs\n"
        "(`meshwright calibrate`, at most 40 a source): the median error of those was "
        f"{before:.1%} before and {after:.1%} after\n(p90 {p90:.1%}), and {unseen:.1%} (p90 "
        f"{unseen_p90:.1%}) for each source when the fit had not seen it."
    )


def _classes(parts: list[Part]) -> str:
    """Every scored run of a step time; adapters are in no fit."""
    rows = [(row, part.name != ADAPTERS) for part in parts if part.metric == "time" for row in part.rows("source")]
    return classes_text(rows, read_left_out(ROOT / "benchmarks" / "left_out.csv")) if rows else ""


def _peers(parts: list[Part]) -> str:
    """The largest file, as far as other estimators go."""
    return next((peers_text(part.rows("source")) for part in parts if part.name == "throughput.csv"), "")


def _goals(parts: list[Part]) -> str:
    found = {part.name: part for part in parts}
    speed, single = found.get("throughput.csv"), found.get("throughput_single_node.csv")
    if speed is None:
        return ""
    runs = speed.compared("source"), speed.rows("source"), single.compared("source") if single else None
    memory, adapters = found.get("memory.csv"), found.get(ADAPTERS)
    tuned = (adapters.compared("source"), _verdicts(adapters)[0]) if adapters else None
    own = memory.compared("source") if memory else None
    return goals_text(*runs, own, _verdicts(memory), calibration_data(), tuned)


def _verdicts(memory: Part | None) -> tuple[Counter[str], Counter[str]]:
    """Verdicts on runs that ran, and on those that ran out of memory."""
    ran: Counter[str] = Counter()
    died: Counter[str] = Counter()
    for record, prediction in zip(memory.records, memory.predictions, strict=True) if memory else ():
        if record.get("usable") == "True" and prediction.verdict:
            ran[prediction.verdict] += 1
        elif record.get("mem_kind") == "OOM" and prediction.verdict:
            died[prediction.verdict] += 1
    return ran, died


def page(parts: list[Part], kernels: str = "") -> str:
    """The page of the documentation, with a section on kernels."""
    metrics = {name: FILES[name][0] for name in (part.name for part in parts)}
    summary = markdown_table(
        ("file", "metric", *HEADINGS[1:]),
        [
            (part.name, metrics[part.name], *score_cells([score("ALL", part.compared("source"))])[0][1:])
            for part in parts
        ],
    )
    columns = markdown_table(("columns", "content"), COLUMNS).replace("|---:|", "|---|")
    bodies = "\n\n".join(part_text(part) for part in parts)
    return f"""# Accuracy

Written by `make accuracy` on {today()}: {version()} on {machine()}.

Predictions of published training runs, made from what each source says and nothing else. Error is
predicted / measured - 1; *median error* and *p90 error* are of its absolute value, *bias* is its median, *in interval*
is the share of measurements inside the predicted low and high.

{summary}

Two things to know when reading this. {fitted_text(calibration_data())}

What a source leaves open (micro-batch, recompute, format, overlap) is filled in by fixed rules from the framework and
the year, some of which were added after looking at outliers.

{_classes(parts)}

{_peers(parts)}

## Public headline runs

What was published, and what the command below each says.

{headline_text()}

{_goals(parts)}
{coverage_text(calibration_data())}

{bodies}

{kernels}
## What is assumed where a source is silent

* Micro-batch: 1 in a pipeline or with experts; else the largest of 4, 2 and 1 that divides the batch and fits.
* Recompute: full in Megatron-LM before 2022; else the first of none, selective and full that fits, or
  lacks less than a tenth of the memory.
* Chunks: interleaved in a pipeline of Megatron-Core, up to 8 a worker, where they divide the layers.
* Embedding and head: a layer's place each where only that makes equal stages.
* Layers: equal shares per stage where they divide, else balanced by weight.
* Sharding: the distributed optimizer in Megatron-Core and NVIDIA's recipes, FSDP in PyTorch and JAX, else none.
* Attention: fused, but for Megatron-LM before Megatron-Core and Megatron-DeepSpeed, which have to be asked.
* Sequence parallelism: with tensor parallelism from 2022 on, not in Megatron-DeepSpeed.
* Expert tensor degree: the tensor degree, Megatron-Core's default; 1 where experts fold, or from 2026 on.
* Overlap: of gradients in Megatron-Core, PyTorch and JAX; of tensor-parallel products in NVIDIA's recipes for dense
  models.
* Gradients: 16 bits in NVIDIA's performance recipes and DeepSpeed's engine, else as the format's recipe says.
* Weights cross the network in fp8 under NVIDIA's fp8 recipes and torchtitan's, else in 16 bits.
* Nodes whose devices are joined by a stated number of NVLinks per pair are boards of as many as that allows, joined by
  PCIe.
* Format: 16 bits that are not named are fp16.
* Tokens of experts: one copy to a node in Megatron-Bridge's recipes and where DeepEP or HybridEP is named, else one to
  every expert.
* Settings of Megatron-Bridge's tables that print none: those of the recipe in the release's code.
* Zero-bubble schedules: the searched ones as the handcrafted ones of the same memory.

## Columns of a measured file

One run a row, a header, blanks for what the source does not say. {", ".join(f"`{name}`" for name in REQUIRED)} must be
there; a row without the rest of its shape is refused with the reason.

{columns}
"""


def main(arguments: list[str] | None = None) -> int:
    """Predict, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description="Score meshwright's predictions."
    )
    parser.add_argument("--measured", metavar="DIR", help=f"folder of {', '.join(FILES)}; else {VARIABLE}")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    folder = find_folder(options.measured)
    if folder is None:
        print(f"no measured runs found: give --measured DIR or set {VARIABLE} to a folder with {', '.join(FILES)}")
        return 2
    parts = read_parts(folder)
    text = page(parts, kernels_section(folder))
    print(text)
    broken = [found for part in parts for found in part.predictions if found.why_not.startswith("internal: ")]
    for found in broken:
        print(f"{found.id}: {found.why_not}", file=sys.stderr)
    if not options.no_write:
        for part in parts:
            write_page(part.figure, figure(part))
        print(f"written to {write_page('accuracy.md', text)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
