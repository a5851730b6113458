"""Designs a second of `sweep`, searched and priced, beside a loop that starts `plan` for each."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.timing import Line, median_run, meshwright_command

SEARCHED = """
model = "llama-3.1-70b"
gpus = "64xnext"
gbs = 512
[gpu.next]
like = "H100"
memory_gib = [80, 100, 140, 180]
node.scaleup_gb_s = [450, 900]
node.fabric_gb_s = [50, 100, 200]
"""
PRICED = """
model = "llama-3.1-70b"
plan = ["tp8.pp4.mbs1.z1.rc-full", "tp8.pp2.mbs1.z1.rc-full", "tp4.pp4.mbs1.z1.rc-full", "tp8.pp8.mbs1.z1.rc-full"]
gpus = "64xnext"
gbs = 512
[gpu.next]
like = "H100"
memory_gib = [80, 100, 120, 140, 160, 180, 200, 220]
memory_gb_s = [3000, 4000, 5000, 6000]
node.scaleup_gb_s = [450, 900, 1800]
node.fabric_gb_s = [50, 100, 200]
"""
STUDIES = (("searched", SEARCHED, 24, 2.0), ("priced", PRICED, 1152, 50.0))
"""What is done with each design, the study, its designs, and how many of them a second there should be."""
ALONE = ("plan", "llama-3.1-70b", "--gpus", "64xH100", "--gbs", "512", "--json")


def sweep_lines(runs: int) -> list[Line]:
    """Both studies, start included."""
    lines, alone = [], median_run([*meshwright_command(), *ALONE], runs)
    with tempfile.TemporaryDirectory() as folder:
        for what, study, designs, target in STUDIES:
            file = Path(folder) / f"{what}.toml"
            file.write_text(study)
            output = str(Path(folder) / f"{what}.parquet")
            found = median_run([*meshwright_command(), "sweep", str(file), "--force", "-o", output], runs)
            name = f"`sweep` of {designs:,} designs on 64 devices, {what}"
            if found is None:
                lines.append(Line(name, None, target, "designs/s", at_least=True))
                continue
            note = f"{found.processor_s / designs * 1e3:.3g} ms of processor time each"
            if alone is not None and what == "searched":
                note += f"; {alone.wall_s * designs / found.wall_s:.2g} times as many as with a loop of `plan`"
            lines.append(Line(name, designs / found.wall_s, target, "designs/s", at_least=True, note=note))
    return lines
