"""The axes of a search as data: what values each execution parameter may take, and what that depends on.

    settings   categorical keys; a need that is not met holds the key at its plain value
    degrees    whole numbers; each rule names an axis and a quantity it must divide, or may not exceed

Two spaces have names: the one Calculon's own `llm-optimal-execution` walks, and the full one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from meshwright.calculon.inputs import CHOICES, Application, System

Value = str | bool | int
MakeAxes = Callable[[System], "Axes"]
"""Axes of the space of a system: networks and datatypes are its own."""

SETTING_KEYS = (
    "activation_recompute", "optimizer_sharding", "tensor_par_comm_type", "seq_par_ag_redo", "data_par_overlap",
    "tensor_par_overlap", "weight_offload", "activations_offload", "optimizer_offload", "fused_activation",
    "attention_type", "datatype", "tensor_par_net", "pipeline_par_net", "data_par_net",
)  # fmt: skip
"""Categorical keys of an execution, in the order of the space."""

DEGREE_KEYS = (
    "tensor_par", "pipeline_par", "data_par", "pipeline_interleaving", "batch_size", "microbatch_size",
)  # fmt: skip
"""Whole-number keys of an execution, in the order of the space."""

SWITCH = (True, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What another key must be for an axis to leave its plain value."""

    key: str
    values: tuple[Value, ...] = ()
    """The other key's values that will do; none for a degree that must be above 1."""

    def text(self) -> str:
        """The need in words."""
        return f"{self.key} in {', '.join(map(str, self.values))}" if self.values else f"{self.key} > 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionAxis:
    """A categorical key."""

    key: str
    values: tuple[Value, ...]
    plain: Value
    """The value where a need is not met."""
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Divides:
    """A degree divides a quantity of the application or of the layout."""

    key: str
    quantity: str
    """`num_procs`, a key of the application, `stage_blocks` = ceil(num_blocks / pipeline_par), `replica_batch`."""

    def text(self) -> str:
        """The need in words."""
        return f"{self.key} divides {self.quantity}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMost:
    """A degree is not above a quantity."""

    key: str
    quantity: str

    def text(self) -> str:
        """The need in words."""
        return f"{self.key} at most {self.quantity}"


DegreeRule = Divides | AtMost

LARGEST, EVERY = "largest", "every"
"""Batch sizes of a data degree: the largest multiple of it up to the given batch, or every multiple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A space before it is applied to an application: axes, rules, pins."""

    name: str
    settings: tuple[ExecutionAxis, ...]
    degrees: tuple[DegreeRule, ...]
    batches: str
    pins: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    """Keys held to values: only executions with one of them are in the space."""

    def axis(self, key: str) -> ExecutionAxis:
        """The axis of a categorical key."""
        return next(axis for axis in self.settings if axis.key == key)

    def pinned(self, key: str) -> tuple[Value, ...] | None:
        """Values a key is held to, if it is."""
        return dict(self.pins).get(key)

    def pin(self, key: str, values: Iterable[Value]) -> Axes:
        """The space with a key held to values; a categorical axis takes exactly these where its needs are met."""
        held = tuple(values)
        settings = tuple(replace(axis, values=held) if axis.key == key else axis for axis in self.settings)
        pins = (*((name, old) for name, old in self.pins if name != key), (key, held))
        return replace(self, settings=settings, pins=pins)

    def constraints(self) -> tuple[str, ...]:
        """Every constraint in words."""
        product = "tensor_par * pipeline_par * data_par = num_procs"
        batch = "the largest multiple" if self.batches == LARGEST else "every multiple"
        needs = (
            f"{axis.key} leaves {axis.plain} only with {' and '.join(need.text() for need in axis.needs)}"
            for axis in self.settings
            if axis.needs
        )
        pins = (f"{key} is {' or '.join(map(str, values))}" for key, values in self.pins)
        rules = (rule.text() for rule in self.degrees)
        return (product, *rules, f"batch_size is {batch} of data_par up to the batch", *needs, *pins)


ABOVE_ONE = {key: Need(key=key) for key in ("tensor_par", "pipeline_par", "data_par")}
REDO = (
    Need(key="tensor_par_comm_type", values=("rs_ag",)),
    Need(key="activation_recompute", values=("attn_only", "none")),
)


