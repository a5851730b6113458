"""What a target can say of a plan, as a table: whatever the table does not name must be at its neutral value.

So a setting that plans learn is refused by every target until somebody writes how the target says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any

from meshwright.errors import Problem
from meshwright.formats import processes
from meshwright.specs.job import Job
from meshwright.specs.layer_spec import LayerSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.precision import Precision
from meshwright.specs.row import default_schedule
from meshwright.specs.row_of import Homogeneous, homogeneous
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from meshwright.specs.tuning import Tuning
from meshwright.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """Which values of a setting a target can express."""

    values: tuple[object, ...] | None = None
    """These, None for any."""
    why: str = ""
    """What is true of the target instead."""
    fix: str = ""


ANY = Says()


def only(*values: object, why: str = "", fix: str = "") -> Says:
    """These values, the first of them suggested unless a fix is given."""
    return Says(values=values, why=why, fix=fix or f"use {_shown(values[0])}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan of equal pipelines with the values of its settings, as rules of targets read them."""

    job: Job
    found: Homogeneous
    settings: Mapping[str, object]
    """Value by dotted name; those of `neutral` and no others."""

    @property
    def strategy(self) -> LayerStrategy:
        """Strategy of all layers."""
        return self.found.strategy

    @property
    def model(self) -> ModelSpec:
        """What is trained."""
        return self.job.model

    @property
    def workload(self) -> Workload:
        """One step."""
        return self.job.workload

    @property
    def precision(self) -> Precision:
        """Precision of the layers."""
        return self.strategy.precision or self.workload.precision

    @property
    def sharded(self) -> bool:
        """Whether data ranks share weights, gradients and optimizer states."""
        return self.strategy.data.zero == 3

    @property
    def recomputed(self) -> bool:
        """Whether layers are recomputed whole."""
        return self.strategy.recompute.kind == "full"

    @property
    def per_node(self) -> int:
        """Devices of a node that the job uses."""
        return processes.per_node(self.job)

    @property
    def nodes(self) -> int:
        """Whole nodes of the job."""
        return processes.nodes(self.job)

    @property
    def link_domain(self) -> int:
        """Devices of one NVLink domain, or of whatever links devices closest."""
        group = self.job.cluster.groups[0]
        return group.domains[0].size if len(group.domains) > 1 else group.devices

    @property
    def even(self) -> bool:
        """Whether all virtual stages hold equally many layers."""
        return len(set(self.found.layers)) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What must hold of several settings together."""

    field: str
    holds: Callable[[Plan], bool]
    why: str
    fix: str = ""
    source: str = ""
    """Where the target says so, with its version."""


def equal_micro_batches(why: str, source: str) -> Rule:
    """Micro-batches of one shape.

    Args:
        why: the target has no others.
        source: the source where it says so.
    """
    fix = "plan equal micro-batches"
    return Rule(field="shapes", holds=lambda plan: not plan.found.pipeline.shapes, why=why, fix=fix, source=source)


def whole_key_value_heads(source: str) -> Rule:
    """Heads of keys and values are whole on their tensor ranks, and on no two of them."""
    return Rule(
        field="tp",
        holds=lambda plan: all(_key_value_heads(kind) % plan.strategy.tp == 0 for kind in plan.model.kinds()),
        why="tensor ranks hold whole heads of keys and values, none of them twice",
        fix="use a tp that divides the heads of keys and values",
        source=source,
    )


def _key_value_heads(kind: LayerSpec) -> int:
    """Heads of keys and values of a layer, as many as of queries where it has latents of them."""
    heads: int = getattr(kind.attention, "kv_heads", 0) or getattr(kind.attention, "heads", 0)
    return heads


def overlap_inside_domain(source: str) -> Rule:
    """Tensor collectives beside products where all ranks of tp reach each other's memory.

    Args:
        source: the source where the target says so.
    """
    return Rule(
        field="tensor.overlap",
        holds=lambda plan: plan.settings["tensor.overlap"] != "ring" or plan.strategy.tp <= plan.link_domain,
        why="overlap of tensor collectives with products runs over NVLink, inside one domain of it",
        fix="leave out tpov, or use a tp within the domain",
        source=source,
    )


NEUTRAL = {
    "tensor.name": "1d",
    "tensor.sequence_parallel": True,
    "tensor.overlap": "bulk",
    "tp": 1,
    "cp": 1,
    "context.kinds": (),
    "context.layouts": (),
    "pp": 1,
    "vpp": 1,
    "dp": 1,
    "layers": "even",
    "schedule": "1f1b",
    "block": 0,
    "shapes": (),
    "optimizer": "adam",
    "training": True,
    "sequence_lengths": (),
    "loss_tiles": 1,
    "mlp_tiles": 1,
    "attention_kernel": "flash",
    "wide": 0,
    "tuning": None,
    "beside": (),
    "precision": "bf16",
}
"""Settings beside those of `LayerStrategy`'s own families, with the value that needs no word."""
_FAMILIES = ("expert", "data", "recompute", "offload")
_COUNTED = ("data.replicate", "data.shard")
"""Degrees whose product is `dp`; what is said of them is said there."""


