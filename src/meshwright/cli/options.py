"""Arguments and options that verbs share, each in one place with its help."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or warnings on stderr.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")]

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="A name of `models list`, a config.json or a folder with one, - for stdin.",
        show_default=False,
    ),
]  # fmt: skip
PlanFile = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN", help="A plan file; plans.json#2 is the second plan of a plan set.", show_default=False
    ),
]
PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan", metavar="PLAN", help="One line such as tp8.pp4.mbs1.z1.rc-sel, or a plan file.", show_default=False
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", metavar="G", help="64xH100, or 8x8xH100 for 8 nodes of 8.", show_default=False),
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="FILE", help="Cluster file, or what `clusters show` reads.", show_default=False),
]
Seq = Annotated[
    str | None,
    typer.Option(
        "--seq", metavar="N", help="Sequence length.  [default: 4096, or the model's maximum if lower]",
        show_default=False,
    ),
]  # fmt: skip
Gbs = Annotated[str | None, typer.Option("--gbs", metavar="N", help="Global batch in sequences.", show_default=False)]
Profiles = Annotated[
    str | None,
    typer.Option(
        "--profiles", metavar="DIR", help="Measured layer profiles; MODEL is one of theirs, and devices may differ.",
        show_default=False,
    ),
]  # fmt: skip
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration", metavar="FILE", help="Numbers that `calibrate` wrote, in place of the package's.",
        show_default=False,
    ),
]  # fmt: skip
TokensPerStep = Annotated[
    str | None,
    typer.Option(
        "--tokens-per-step", metavar="N", help="Global batch in tokens.  [default: 4194304]", show_default=False
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="NAME", help="bf16, fp8, fp16 or fp32.  [default: bf16]", show_default=False),
]
Optimizer = Annotated[
    str | None, typer.Option("--optimizer", metavar="NAME", help="Optimizer.  [default: adam]", show_default=False)
]
AttentionKernel = Annotated[
    str | None,
    typer.Option(
        "--attention-kernel", metavar="NAME", help="flash or materialised.  [default: flash]", show_default=False
    ),
]
ExpertImbalance = Annotated[
    str | None,
    typer.Option(
        "--expert-imbalance", metavar="X", help="Tokens of the fullest expert rank over the mean.  [default: 1]",
        show_default=False,
    ),
]  # fmt: skip
ReplanFrom = Annotated[
    str | None,
    typer.Option(
        "--replan-from", metavar="PLAN", help="Plan again for the job of a plan file whose cluster changed.",
        show_default=False,
    ),
]  # fmt: skip
Lost = Annotated[
    str | None,
    typer.Option(
        "--lost", metavar="G", help="With --replan-from: 8xH100, or device numbers 16-23.", show_default=False
    ),
]
Added = Annotated[
    str | None, typer.Option("--added", metavar="G", help="With --replan-from: as --gpus.", show_default=False)
]
Tokens = Annotated[
    str | None,
    typer.Option(
        "--tokens", metavar="N", help="Tokens of the whole run, for days and cost: 15e12.", show_default=False
    ),
]
Price = Annotated[
    str | None,
    typer.Option("--price", metavar="USD", help="Price per device and hour.", show_default=False),
]
MaxStepTime = Annotated[
    str | None,
    typer.Option(
        "--max-step-time", metavar="S", help="A step may take so long: 40, 40s, 2min. Alone: the cheapest such step.",
        show_default=False,
    ),
]  # fmt: skip
MaxPricePerStep = Annotated[
    str | None,
    typer.Option(
        "--max-price-per-step", metavar="USD", help="A step may cost so much. Alone: the quickest such step.",
        show_default=False,
    ),
]  # fmt: skip
Days = Annotated[
    str | None, typer.Option("--days", metavar="N", help="The run may take; needs --tokens.", show_default=False)
]
MaxPrice = Annotated[
    str | None,
    typer.Option("--max-price", metavar="USD", help="The run may cost; needs --tokens.", show_default=False),
]
Pin = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="AXIS=V", help="Hold an axis: tp=8. Repeatable.", show_default=False),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option("--forbid", metavar="AXIS", help="Leave out: vpp, pp=4, fsdp. Repeatable.", show_default=False),
]
PlanOutput = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Also write the plan set there.", show_default=False),
]
Library = Annotated[
    str | None,
    typer.Option(
        "--library", metavar="DIR", help="Where to write; without it MESHWRIGHT_LIBRARY says.", show_default=False
    ),
]