def _settings(
    system: System,
    *,
    datatypes: tuple[str, ...],
    fused: tuple[bool, ...],
    tp_overlap: bool,
    dp_overlap: bool,
    full_offload: bool,
) -> tuple[ExecutionAxis, ...]:
    """The categorical axes, in the order of SETTING_KEYS."""
    offload = SWITCH if system.mem2.capacity_bytes > 0 else (False,)
    networks = tuple(range(len(system.networks)))
    checkpoints = () if full_offload else (Need(key="activation_recompute", values=("attn_only", "none")),)
    overlaps = CHOICES["tensor_par_overlap"] if tp_overlap else ("none",)
    return (
        ExecutionAxis(key="activation_recompute", values=CHOICES["activation_recompute"], plain="none"),
        ExecutionAxis(key="optimizer_sharding", values=SWITCH, plain=False, needs=(ABOVE_ONE["data_par"],)),
        ExecutionAxis(key="tensor_par_comm_type", values=CHOICES["tensor_par_comm_type"], plain="ar"),
        ExecutionAxis(key="seq_par_ag_redo", values=SWITCH, plain=False, needs=REDO),
        ExecutionAxis(
            key="data_par_overlap",
            values=SWITCH if dp_overlap else (False,),
            plain=False,
            needs=(ABOVE_ONE["data_par"],),
        ),
        ExecutionAxis(key="tensor_par_overlap", values=overlaps, plain="none", needs=(ABOVE_ONE["tensor_par"],)),
        ExecutionAxis(key="weight_offload", values=offload, plain=False),
        ExecutionAxis(key="activations_offload", values=offload, plain=False, needs=checkpoints),
        ExecutionAxis(key="optimizer_offload", values=offload, plain=False),
        ExecutionAxis(key="fused_activation", values=fused, plain=True),
        ExecutionAxis(key="attention_type", values=("multihead",), plain="multihead"),
        ExecutionAxis(key="datatype", values=datatypes, plain=datatypes[0]),
        ExecutionAxis(key="tensor_par_net", values=networks, plain=0, needs=(ABOVE_ONE["tensor_par"],)),
        ExecutionAxis(key="pipeline_par_net", values=networks, plain=0, needs=(ABOVE_ONE["pipeline_par"],)),
        ExecutionAxis(key="data_par_net", values=networks, plain=0, needs=(ABOVE_ONE["data_par"],)),
    )


COMMON_DEGREES: tuple[DegreeRule, ...] = (
    Divides(key="tensor_par", quantity="num_procs"),
    Divides(key="tensor_par", quantity="hidden"),
    Divides(key="tensor_par", quantity="attn_heads"),
    AtMost(key="pipeline_par", quantity="num_blocks"),
    Divides(key="pipeline_interleaving", quantity="stage_blocks"),
    Divides(key="microbatch_size", quantity="replica_batch"),
)


def optimal_execution(
    system: System, *, datatype: str = "float16", tp_overlap: bool = True, dp_overlap: bool = True
) -> Axes:
    """The space that Calculon's `llm-optimal-execution` walks.

    Args:
        system: offload is an axis where its second memory tier is not empty.
        datatype: the datatype of all executions.
        tp_overlap: overlap of tensor-parallel traffic is an axis.
        dp_overlap: overlap of data-parallel traffic is an axis.

    Returns:
        Its axes.

    Source: calculon/llm/optimal_execution.py of github.com/calculon-ai/calculon.
    """
    return Axes(
        name="optimal-execution",
        settings=_settings(
            system,
            datatypes=(datatype,),
            fused=(True,),
            tp_overlap=tp_overlap,
            dp_overlap=dp_overlap,
            full_offload=False,
        ),
        degrees=(*COMMON_DEGREES, Divides(key="pipeline_par", quantity="num_blocks")),
        batches=LARGEST,
    )


def full(
    system: System, *, datatypes: Iterable[str] | None = None, tp_overlap: bool = True, dp_overlap: bool = True
) -> Axes:
    """Every execution parameter at every value the system can run, but for the attention, which is the model's.

    Beyond `optimal-execution`: uneven pipelines, every batch size up to the given one, offload of checkpoints, fusion
    of the activation on and off, all datatypes.

    Args:
        system: its datatypes, networks and second memory tier.
        datatypes: those of the system by default.
        tp_overlap: overlap of tensor-parallel traffic is an axis.
        dp_overlap: overlap of data-parallel traffic is an axis.

    Returns:
        Its axes.
    """
    known = tuple(name for name in CHOICES["datatype"] if name in system.matrix and name in system.vector)
    return Axes(
        name="full",
        settings=_settings(
            system,
            datatypes=tuple(datatypes) if datatypes is not None else known,
            fused=SWITCH,
            tp_overlap=tp_overlap,
            dp_overlap=dp_overlap,
            full_offload=True,
        ),
        degrees=(*COMMON_DEGREES, Divides(key="tensor_par", quantity="feedforward")),
        batches=EVERY,
    )


PRESETS: dict[str, Callable[..., Axes]] = {"optimal-execution": optimal_execution, "full": full}
"""Named spaces."""


def quantity_of(app: Application, name: str) -> int:
    """A quantity of the application by its key."""
    return int(getattr(app, name))