@lru_cache(maxsize=128)
def _settings(families: LayerStrategy) -> Mapping[str, object]:
    """Values of the families of a strategy by dotted name."""
    found: dict[str, object] = {"optimizer_tile": families.optimizer_tile}
    for family in _FAMILIES:
        record = getattr(families, family)
        for name, field in _dotted(family, record.__class__):
            found[name] = getattr(record, field)
    return found


@cache
def _dotted(family: str, record: Any) -> tuple[tuple[str, str], ...]:
    """Dotted names of the fields of a family, with the fields: a search asks for them hundreds of times."""
    return tuple((f"{family}.{field.name}", field.name) for field in fields(record))


@cache
def neutral() -> Mapping[str, object]:
    """The value of every setting that a plan need not state."""
    return {**NEUTRAL, **_settings(LayerStrategy())}


@lru_cache(maxsize=8)
def _of_model(model: ModelSpec) -> Mapping[str, object]:
    """What of a model the files of a target say."""
    wide = sum(layer.wide for layer in model.layers())
    return {"wide": wide, "tuning": model.tuning, "beside": model.beside_decoder}


def settings_of(job: Job, found: Homogeneous) -> Mapping[str, object]:
    """Value of every setting of a plan by its dotted name."""
    strategy, pipeline, workload = found.strategy, found.pipeline, job.workload
    one = strategy.tensor if isinstance(strategy.tensor, Tensor1D) and strategy.tp > 1 else Tensor1D()
    return {
        **_settings(strategy),
        "tensor.name": strategy.tensor.name,
        "tensor.sequence_parallel": one.sequence_parallel,
        "tensor.overlap": one.overlap,
        "tp": strategy.tp,
        "cp": strategy.cp,
        "context.kinds": tuple(level.kind for level in strategy.context),
        "context.layouts": tuple({level.layout for level in strategy.context if level.kind != "a2a"} - {"zigzag"}),
        "pp": found.pp,
        "vpp": found.vpp,
        "dp": strategy.dp,
        "layers": "even" if len(set(found.layers)) == 1 else "uneven",
        "schedule": _schedule(found),
        "block": found.block,
        "shapes": pipeline.shapes,
        "optimizer": workload.optimizer,
        "training": workload.training,
        "sequence_lengths": workload.packing if workload.sequence_lengths else (),
        "loss_tiles": workload.loss_tiles,
        "mlp_tiles": workload.mlp_tiles,
        "attention_kernel": workload.attention_kernel,
        **_of_model(job.model),
        "precision": (strategy.precision or workload.precision).name,
    }


def _schedule(found: Homogeneous) -> str:
    """Name of the schedule with parameters; `written by hand` for a table; without a pipeline the plain one."""
    schedule = found.pipeline.schedule
    if schedule.orders:
        return "written by hand"
    return schedule.token if found.pp > 1 or schedule.token != default_schedule(1) else "1f1b"


def refusals(
    title: str, job: Job, says: Mapping[str, Says], rules: tuple[Rule, ...] = ()
) -> tuple[Plan | None, tuple[Problem, ...]]:
    """A plan as settings, and all that a target cannot say of it.

    Args:
        title: the title of the target, for the sentences.
        job: the plan.
        says: values of settings that the target expresses; a setting not named must be neutral.
        rules: what must hold of several settings together; asked where all single ones can be said.

    Returns:
        The plan, None where its pipelines or layers differ; and the problems.
    """
    if len(job.plan.pipelines) > 1:
        return None, (unequal_pipelines(title, job),)
    found, problems = homogeneous(job.plan)
    if found is None:
        return None, problems
    plan = Plan(job=job, found=found, settings=settings_of(job, found))
    return plan, (*problems, *setting_problems(title, plan, says, rules))


def setting_problems(
    title: str, plan: Plan, says: Mapping[str, Says], rules: tuple[Rule, ...] = ()
) -> tuple[Problem, ...]:
    """All that a target cannot say of a plan of one strategy; arguments as `refusals` takes them."""
    problems = [*_unsaid(title, plan, says), *_launch_problems(plan)]
    if not problems:
        problems += [
            Problem(
                what=f"plan: {in_words(rule.field)} is {_value(plan, rule.field)}",
                why=rule.why,
                fix=rule.fix,
                field=rule.field,
            )
            for rule in rules
            if not rule.holds(plan)
        ]
    return tuple(problems)


