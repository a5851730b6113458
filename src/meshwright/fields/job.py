"""Fields that verbs share: what is trained on what, what makes a plan better, which plans are looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.fields.failures import FailureSpec
from meshwright.fields.field import ask
from meshwright.fields.host import MemorySize, NvmeDrives, PcieSlot
from meshwright.fields.kinds import (
    PAIRS,
    CarbonIntensity,
    Choice,
    Count,
    Devices,
    Duration,
    FieldKind,
    Flag,
    Number,
    SequenceLength,
    Texts,
    Watts,
    Whole,
)
from meshwright.specs.optimizers import OPTIMIZERS
from meshwright.specs.precision import PRECISIONS, ROLES

if TYPE_CHECKING:
    from meshwright.specs.calibration import Calibration
    from meshwright.specs.cluster import ClusterSpec
    from meshwright.specs.expert_load import ExpertLoad
    from meshwright.specs.lengths import Lengths
    from meshwright.specs.model import ModelSpec
    from meshwright.specs.precision import Precision
    from meshwright.specs.tuning import Lora
    from meshwright.specs.workload import Workload

DEFAULT_SEQ_LEN = 4096
DEFAULT_TOKENS_PER_STEP = 4_194_304
TOKENS_PER_DEVICE = 65_536
"""Tokens per device of the default step on fewer than 64 devices: more makes steps of minutes, for no use."""
FEWEST_TOKENS_PER_DEVICE = 1_024
"""Tokens per device of the default step on more than 4,096 devices.

