"""What may be asked of `sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from meshwright.fields.field import ask
from meshwright.fields.kinds import FieldKind, Flag, Whole
from meshwright.fields.request import Reading, Request

RAY_HELP = "Search on a Ray cluster: host:port; alone, the cluster of this machine or RAY_ADDRESS; local starts one."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest(Request):
    """The best plan of every combination of a study. Models x clusters x devices, streamed to Parquet.

    \b
    FILE is TOML: options of `plan` by name, each with one value or a list; numbers of devices by table:
      model = ["llama-3.1-70b", "mixtral-8x22b"]
      gpus = ["256xH100", "256xnext"]
      seq = [4096, 16384]
      gpu.next = {like = "H100", memory_gib = [80, 120, 160], node.scaleup_gb_s = [450, 900]}
    With `plan`, one or several, those plans are priced instead of searched for.
    """

    examples: ClassVar = (
        "sweep study.toml -o sweep.parquet",
        "sweep study.toml -o sweep.parquet --resume --ray",
    )
    returns: ClassVar = "What came of every combination, and what each value is worth; the rows are in the file."
    positional: ClassVar = ("study",)

    study: Any = ask(
        "Study: a TOML, JSON or YAML file.",
        FieldKind(metavar="FILE", annotation="Mapping[str, object] | str | os.PathLike[str]"),
        argument=True,
        required="`meshwright sweep --help` has an example",
    )
    output: str = ask(
        "The Parquet file.", FieldKind(metavar="FILE"), short="-o", required="for example -o sweep.parquet"
    )
    top: int = ask("Plans to write for each combination.", Whole(metavar="K", high=1000), default=1, usual="1")
    ray: str | None = ask(RAY_HELP, FieldKind(metavar="[ADDRESS]"))
    resume: bool = ask("Continue the existing file.", Flag())
    force: bool = ask("Overwrite the existing file.", Flag())

    def rules(self, reading: Reading) -> None:
        """What is wrong with the file comes with what is wrong elsewhere."""
        from meshwright.formats.writing import check_file

        if self.output:
            reading.also(lambda: check_file(Path(self.output)))