_WORDS = {
    "sequence_lengths": "packing of sequences",
    "tensor.sequence_parallel": "sequence parallelism",
    "tensor.overlap": "overlap of tensor-parallel traffic",
    "context.kinds": "the kind of context parallelism",
    "expert.ep": "ep",
    "expert.etp": "etp",
    "expert.dispatcher": "the token dispatcher",
    "expert.overlap": "overlap of the expert all-to-all",
    "data.zero": "the stage of ZeRO",
    "data.family": "the kind of sharding",
    "data.replicate": "the number of groups that hold a whole copy",
    "data.overlap": "overlap of gradient exchanges",
    "data.gather_dtype": "the format in which weights are gathered",
    "data.reduce_dtype": "the format in which gradients are summed",
    "data.compression": "the compression of gradients",
    "data.prefetch": "the number of layers that are gathered ahead",
    "recompute.kind": "recompute",
    "recompute.modules": "the modules of selective recompute",
    "offload.tier": "where offloaded states are kept",
}


def in_words(setting: str) -> str:
    """What sentences call a setting of a plan.

    Args:
        setting: its dotted name.
    """
    return _WORDS.get(setting) or " of ".join(reversed(setting.replace("_", " ").split(".")))


def broken(rule: Rule, value: object) -> Problem:
    """A rule that a plan does not keep, by the value that breaks it."""
    return Problem(what=f"plan: {in_words(rule.field)} is {value}", why=rule.why, fix=rule.fix, field=rule.field)


def unequal_pipelines(title: str, job: Job) -> Problem:
    """Why a plan of several pipelines cannot be run."""
    return Problem(
        what=f"the plan has {len(job.plan.pipelines)} pipelines, and {title} runs one shape",
        why="all data-parallel ranks of a stage must be equal",
        fix="make a plan of one kind of device, or of one pipeline",
        field="pipelines",
    )


def _unsaid(title: str, plan: Plan, says: Mapping[str, Says]) -> Iterator[Problem]:
    plain = neutral()
    for name, value in plan.settings.items():
        said = says.get(name)
        if value == plain[name] or name in _COUNTED or (said is not None and _covers(said, value)):
            continue
        if isinstance(value, Tuning):
            yield _untuned(title, value)
            continue
        if name == "beside":
            yield _no_decoder(title, _shown(value))
            continue
        why = (said.why if said else "") or f"there is no key for {in_words(name)}"
        fix = (said.fix if said else "") or f"use {_shown(plain[name])}"
        yield Problem(what=f"plan: {in_words(name)} is {_shown(value)}", why=why, fix=fix, field=name)


def _untuned(title: str, tuning: Tuning) -> Problem:
    parts, option = ("adapters", "--lora") if tuning.lora is not None else ("frozen parts", "--freeze")
    what, why = f"plan: the model is trained with {parts}", f"files of {title} are written for training of all weights"
    return Problem(what=what, why=why, fix=f"leave out {option}, or use another target", field="tuning")


def _no_decoder(title: str, parts: str) -> Problem:
    what, why = f"plan: the model has {parts}", f"files of {title} are written for decoders that predict words"
    return Problem(what=what, why=why, fix="leave out --target: the plan holds whatever starts it", field="model")


def _covers(said: Says, value: object) -> bool:
    if said.values is None:
        return True
    if isinstance(value, tuple):
        return value in said.values or all(part in said.values for part in value)
    return value in said.values


def _launch_problems(plan: Plan) -> Iterator[Problem]:
    """Every launcher starts equally many processes on each node."""
    devices, sizes = plan.job.plan.devices, {group.devices_per_node for group in plan.job.cluster.groups}
    per_node = plan.job.cluster.groups[0].devices_per_node
    if len(sizes) > 1 or (devices > per_node and devices % per_node):
        shown = " and ".join(map(str, sorted(sizes)))
        why = f"every node runs equally many processes, here {shown}"
        yield Problem(what=f"plan: devices is {devices}", why=why, fix="use whole, equal nodes", field="devices")


def _value(plan: Plan, name: str) -> str:
    return _shown(plan.settings.get(name, getattr(plan.workload, name, "")))


def _shown(value: object) -> str:
    if is_dataclass(value):
        return type(value).__name__
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "nothing"
    return "none" if value is None else repr(value)
