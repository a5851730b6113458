"""Parts of a space in several processes give what one process gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
from meshwright.search import on_cores
from meshwright.calculon.answer import SearchGoal
from meshwright.calculon.sweep import Design, design_parts, sweep
from meshwright.search.tasks import run_here
from tests.calculon.spaces import SMALL, a100, space_of

space = space_of(SMALL, a100(8.0), 16, 8, "full", pins={"fused_activation": (True,)})
design = Design(number=0, space=space)
goal, size = SearchGoal(top=7), 20_000
assert len(design_parts(design, goal, size)) > 4

do_task, processes = on_cores.do_task, sys.argv[1]

def noted(task):
    open(os.path.join(processes, str(os.getpid())), "w").close()
    return do_task(task)

on_cores.do_task = noted
on_cores.threads = lambda: 2
there = next(sweep([design], goal, on_cores.run_on_cores, executions=size)).result
alone = next(sweep([design], goal, run_here, executions=size)).result
assert there.best == alone.best
assert there.front == alone.front
counts = [(c.space, c.feasible, c.priced, c.pruned) for c in (there.certificate, alone.certificate)]
assert counts[0] == counts[1]
assert str(os.getpid()) not in os.listdir(processes)
assert len(os.listdir(processes)) == 2
"""


def test_the_answer_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    # A process of its own: a test runner's threads keep a process from being forked.
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


ENDLESS = """
import os, time
from meshwright.search import on_cores

def noted(task):
    os.write(1, b"%d\\n" % os.getpid())  # a line at once, so that two processes do not mix theirs
    time.sleep(600)

on_cores.do_task = noted
on_cores.threads = lambda: 2
list(on_cores.run_on_cores([None, None]))
"""


def test_processes_end_with_the_one_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        others = [int(first.stdout.readline()) for _ in range(2)]
        assert len(set(others)) == 2
        first.kill()
        # They hold its end of the pipe: it closes when the last of them is gone.
        assert first.stdout.read() == ""
