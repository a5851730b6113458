"""Known vulnerabilities and licences of what meshwright installs with itself: `make audit`.

A clean environment gets the repository with the core's dependencies alone; `pip-audit` asks its service about each
package there, and licences are held against those that `release.check` allows. Exit 1 where one is not as it should be,
or where the service did not answer: not to know is not to be well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from release.check import refused_licences

ROOT = Path(__file__).parents[1]
OURS = "meshwright"


def main() -> None:
    """Audit the core's dependencies."""
    with tempfile.TemporaryDirectory() as home:
        venv.create(home, with_pip=True)
        python = Path(home) / "bin" / "python"
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", ROOT], check=True)
        listed = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True, text=True).stdout
        packages = [one for one in json.loads(listed) if one["name"] not in (OURS, "pip", "setuptools")]
        wrong = refused_licences(python)
        pins = Path(home) / "requirements.txt"
        pins.write_text("".join(f"{one['name']}=={one['version']}\n" for one in packages))
        wrong += vulnerable(pins)
    for one in wrong:
        print(one)
    print(f"{len(packages)} packages: {'nothing is known against them' if not wrong else f'{len(wrong)} findings'}")
    raise SystemExit(1 if wrong else 0)


def vulnerable(pins: Path) -> list[str]:
    """What is known against pinned packages, a sentence each."""
    command = [Path(sys.executable).parent / "pip-audit", "--no-deps", "--disable-pip", "-f", "json", "-r", pins]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return [f"the service of pip-audit did not answer: {said[:200]}"]
    return [
        f"{one['name']} {one['version']}: {flaw['id']}, repaired in {', '.join(flaw['fix_versions']) or 'no version'}"
        for one in found
        for flaw in one.get("vulns", ())
    ] + [f"{one['name']} was not looked up: {one['skip_reason']}" for one in found if "skip_reason" in one]


if __name__ == "__main__":
    main()
