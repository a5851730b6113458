"""Number formats and optimizers as asked: the recipe with what is stated besides, and what was understood, in words."""

from __future__ import annotations

from functools import lru_cache

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.fields.job import JobFields
from meshwright.fields.kinds import shortened
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.model import ModelSpec
from meshwright.specs.optimizers.base import Optimizer
from meshwright.specs.precision import ROLES, Precision, precision, stated
from meshwright.specs.workload import Workload

DEFAULT_DTYPE = "bf16"
OLDER_DTYPE = "fp16"


def usual_dtype(cluster: ClusterSpec | None) -> str:
    """bf16, or fp16 where no device computes in bf16 and all do in fp16 (V100, T4, the RTX 20 series)."""
    devices = [group.device for group in cluster.groups] if cluster is not None else []
    older = [device for device in devices if device.peak(DEFAULT_DTYPE) is None and device.peak(OLDER_DTYPE)]
    return OLDER_DTYPE if older and len(older) == len(devices) else DEFAULT_DTYPE


def asked_precision(job: JobFields, cluster: ClusterSpec | None) -> Precision:
    """The recipe with the formats that are stated besides."""
    dtype: object = usual_dtype(cluster) if job.dtype is None else job.dtype
    if not isinstance(dtype, str | Precision):
        raise InputError(what=f"dtype is {shortened(dtype)}", why="must be a name such as bf16", field="dtype")
    recipe = precision(dtype) if isinstance(dtype, str) else dtype
    given = {name: value for name in ROLES if (value := getattr(job, name)) is not None}
    return stated(recipe, given) if given else recipe


def wide_ends(model: ModelSpec, recipe: Precision, job: JobFields) -> ModelSpec:
    """A model whose first and last layers compute in 16 bits, as stated."""
    if DTYPE_BYTES[recipe.compute] >= DTYPE_BYTES[recipe.activations]:
        name = "bf16_first" if job.bf16_first else "bf16_last"
        raise InputError(
            what=f"{name} is {getattr(job, name)} with products in {recipe.compute}",
            why=f"all layers compute in {recipe.compute}",
            fix="leave it out, or use --dtype fp8, fp8-block, mxfp8, nvfp4 or int8",
            field=name,
            code="MW206",
        )
    return model.with_wide_ends(job.bf16_first or 0, job.bf16_last or 0)


def formats_said(recipe: Precision) -> str:
    """The formats of a recipe in words: what every recipe has, and of the rest what differs from it."""
    parts = [f"{recipe.compute} compute"]
    if recipe.weights != recipe.activations:
        parts.append(f"{recipe.weights} weights")
    parts.append(f"{recipe.gradients} gradients")
    if recipe.master:
        parts.append(f"{recipe.master} main copies")
    elif DTYPE_BYTES[recipe.weights] < DTYPE_BYTES["fp32"]:
        parts.append("no main copies (updates rounded stochastically)")
    parts.append(f"{recipe.moments} moments")
    if recipe.reduce != recipe.gradients:
        parts.append(f"gradients sent in {recipe.reduce}")
    if recipe.gathered not in (None, recipe.weights):
        parts.append(f"weights gathered in {recipe.gathered}")
    if recipe.dispatched not in (None, recipe.activations):
        parts.append(f"tokens sent to experts in {recipe.dispatched}")
    return ", ".join(parts)


def optimizer_said(workload: Workload) -> str:
    """The optimizer, with what it keeps where that is not the usual two moments."""
    kind = workload.update
    return workload.optimizer if kind.name in ("adam", "adamw") else f"{kind.describe()}: {kind.summary}"


@lru_cache(maxsize=64)
def check_computes(groups: tuple[NodeGroup, ...], precision: Precision) -> None:
    """Whether any of the devices computes in a format, and converts to the one that experts are sent tokens in.

    Raises:
        UnsupportedError: none does.
    """
    sent = precision.dispatched
    narrow = sent is not None and DTYPE_BYTES[sent] < DTYPE_BYTES[precision.activations]
    if narrow and not any(group.device.peak(str(sent)) for group in groups):
        names = ", ".join(dict.fromkeys(group.device.name for group in groups))
        said = str(sent).removesuffix("-block")
        raise UnsupportedError(
            what=f"--dispatch-dtype {said} on {names}",
            why=f"its data sheet has no {said}, so no kernel packs tokens in it",
            fix="leave it out, or plan for a device that has it",
            field="dispatch_dtype",
            code="MW403",
        )
    refused = []
    for group in groups:
        try:
            hardware_of(group, Workload(seq_len=1, global_batch=1, precision=precision))
        except UnsupportedError as error:
            refused.append(error)
    if len(refused) == len(groups):
        raise refused[0]


def require_rank(optimizer: Optimizer, model: ModelSpec) -> None:
    """Check that gradients are not projected to a rank above the width of the model.

    Raises:
        InputError: they are.
    """
    rank = getattr(optimizer, "rank", 0)
    if rank > model.hidden:
        raise InputError(
            what=f"optimizer {optimizer.name} has rank {rank:,}",
            why=f"above the width {model.hidden:,} of {model.name} nothing is projected",
            fix=f"for example {optimizer.name}:rank=128",
            field="optimizer",
            code="MW404",
        )
