"""Sign what is released: checksums of every file of dist/, and the bill of materials, with a key of OpenSSH.

`make release SIGN_KEY=~/.ssh/release` runs this after everything was tried. Beside the files stand `SHA256SUMS`,
`SHA256SUMS.sig` and `sbom.cdx.json.sig`; SECURITY.md says how they are verified. Without a key the checksums stay
unsigned, which is said.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from release.check import BILL

SUMS = "SHA256SUMS"
PURPOSE = "meshwright-release"
"""The namespace of the signatures: a signature for another purpose is none of these."""


def main() -> None:
    """Write the checksums of a folder, and sign them with a key if one is given."""
    folder, *keys = sys.argv[1:]
    sums = checksums(Path(folder))
    if not keys or not keys[0]:
        print(f"{sums.name}: not signed, since no SIGN_KEY is given")
        return
    for file in (sums, Path(folder) / BILL):
        sign(file, Path(keys[0]).expanduser())
        print(f"{file.name}.sig: signed")


def checksums(folder: Path) -> Path:
    """Write the sha256 of every released file, as `sha256sum -c` reads it.

    Args:
        folder: of the files.

    Returns:
        The file of the checksums.
    """
    released = [*sorted(folder.glob("*.whl")), *sorted(folder.glob("*.tar.gz")), folder / BILL]
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in released]
    target = folder / SUMS
    target.write_text("".join(lines))
    return target


def sign(file: Path, key: Path) -> None:
    """Write the signature of a file beside it, its name ending in `.sig`.

    Args:
        file: to sign.
        key: a private key of OpenSSH, or a public one whose private half an agent holds.
    """
    file.with_name(f"{file.name}.sig").unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", PURPOSE, file], check=True)


if __name__ == "__main__":
    main()
