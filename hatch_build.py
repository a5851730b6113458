"""The build hook of the package: a wheel that is built from a clone holds the commit it was built from.

An sdist hands the commit on to the wheels that are built from it. MESHWRIGHT_COMMIT states it where the build sees
neither a clone nor an sdist, as in an image. A build that knows none writes none, and so do editable installs: their
files change.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

IN_SDIST = "COMMIT"
IN_WHEEL = "meshwright/commit"


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the commit into what is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a build.

        Args:
            version: `standard` or `editable`.
            build_data: what goes into the build.
        """
        commit = None if version == "editable" else commit_of(Path(self.root))
        if commit is None:
            return
        kept = Path(tempfile.mkdtemp()) / "commit"
        kept.write_text(f"{commit}\n", encoding="ascii")
        build_data["force_include"][str(kept)] = IN_WHEEL if self.target_name == "wheel" else IN_SDIST


def commit_of(root: Path) -> str | None:
    """The commit that a folder is of, `-dirty` behind it where files differ from it; None where nothing says.

    Args:
        root: of the project.
    """
    stated = os.environ.get("MESHWRIGHT_COMMIT", "").strip()
    if stated:
        return stated
    if (root / IN_SDIST).is_file():
        return (root / IN_SDIST).read_text(encoding="ascii").strip() or None
    if not (root / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changes else head
