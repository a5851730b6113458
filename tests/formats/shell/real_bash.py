"""What bash itself starts when it runs a script: launchers and Python on its PATH only write down their words."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

RECORDER = """#!/bin/bash
case " $* " in *" --no-python "*)
  # torchrun starts a program that is not Python, once per rank.
  while [ "$1" != --no-python ]; do shift; done
  shift
  export RANK=0 LOCAL_RANK=0
  exec "$@" ;;
esac
{ printf '%s\\0' "$@"; printf '\\n\\0'; } >> "$RECORD_HERE"
"""
STARTER = """#!/bin/bash
# Skips its own options, then runs what it is asked to start.
while [ $# -gt 0 ]; do
  case "$1" in
    bash|sh|python|python3|torchrun|deepspeed|accelerate|numactl|*.sh) break ;;
  esac
  shift
done
case "$1" in
  *.sh) exec bash "$@" ;;
  "") if [ ! -t 0 ]; then exec bash -s; fi ;;
  *) exec "$@" ;;
esac
"""
REMOTE = """#!/bin/bash
shift
exec bash -c "$*"
"""
RECORDED = ("python", "python3", "torchrun", "deepspeed", "accelerate")
STARTERS = ("srun", "sbatch", "mpirun", "numactl", "docker", "singularity")
SILENT = ("nvidia-smi", "scontrol", "module", "conda", "pip", "git", "hostname", "nvcc")


def machine(folder: Path) -> Path:
    """A folder of programs for PATH."""
    folder.mkdir()
    for names, text in (
        (RECORDED, RECORDER),
        (STARTERS, STARTER),
        (("ssh",), REMOTE),
        (SILENT, "#!/bin/bash\nexit 0\n"),
    ):
        for name in names:
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
    return folder


def started(
    script: Path, programs: Path, arguments: Sequence[str], environment: Mapping[str, str], record: Path
) -> list[list[str]]:
    """Words behind the program of every Python program that bash starts.

    Args:
        script: run in a copy of its folder, so that what it writes is not kept.
        programs: as `machine` makes them.
        arguments: of the script.
        environment: of the script, nothing else.
        record: a file to write to.
    """
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/nowhere", "RECORD_HERE": str(record), **environment}
    record.write_bytes(b"")
    subprocess.run(
        ["bash", script.name, *arguments],
        env=variables,
        cwd=script.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    calls = record.read_bytes().decode().split("\n\0")[:-1]
    found = []
    for call in calls:
        words = call.split("\0")[:-1]
        at = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
        if at is not None:
            found.append(words[at + 1 :])
    return found
