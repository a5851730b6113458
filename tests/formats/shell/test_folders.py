"""Folders that a script names from its own: a file of the same name in another one is not taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.formats.shell import launches, read_script
from meshwright.launch_files.named_files import NamedFiles

SOURCED = "torchrun pretrain_gpt.py --tensor-model-parallel-size $TP"


def degree(tmp_path: Path, line: str, **files: str) -> str:
    """The tensor degree that proj/scripts/train/run.sh starts with; the folders hold 2, 4 and 8."""
    folder = tmp_path / "scripts" / "train"
    folder.mkdir(parents=True)
    for at, tp in ((tmp_path, 2), (folder.parent, 4), (folder, 8)):
        (at / "env.sh").write_text(f"TP={tp}\n")
    for path, text in files.items():
        (folder / path).write_text(text)
    read = NamedFiles(folder)
    script = read_script(f"{line}\n{SOURCED}\n", name="run.sh", read=read, folder=read.start)
    return launches(script.commands)[0].words[1].text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("R=$(dirname $(dirname $(dirname $(readlink -f $0)))); source $R/env.sh", "2"),
        ("R=$(dirname $(dirname $(realpath $0))); source $R/env.sh", "4"),
        ("source $(dirname $0)/env.sh", "8"),
        ("R=$(cd $(dirname $0)/../.. && pwd); source $R/env.sh", "2"),
        ("S=$(cd $(dirname $0); pwd); R=$(dirname $S); source $R/env.sh", "4"),
        ("S=$(cd $(dirname ${BASH_SOURCE[0]}); pwd); source ${S%/*}/env.sh", "4"),
        ("cd $(dirname $0)/..; source env.sh", "4"),
        ("cd ..; source env.sh", "4"),
        ("pushd ../.. >/dev/null; . ./env.sh; popd", "2"),
        ("pushd .. >/dev/null; popd >/dev/null; source env.sh", "8"),
        ("cd ..; cd - >/dev/null; . ./env.sh", "8"),
        ('cd "$(dirname "$BASH_SOURCE")"; cd ../..; . ./env.sh', "2"),
    ],
)
def test_folders_are_named_from_the_scripts_own(tmp_path: Path, line: str, expected: str) -> None:
    assert degree(tmp_path, line) == expected


def test_a_sourced_file_names_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "lib.sh").write_text('. "$(dirname "${BASH_SOURCE[0]}")/env.sh"\n')
    assert degree(tmp_path, "source ../../lib.sh") == "2"
