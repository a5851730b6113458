"""Speed: `python -m benchmarks [--runs N] [--install] [--no-write]`.

Commands are timed as whole processes, start of the interpreter included; the median of several runs counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT, load, machine, markdown_table, today, version, write_page
from benchmarks.calculon import calculon_lines
from benchmarks.channels import runtime_lines
from benchmarks.deep_layers import depth_lines
from benchmarks.mixed import mixed_lines
from benchmarks.page import page_lines
from benchmarks.service_load import service_lines
from benchmarks.simulator import simulator_lines
from benchmarks.sweep import sweep_lines
from benchmarks.timing import Line, median_run, meshwright_command, run

MIB = 2**20
MEGABYTE = 1e6

PLANS = (
    ("llama-3.1-70b", "1024xH100", 2.0),
    ("llama-3.1-405b", "16384xH100", 5.0),
    ("deepseek-v3", "2048xH800", 5.0),
)
"""Model, cluster, and the seconds a plan over the whole default space should take at most."""

ELSEWHERE = (
    ("Calculon", "README search: one model, one system, 8,112 configurations", "61.9 s: 133 configurations per second"),
    ("AIConfigurator", "first answer: Qwen3-32B, 32 H200, inference", "19.9 s (13.6 s again)"),
    ("Galvatron", "Llama-2-7B on 8 GPUs, batch 64", "188 s"),
    ("Metis", "GPT-Neo-2.7B on 64 GPUs of two kinds, batch 512", "109 s (47 s of processor time)"),
    ("Sailor", "OPT-350M on 128 GPUs of two kinds, batch 1024", "0.7 s"),
    ("Sailor", "OPT-350M on 128 GPUs of three kinds, batch 1024", "209 s"),
)
"""What others take, each measured with their own public code on 2 cores without a GPU; their tasks differ from ours."""

CALCULON_PER_S = 133.0
FIRST_ANSWER_S, INSTALLED_MB = 19.9, 850.0
"""Calculon's configurations per second; AIConfigurator's first answer and its size installed."""


def start_lines(runs: int) -> list[Line]:
    """What starting costs."""
    lines = []
    help_run = median_run([*meshwright_command(), "--help"], runs)
    import_run = median_run([sys.executable, "-c", "import meshwright"], runs)
    bare = median_run([sys.executable, "-c", "pass"], runs)
    note = f"of which Python itself {bare.wall_s:.2g} s" if bare else ""
    for what, found in (("`meshwright --help`", help_run), ("`import meshwright`", import_run)):
        lines.append(Line(what, found.wall_s if found else None, 0.25, "s", note=note))
    return lines


def plan_lines(runs: int) -> list[Line]:
    """What planning costs, start included, and the most memory any of them took."""
    lines, peaks = [], []
    for model, gpus, target in PLANS:
        command = [*meshwright_command(), "plan", model, "--gpus", gpus]
        found = median_run(command, runs)
        what = f"`plan {model} --gpus {gpus}`"
        if found is None:
            lines.append(Line(what, None, target, "s"))
            continue
        peaks.append(found.peak_bytes)
        note = (
            f"{found.processor_s:.3g} s of processor time; {_space(command)}; "
            f"{FIRST_ANSWER_S / found.wall_s:.2g} times quicker than AIConfigurator's first answer"
        )
        lines.append(Line(what, found.wall_s, target, "s", note=note))
    peak = max(peaks) / MIB if peaks else None
    lines.append(Line("peak memory of these", peak, 1024, "MiB"))
    return lines


def _space(command: list[str]) -> str:
    """How many plans the space holds and what became of them."""
    shown = run([*command, "--json"])
    if shown.code:
        return ""
    search = json.loads(shown.output).get("search") or {}
    space, priced, simulated = (int(search.get(name) or 0) for name in ("space", "priced", "simulated"))
    proven = "best one proven" if search.get("optimal") else "best one not proven"
    return f"{space:,} plans in the space, {priced:,} priced, {simulated:,} simulated, {proven}"


def pricing_line() -> Line:
    """Plans priced per second, without pruning: time bound and memory of every plan of a whole default space."""
    from meshwright.library.clusters import resolve_gpus
    from meshwright.library.models import resolve
    from meshwright.search.search import price_all
    from meshwright.specs.workload import Workload

    question = resolve("llama-3.1-70b"), resolve_gpus("1024xH100"), Workload(seq_len=4096, global_batch=1024)
    begun = time.process_time()
    priced, elapsed_s = price_all(*question)
    quiet = f"{priced / (time.process_time() - begun):,.3g} per second of processor time"
    rate = priced / elapsed_s
    note = f"llama-3.1-70b on 1024 H100, all {priced:,} plans, nothing pruned, one process; {quiet}"
    note += f"; {rate / CALCULON_PER_S:,.0f} times Calculon's rate"
    return Line("plans priced", rate, 1e6, "per second", at_least=True, note=note)


def install_line() -> Line:
    """Size of the core and all it needs, in a fresh environment, without pip."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip"], check=True)
        files = [path for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
        size = sum(path.stat().st_size for path in files)
    note = f"everything it needs, byte code included; AIConfigurator: {INSTALLED_MB:.0f} MB"
    return Line("core install", size / MEGABYTE, 130, "MB", note=note)


def page(lines: list[Line], runs: int, around: str = "") -> str:
    """The page of the documentation."""
    table = markdown_table(
        ("what", "measured", "target", "measured / target", "note"), [line.cells() for line in lines]
    )
    elsewhere = markdown_table(("tool", "task", "time"), ELSEWHERE)
    return f"""# Speed

Written by `make bench` on {today()}: {version()} on {machine()}{around and f", {around}"}.

Times are of whole processes, start of the interpreter included: the median of {runs} runs after one that warms the
disk's cache. Plans are over the whole default space, which is written down in
[How the model works](how-the-model-works.md). *Priced* means a time bound and the memory of the fullest device; the
best are then run through the schedule's simulator.

{table}

## What others take

With their own public code, on 2 cores without a GPU. Their tasks differ from ours and from each other's: Metis and
Sailor plan mixed clusters, AIConfigurator plans inference, Galvatron chooses per layer. The numbers say what a user
waits today, not which search is the cleverer.

{elsewhere}
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure how quick meshwright is.")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (5)")
    parser.add_argument(
        "--install", action="store_true", help="also measure a fresh install; needs pip to find packages"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    runs, around = max(1, options.runs), load()
    lines = [*start_lines(runs), *plan_lines(runs), pricing_line(), *simulator_lines(runs), *calculon_lines(runs)]
    lines += sweep_lines(runs)
    lines += mixed_lines()
    lines += runtime_lines()
    lines += depth_lines()
    lines += page_lines()
    lines += service_lines()
    lines.append(install_line() if options.install else Line("core install", None, 130, "MB", note="`--install`"))
    text = page(lines, runs, around)
    print(text)
    if not options.no_write:
        print(f"written to {write_page('benchmarks.md', text)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