Source: Dubey et al. 2024, The Llama 3 Herd of Models (arXiv
2407.21783), table 4: 16 M tokens on 16,384 H100."""
NAME = FieldKind(metavar="NAME")
WHAT_AND_WHERE = ("model", "gpus", "cluster")
"""Fields without which no question is whole."""

MODEL_HELP = "A name of `models list`, a config.json, a folder with one, a .gguf file, - for stdin."
PLAN_HELP = "One line such as tp8.pp4.mbs1.z1.rc-sel, or a plan file."
PLAN_FILE_HELP = "A plan file; plans.json#2 is the second plan of a plan set."
MONEY_AND_POWER = ("prices", "power", "pue", "carbon_intensity")
"""Fields that say what an hour of a device costs and takes, for verbs that price no step by them."""
FRAMEWORK_HELP = (
    "Framework that wrote the log: megatron, nemo, torchtitan, deepspeed, transformers, csv or pytorch-profiler."
)
WRITE_ONE = "name a plan file, as `meshwright plan ... -o plans.json` writes it"


def _role(name: str, text: str, usual: str = "", *, rare: bool = False) -> Any:
    """A field for the format of one role: its formats stand in the help."""
    formats = ROLES[name].formats
    kind = Choice(names=formats, noun=name)
    listed = f" {', '.join(formats)}." if len(formats) > 1 else ""
    return ask(f"{text}{listed}", kind, usual=usual, rare=rare)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFields:
    """Model, cluster and workload as a user gives them."""

    model: ModelSpec | Mapping[str, object] | str | os.PathLike[str] | None = ask(
        MODEL_HELP,
        FieldKind(metavar="MODEL", annotation="ModelSpec | Mapping[str, object] | str | os.PathLike[str]"),
        argument=True,
    )
    gpus: str | None = ask(
        "64xH100, 8x8xH100 for 8 nodes of 8, 4xp5.48xlarge for 4 machines of a cloud, 1xRTX4090+1xRTX3090 in one host.",
        Devices(),
        metavar="G",
    )
    cluster: ClusterSpec | str | os.PathLike[str] | None = ask(
        "Cluster file (TOML), or any description that `clusters show` reads.",
        metavar="FILE",
        annotation="ClusterSpec | str | os.PathLike[str]",
    )
    host_ram: float | None = ask("Host memory per node, for offloaded states: 128GB.", MemorySize(), rare=True)
    nvme: Any = ask(
        "Aggregate speed of a node's NVMe drives: 7GB/s, or with their size 2TB@7GB/s.", NvmeDrives(), rare=True
    )
    pcie: float | None = ask(
        "PCIe link between a device and its host, as generation x lanes or speed: 4x16, 12GB/s.",
        PcieSlot(),
        usual="the device's own",
        rare=True,
    )
    seq_len: int | None = ask(
        "Sequence length; 32k is 32,768.",
        SequenceLength(),
        option="--seq",
        usual="4096, or the model's maximum if lower; with --lengths the longest",
    )
    images: int | None = ask(
        "Images per sample; 0 leaves the vision tower out.", Whole(low=0, high=100_000), usual="0", rare=True
    )
    image_size: str | None = ask(
        "Width and height of an image in pixels: 1024x768.",
        FieldKind(metavar="WxH"),
        usual="the model's, where it has one",
        rare=True,
    )
    audio: int | None = ask(
        "Clips of audio per sample; 0 leaves the audio tower out.", Whole(low=0, high=100_000), usual="0", rare=True
    )
    audio_seconds: float | None = ask(
        "Seconds of a clip of audio.",
        Number(metavar="S", high=86_400.0),
        usual="30, where the model fills every clip up",
        rare=True,
    )
    encoder_seq_len: int | None = ask(
        "Encoder sequence length of an encoder-decoder.",
        SequenceLength(),
        option="--encoder-seq",
        usual="that of the decoder",
        rare=True,
    )
    global_batch: int | None = ask("Global batch in sequences.", Count(whole=True, example="1024"), option="--gbs")
    tokens_per_step: int | None = ask(
        "Global batch in tokens.",
        Count(whole=True, example="4M"),
        usual=f"{TOKENS_PER_DEVICE} per device, at most {DEFAULT_TOKENS_PER_STEP}, at least {FEWEST_TOKENS_PER_DEVICE} "
        "per device",
        rare=True,
    )
    lengths: str | os.PathLike[str] | Lengths | None = ask(
        "Distribution of sequence lengths: a file with one length per line, or "
        "lognormal:mean=1200,sigma=1.1,max=32768, uniform:low=128,high=4096, histogram:512=.4,2048=.6.",
        FieldKind(metavar="FILE|SHAPE", annotation="str | os.PathLike[str] | Iterable[tuple[int, float]]"),
        rare=True,
    )
    packing: str | None = ask(
        "How sequences of --lengths are packed into rows of --seq: pack, pad, concat, dynapipe, bins or bins:512,2048.",
        NAME,
        usual="pack",
        rare=True,
    )
    dynamic_cp: bool = ask(
        "Split each sequence of --lengths over as few context ranks as it needs, not over all.", Flag(), rare=True
    )
    dtype: str | Precision | None = ask(f"Compute format: {', '.join(PRECISIONS)}.", NAME, usual="bf16")
    weight_dtype: str | None = _role(
        "weight_dtype",
        "Format of the weights (fp8: 8 bits only, without a 16-bit copy; fp32: of frozen ones beside --lora):",
        rare=True,
    )
    grad_dtype: str | None = _role("grad_dtype", "Format of gradients:", usual="the recipe's", rare=True)
    reduce_dtype: str | None = _role(
        "reduce_dtype", "Format in which gradients are reduced:", usual="that of the gradients", rare=True
    )
    gather_dtype: str | None = _role(
        "gather_dtype", "Format in which weights are gathered:", usual="that of the weights", rare=True
    )
    moment_dtype: str | None = _role("moment_dtype", "Format of optimizer moments:", usual="fp32", rare=True)
    main_copy: str | None = _role(
        "main_copy",
        "Format of the optimizer's main copy of the weights (none: it updates the weights themselves):",
        usual="fp32",
        rare=True,
    )
    dispatch_dtype: str | None = _role(
        "dispatch_dtype", "Format in which tokens are sent to experts:", usual="that of the activations", rare=True
    )
    bf16_first: int | None = ask(
        "Leading layers computed in bf16 when --dtype is narrower.", Whole(low=0), usual="0", rare=True
    )
    bf16_last: int | None = ask(
        "Trailing layers computed in bf16 when --dtype is narrower.", Whole(low=0), usual="0", rare=True
    )
    optimizer: str | None = ask(
        f"Optimizer: {', '.join(OPTIMIZERS)}; options follow a colon, as in galore:rank=64.", NAME, usual="adam"
    )
    lora: Lora | str | None = ask(
        "LoRA adapters on frozen weights: r=16,targets=q_proj,v_proj,base=nf4,dropout=0.05,dora,train=embedding.",
        FieldKind(metavar="r=16,...", annotation="Lora | str"),
    )
    freeze: tuple[str, ...] = ask(
        "Freeze a part: embedding, head, attention, mlp, experts, router, norms, layers.0-15. Repeatable.",
        Texts(metavar="PART", commas=True),
        rare=True,
    )
    attention_kernel: str | None = ask("Attention kernel: flash or materialised.", NAME, usual="flash", rare=True)
    loss_tiles: int | None = ask(
        "Compute logits and loss in N tiles.",
        Count(whole=True, example="8"),
        usual="1",
        rare=True,
    )
    mlp_tiles: int | None = ask(
        "Compute dense feed-forward layers in N tiles, recomputed in backward.",
        Count(whole=True, example="8"),
        usual="1",
        rare=True,
    )
    expert_load: float | str | os.PathLike[str] | ExpertLoad | None = ask(
        "Load of experts: balanced, 1.3 (fullest rank over mean), zipf:1.2, or a file of counts per layer and expert.",
        FieldKind(metavar="FILE|zipf:S", annotation="float | str | os.PathLike[str] | ExpertLoad"),
        usual="balanced",
        rare=True,
    )
    tokens: float | None = ask("Training tokens of the whole run, for days and cost: 15e12.", Count())
    failures: Any = ask(
        "Failures during the run of --tokens: rate=18%/year,restart=10min,every=30min,stall=5s; "
        "spares=2,repair=24h nodes; or none.",
        FailureSpec(),
        usual="as public runs report",
        rare=True,
    )
    price: float | None = ask("Price per device-hour.", Number(metavar="USD", zero=True), rare=True)
    prices: Any = ask(
        "Price list per device-hour: a TOML file, or public for the built-in one.",
        FieldKind(metavar="FILE", annotation="str | os.PathLike[str]"),
        rare=True,
    )
    power: float | None = ask(
        "Measured mean power per device over a step: 620W.", Watts(), usual="the device's power limit", rare=True
    )
    pue: float | None = ask(
        "Power usage effectiveness of the site: 1.2.",
        Number(high=10),
        usual="1",
        rare=True,
    )
    carbon_intensity: float | None = ask("Carbon intensity of the electricity: 380g/kWh.", CarbonIntensity(), rare=True)
    software: str | None = ask(
        "Training framework and its date or version: xla, megatron-core@2025-06, megatron-core@25.04.",
        NAME,
        usual="megatron-core, the newest known; transformers for LoRA on a base in 4 bits or int8",
        rare=True,
    )
    calibration: Calibration | str | os.PathLike[str] | None = ask(
        "Calibration file that `calibrate` wrote, instead of the built-in one.",
        FieldKind(metavar="FILE", annotation="Calibration | str | os.PathLike[str]"),
        rare=True,
    )
    like: Workload | None = None
    """Says the rest of a workload: training or forward only, and without a calibration the framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AimFields:
    """What makes a plan better, and what it must keep to."""

    objective: str | None = ask("What is minimised.", NAME, usual="time")
    max_step_time: float | None = ask(
        "Upper limit on step time: 40, 40s, 2min. Alone: the cheapest such step.", Duration(), rare=True
    )
    max_price_per_step: float | None = ask(
        "Upper limit on the cost of a step. Alone: the quickest such step.",
        Count(metavar="USD", fix="for example 2.5"),
        rare=True,
    )
    days: float | None = ask("Longest training time in days; needs --tokens.", Count(fix="for example 2.5"), rare=True)
    max_price: float | None = ask(
        "Upper limit on the cost of the run; needs --tokens.", Count(metavar="USD", fix="for example 2.5"), rare=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFields:
    """Which plans are looked at."""

    pin: tuple[str, ...] = ask("Fix an axis: tp=8. Repeatable.", Texts(metavar="AXIS=V", annotation=PAIRS))
    forbid: tuple[str, ...] = ask(
        "Exclude an axis or a value: vpp, pp=4, fsdp. Repeatable.", Texts(metavar="AXIS", annotation=PAIRS), rare=True
    )
    schedule: tuple[str, ...] = ask(
        "Pipeline schedules to search; all: the whole catalogue.",
        Texts(metavar="NAME,...|all", repeated=False),
        usual="1f1b, gpipe, interleaved",
        rare=True,
    )

    offload: str | None = ask(
        "Offload to the host: none, auto, or a list of optimizer, activations, weights, with nvme, delayed.",
        FieldKind(metavar="WHAT,..."),
        usual="none",
    )

    methods: str | None = ask(
        "Open whole axes: all, or some of schedule (every exact one), dispatcher, ep_overlap, hot_experts, "
        "ep_order, offload, tensor, tp_overlap, sharding, prefetch.",
        FieldKind(metavar="AXIS,...|all"),
        rare=True,
    )

    def keywords(self) -> dict[str, Any]:
        """The fields as functions of a space take them."""
        return {
            "pin": self.pin,
            "forbid": self.forbid,
            "schedule": self.schedule or None,
            "offload": self.offload,
            "methods": self.methods,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFields:
    """How the command line shows an answer."""

    json: bool = ask("One JSON object on stdout instead of text.", Flag())
    quiet: bool = ask("No progress, notes or warnings on stderr.", Flag(), short="-q")
    no_color: bool = ask("No colours; NO_COLOR does the same.", Flag())


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFields(OutputFields):
    """Output fields of verbs that answer again."""

    watch: bool = ask("Answer again whenever a file that was read changes, until interrupted.", Flag(), rare=True)
