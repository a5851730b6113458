"""Install the wheel and the sdist in clean environments and do a user's first steps there; write the bill of materials.

`make release` builds both into dist/ and runs this file. For every interpreter that is there, of the versions that
pyproject.toml names, both are installed with the core's dependencies alone, and without the repository on any path:
plan, check, export, an error, and one call from Python have to end as the README says, with warnings as errors.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

BILL = "sbom.cdx.json"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ALLOWED = ("MIT", "BSD", "Apache", "ISC", "PSF", "0BSD", "Zlib", "CC0")
"""Words of the licences that the core may depend on: all let it be used, changed and sold."""
STEPS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (0, ("--version",)),
    (0, ("plan", "llama-3.1-70b", "--gpus", "64xH100,64xA100-80")),
    (0, ("plan", "llama-3.1-8b", "--gpus", "8xH100", "-o", "plans.json")),
    (0, ("check", "--plan", "plans.json#1")),
    (0, ("export", "plans.json#1", "--to", "megatron", "-o", "launch")),
    (0, ("check", "llama-3.1-8b", "launch/train.sh", "--gpus", "8xH100")),
    (0, ("schedule", "zb-v", "--p", "4", "--m", "8")),
    (4, ("plan", "llama-3.1-8b", "--gpus", "8xH1000")),
    (3, ("plan", "llama-3.1-405b", "--gpus", "1xRTX4090")),
)
"""What is typed, with the exit code it has to have."""
CALL = """import meshwright as mw
answer = mw.plan('llama-3.1-8b', gpus='8xH100')
assert answer.best.estimate.fits == 'yes'
assert len(answer.to_dict()['made_by']['commit']) >= 40
"""


def main() -> None:
    """Check every file of dist/ on every interpreter; exit 1 where a step goes wrong."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    files = [*sorted(folder.glob("*.whl")), *sorted(folder.glob("*.tar.gz"))]
    if not files:
        raise SystemExit(f"no wheel and no sdist in {folder}: make release builds them")
    wrong = wrong_tag(Path(__file__).parents[1], files[0])
    interpreters = dict(found_interpreters())
    for version, python in interpreters.items():
        for file in files:
            problems = list(checked(python, file))
            print(f"{file.name} on Python {version}: {'ok' if not problems else '; '.join(problems)}", flush=True)
            wrong += problems
    absent = [version for version in VERSIONS if version not in interpreters]
    if absent:
        print(f"not tried, since there is no interpreter: Python {', '.join(absent)}")
    wrong += bill_of_materials(files[0], folder)
    raise SystemExit(1 if wrong or not interpreters else 0)


def wrong_tag(repository: Path, wheel: Path) -> list[str]:
    """A sentence where the commit that is released has a tag of another version than the wheel.

    Args:
        repository: of the commit.
        wheel: built from it.
    """
    asked = ["git", "-C", repository, "tag", "--points-at", "HEAD", "v*"]
    tags = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    version = wheel.name.split("-")[1]
    if not tags or f"v{version}" in tags:
        return []
    said = f"this commit is tagged {', '.join(tags)}, the wheel is {version}: the tag says what is released"
    print(said)
    return [said]


def found_interpreters() -> Iterator[tuple[str, str]]:
    """Versions, each with an interpreter of it."""
    for version in VERSIONS:
        names = [f"python{version}", sys.executable]
        names += [str(path) for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
        for name in filter(None, map(shutil.which, names)):
            asked = "import sys; print('%d.%d' % sys.version_info[:2])"
            said = subprocess.run([name, "-c", asked], capture_output=True, text=True, check=False)
            if said.returncode == 0 and said.stdout.strip() == version:
                yield version, name
                break


def checked(python: str, file: Path) -> Iterator[str]:
    """What goes wrong with one file on one interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        subprocess.run([python, "-m", "venv", home / "venv"], check=True)
        bin_ = home / "venv" / "bin"
        subprocess.run([bin_ / "pip", "install", "--quiet", "--disable-pip-version-check", file], check=True)
        clean = {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": folder, "PYTHONWARNINGS": "error", "COLUMNS": "120"}
        for code, words in STEPS:
            done = subprocess.run(
                [bin_ / "meshwright", *words], cwd=home, env=clean, capture_output=True, text=True, check=False
            )
            if done.returncode != code or "Traceback" in done.stderr:
                said = done.stderr.strip().splitlines()[-1:] or [""]
                yield f"meshwright {' '.join(words)} ended with {done.returncode}, not {code}: {said[0][:200]}"
        done = subprocess.run([bin_ / "python", "-c", CALL], cwd=home, env=clean, capture_output=True, check=False)
        if done.returncode:
            yield "mw.plan from Python failed"


def refused_licences(python: Path) -> list[str]:
    """Packages of an environment under a licence that is not among those allowed, a sentence each."""
    listed = [Path(sys.executable).parent / "pip-licenses", "--python", python, "--format=json"]
    found = json.loads(subprocess.run(listed, check=True, capture_output=True, text=True).stdout)
    return [
        f"{one['Name']} is under {one['License']}, which is not among those allowed"
        for one in found
        if not any(word in one["License"] for word in ALLOWED)
    ]


def bill_of_materials(wheel: Path, folder: Path) -> list[str]:
    """Write a CycloneDX bill of the core's packages; licences that are not among those allowed."""
    with tempfile.TemporaryDirectory() as home:
        venv.create(home, with_pip=True)
        python = Path(home) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        here = Path(sys.executable).parent
        bill = folder / BILL
        make = [here / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "-o", bill, python]
        subprocess.run(make, check=True)
        refused = refused_licences(python)
    components = json.loads(bill.read_text())["components"]
    print(f"{bill.name}: {len(components)} packages, licences {'ok' if not refused else '; '.join(refused)}")
    return refused


if __name__ == "__main__":
    main()
