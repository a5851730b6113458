"""Alpa: a Python module with a `PipeshardParallel` of manual stages.

Names are those of alpa 1.0.0.dev0, commit b8078a9f (2023-12, its last), https://github.com/alpa-projects/alpa.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.key_text import Entry, KeyText
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.optimizers import OPTIMIZERS
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import overrides
from meshwright.targets.contract import Files, Note, OneStrategyTarget, file_of, marked
from meshwright.targets.key_texts import Keys
from meshwright.targets.keys import KeyReader
from meshwright.targets.python_values import UNKNOWN, assigned, constants, expression_value, keywords
from meshwright.targets.sayable import ANY, Plan, Rule, equal_micro_batches, only

TITLE = "Alpa"
MODULE = "alpa_plan.py"
_SOURCE = "alpa/pipeline_parallel/stage_construction.py of commit b8078a9f"
_SHARDINGS = {0: "z0", 2: "z2", 3: "z3"}
SAYS = {
    "tp": ANY,
    "pp": ANY,
    "dp": ANY,
    "layers": ANY,
    "schedule": only("1f1b", "gpipe"),
    "tensor.sequence_parallel": only(False, True),
    "data.zero": only(
        0, 2, 3, why="data ranks hold copies, or shards as Zero2Parallel and Zero3Parallel do", fix="use z2"
    ),
    "recompute.kind": only("none", "full", why="layers are recomputed whole (remat_layer)", fix="use rc-full"),
    "optimizer": ANY,
    "attention_kernel": ANY,
    "precision": only("bf16", "fp16", "fp32"),
}
RULES = (
    Rule(
        field="tensor.sequence_parallel",
        holds=lambda plan: plan.strategy.tp == 1 or not plan.settings["tensor.sequence_parallel"],
        why="how tensors are split beyond the logical mesh is what its own solver finds",
        fix="add nosp",
        source=_SOURCE,
    ),
    Rule(
        field="pp",
        holds=lambda plan: _mesh(plan) is not None,
        why="a stage has part of a node, a power of two, or whole nodes",
        fix="use a pipeline whose stages are 1, 2, 4 ... devices or whole nodes",
        source=_SOURCE,
    ),
    equal_micro_batches("a batch is cut into equal micro-batches", _SOURCE),
)
_TEXT = '''\
"""{head}

Mark the end of every layer but the last with mark_pipeline_boundary(): the embedding goes with the first, the head with
the last. Then `train_step = alpa.parallelize(train_step, method=method)`. Names of alpa 1.0.0.dev0 (2023-12).
"""

from alpa import AutoShardingOption, ManualLayerOption, ManualStageOption, PipeshardParallel

GLOBAL_BATCH = {batch}
SEQ_LEN = {seq_len}
{train_step}method = PipeshardParallel(
    num_micro_batches={micro_batches},
    pipeline_schedule="{schedule}",
    layer_option=ManualLayerOption(remat_layer={remat}),
    default_auto_sharding_option=AutoShardingOption({sharding}),
    stage_option=ManualStageOption(
        forward_stage_layer_ids={layers},
        submesh_physical_shapes={physical},
        submesh_logical_shapes={logical},
        submesh_autosharding_option_dicts={options},
    ),
)
'''
_SHARDED = {zero: f"prefer_reduce_scatter={zero == 2}, force_zero_stage_3={zero == 3}" for zero in (0, 2, 3)}


def _mesh(plan: Plan) -> tuple[int, int] | None:
    """Nodes, and devices of each, of a stage."""
    devices, node = plan.strategy.tp * plan.strategy.dp, plan.job.cluster.groups[0].devices_per_node
    if devices <= node:
        return (1, devices) if devices & (devices - 1) == 0 else None
    return None if devices % node else (devices // node, node)


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    found, strategy = plan.found, plan.strategy
    ends = [sum(found.layers[: stage + 1]) for stage in range(found.pp)]
    text = _TEXT.format(
        head=f"{plan.model.name} on {plan.job.plan.devices} devices: {plan.job.name or 'a plan of uneven stages'}.",
        batch=plan.workload.global_batch,
        seq_len=plan.workload.seq_len,
        train_step="".join(f'{name} = "{value}"  # {what}\n' for name, (value, what) in _train_step(plan).items()),
        micro_batches=found.pipeline.num_micro_batches,
        schedule=found.pipeline.schedule.name if found.pp > 1 else "1f1b",
        remat=plan.recomputed,
        sharding=_SHARDED[strategy.data.zero],
        layers=[list(range(end - size, end)) for end, size in zip(ends, found.layers, strict=True)],
        physical=[_mesh(plan)] * found.pp,
        logical=[(strategy.dp, strategy.tp)] * found.pp,
        options=[{"force_batch_dim_to_mesh_dim": 0}] * found.pp,
    )
    return ((MODULE, text),)


def _train_step(plan: Plan) -> dict[str, tuple[str, str]]:
    """What the plan takes of the user's own train step, where it is not what a module without these is read with."""
    said = {
        "OPTIMIZER": (plan.workload.optimizer, "what the train step updates with", ("adam", "adamw")),
        "DTYPE": (plan.precision.name, "what it computes with", ("bf16",)),
        "ATTENTION": (plan.workload.attention_kernel, "how it attends", ("flash",)),
    }
    return {name: (value, what) for name, (value, what, usual) in said.items() if value not in usual}


_recognised = marked(
    (".py",), ("PipeshardParallel(", "alpa.get_3d_parallel_method("), ("ManualStageOption(", "get_3d_parallel_method(")
)


def _read(files: Files, devices: int | None = None) -> LaunchFile:
    """The module as a plan, from its syntax tree, never by running it.

    Raises:
        InputError: it is no Python, or has no `PipeshardParallel` of manual stages.
    """
    name, text = file_of(files, MODULE, _recognised)
    keys, unknown = _keys(text)
    keys, over = overrides.laid_over(keys, files)
    unknown = {path: said for path, said in unknown.items() if path not in over}
    reader = KeyReader(keys=keys, file=(name, text), over=over)
    if {*_DEGREES} & {*keys, *unknown}:
        return _of_degrees(reader, unknown, devices)
    layers = reader.get("forward_stage_layer_ids", [])
    shapes = reader.get("submesh_logical_shapes", [])
    physical = reader.get("submesh_physical_shapes", [])
    steps, batch = reader.degree("num_micro_batches"), reader.get("GLOBAL_BATCH")
    train_step = _of_train_step(reader)
    schedule, remat = reader.word("pipeline_schedule", "1f1b"), reader.switch("remat_layer")
    zero = 3 if reader.switch("force_zero_stage_3") else 2 if reader.switch("prefer_reduce_scatter") else 0
    questions = _asked(reader, unknown)
    if questions:
        return reader.launch(None, questions=tuple(questions))
    if not _stages(layers, shapes, physical):
        why = "every stage needs a list of layers, counted on from 0, a physical and a logical shape of equal size"
        reader.refuse("stage_option", len(layers) if isinstance(layers, list) else layers, why)
        return reader.launch(None)
    if len(set(map(tuple, shapes))) > 1:
        why = "stages of unlike shapes are no plan of one line"
        reader.refuse("submesh_logical_shapes", shapes, why, "use one shape")
        return reader.launch(None)
    dp, tp = shapes[0]
    if not isinstance(batch, int) or batch < 1 or batch % (steps * dp):
        reader.refuse("GLOBAL_BATCH", batch, f"must be a multiple of {steps} micro-batches x {dp} data ranks")
        return reader.launch(None, workload={"global_batch": batch} if type(batch) is int and batch > 0 else {})
    if schedule not in ("1f1b", "gpipe"):
        reader.refuse("pipeline_schedule", schedule, "1f1b and gpipe train", "use 1f1b")
    if devices is not None and devices != dp * tp * len(layers):
        why = f"the stages have {dp * tp * len(layers)} devices together"
        reader.refuse("submesh_physical_shapes", physical, f"{why}, the cluster {devices}", "check with that many")
    row = PlanRow(
        tp=tp,
        sp=tp == 1,
        pp=len(layers),
        dp=dp,
        sharding=_SHARDINGS[zero],
        mbs=batch // (steps * dp),
        gbs=batch,
        schedule=schedule if schedule == "gpipe" and len(layers) > 1 else "1f1b",
        recompute="full" if remat else "none",
    )
    workload = {"global_batch": batch, **train_step}
    layout = tuple(len(one) for one in layers)
    return reader.launch(row, layout, model={"num_layers": sum(layout)}, workload=workload)


def _asked(reader: KeyReader, unknown: Mapping[str, str]) -> list[Problem]:
    """Asks for values that are read and not in the file, and for the batch, which no method says."""
    name = reader.file[0]
    questions = [
        Problem(what=f"{path} is not known", why=f"{said} is not in {name}", fix=f"give --set {path}=VALUE", field=path)
        for path, said in unknown.items()
        if path in reader.asked
    ]
    if "GLOBAL_BATCH" not in {*reader.keys, *unknown}:
        fix = "write GLOBAL_BATCH = N beside the method, or give --set GLOBAL_BATCH=N"
        why = "a method says how often a batch is cut, not how large it is"
        questions.append(Problem(what="the batch is not known", why=why, fix=fix, field="GLOBAL_BATCH"))
    return questions


def _of_degrees(reader: KeyReader, unknown: Mapping[str, str], devices: int | None) -> LaunchFile:
    """What `get_3d_parallel_method` makes of three degrees: stages of equal cost, and data ranks that shard as ZeRO 2.

    Args:
        reader: the arguments by name.
        unknown: what stands where a value is not known.
        devices: the number of devices of the job.
    """
    pp, tp, dp = (reader.get(f"{name}_parallel") for name in ("pipeline", "operator", "data"))
    steps, batch = reader.get("num_micro_batches"), reader.get("GLOBAL_BATCH")
    workload = _of_train_step(reader)
    if questions := _asked(reader, unknown):
        return reader.launch(None, questions=tuple(questions))
    sizes = {"pipeline_parallel": pp, "operator_parallel": tp, "num_micro_batches": steps, "GLOBAL_BATCH": batch}
    for path, size in sizes.items():
        if type(size) is not int or size < 1:
            reader.refuse(path, size, "must be a whole number of at least 1")
            return reader.launch(None)
    reader.multiple = pp * tp
    if dp == -1 and (devices is None or devices % reader.multiple):
        left = "the devices" if devices is None else f"{devices} devices, which {pp * tp} do not divide"
        reader.refuse("data_parallel", -1, f"it is what is left of {left}", f"say --gpus with a multiple of {pp * tp}")
        return reader.launch(None)
    dp = devices // reader.multiple if dp == -1 and devices is not None else dp
    if type(dp) is not int or dp < 1 or batch % (steps * dp):
        why = f"{batch} sequences must divide into {steps} micro-batches x data_parallel, -1 or a degree"
        reader.refuse("data_parallel", dp, why)
        return reader.launch(None)
    row = PlanRow(tp=tp, sp=tp == 1, pp=pp, dp=dp, sharding=_SHARDINGS[2], mbs=batch // (steps * dp), gbs=batch)
    return reader.launch(row, workload={"global_batch": batch, **workload})


def _of_train_step(reader: KeyReader) -> dict[str, Any]:
    """Fields of a workload that constants beside the method say of the train step."""
    precision, optimizer, length = reader.get("DTYPE"), reader.get("OPTIMIZER"), reader.get("SEQ_LEN")
    if precision is not None and precision not in PRECISIONS:
        reader.refuse("DTYPE", precision, f"{', '.join(PRECISIONS)} can be planned", "use bf16")
        precision = None
    if optimizer is not None and str(optimizer).partition(":")[0] not in OPTIMIZERS:
        reader.refuse("OPTIMIZER", optimizer, f"{', '.join(OPTIMIZERS)} can be planned", "use adam")
        optimizer = None
    stated = {"optimizer": optimizer, "attention_kernel": reader.get("ATTENTION"), "seq_len": length}
    return {name: value for name, value in stated.items() if value} | (
        {"precision": PRECISIONS[precision]} if precision else {}
    )


def _stages(layers: object, shapes: object, physical: object) -> bool:
    """Whether the options of stages go together."""
    if not all(isinstance(one, list) and one for one in (layers, shapes, physical)):
        return False
    assert isinstance(layers, list)
    assert isinstance(shapes, list)
    assert isinstance(physical, list)
    pairs = all(
        isinstance(one, list | tuple) and len(one) == 2 and all(type(size) is int and size > 0 for size in one)
        for one in (*shapes, *physical)
    )
    listed = all(isinstance(one, list | tuple) and one for one in layers)
    if not pairs or not listed or len({len(layers), len(shapes), len(physical)}) > 1:
        return False
    counted = [layer for one in layers for layer in one]
    same = all(one[0] * one[1] == other[0] * other[1] for one, other in zip(shapes, physical, strict=True))
    return counted == list(range(len(counted))) and same


def _keys(text: str) -> tuple[Keys, Mapping[str, str]]:
    """Keywords of the method and its options by name, and what stands where a value is not known."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(what="the module of Alpa cannot be read", why=str(error), code="MW202") from None
    names = constants(tree)
    keys: Keys = {name: names[name] for name in _STATED if name in names}
    unknown: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in _CALLS:
            continue
        positions = _POSITIONS.get(ast.unparse(node.func).rpartition(".")[2], ())
        given: list[tuple[str, ast.expr]] = [*zip(positions, node.args, strict=False)]
        given += [(str(one.arg), one.value) for one in node.keywords]
        for name, expression in given:
            if isinstance(expression, ast.Call):
                continue
            try:
                keys[name] = _plain(expression_value(expression, names))
            except UNKNOWN:
                unknown[name] = ast.unparse(expression)[:60]
    if not {"forward_stage_layer_ids", *_DEGREES} & {*keys, *unknown}:
        why, fix = "no ManualStageOption in it lists layers of stages", "name the module that makes the method"
        raise InputError(what="the module of Alpa cannot be read", why=why, fix=fix, code="MW202")
    return keys, unknown


_STATED = ("GLOBAL_BATCH", "SEQ_LEN", "OPTIMIZER", "DTYPE", "ATTENTION")
"""Constants of the module that say what the method does not."""
_CALLS = (
    "PipeshardParallel",
    "ManualPipeshardParallel",
    "ManualStageOption",
    "ManualLayerOption",
    "AutoShardingOption",
    "get_3d_parallel_method",
)
_DEGREES = ("data_parallel", "operator_parallel", "pipeline_parallel")
_POSITIONS = {
    "ManualStageOption": ("forward_stage_layer_ids", "submesh_physical_shapes", "submesh_logical_shapes"),
    "ManualLayerOption": ("remat_layer",),
    "get_3d_parallel_method": ("num_micro_batches", *_DEGREES),
}


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _edited(name: str, text: str) -> KeyText | None:
    """The module as a text whose keywords and constants can be edited; those that are not there are not added."""
    if not name.endswith(".py"):
        return None
    entries: dict[tuple[str, ...], Entry] = {
        (one.name,): one.at for one in keywords(text) if one.call.rpartition(".")[2] in _CALLS and one.name in _EDITED
    }
    entries |= {(constant,): at for constant, at in assigned(text) if constant in _STATED}
    values, _ = _keys(text)
    return KeyText(text=text, entries=entries, said=repr, key=str, values=values, joint="=")


_EDITED = (
    *("num_micro_batches", "pipeline_schedule", "remat_layer", "prefer_reduce_scatter", "force_zero_stage_3"),
    *("forward_stage_layer_ids", "submesh_physical_shapes", "submesh_logical_shapes"),
)


TARGET = OneStrategyTarget(
    name="alpa",
    title=TITLE,
    version="commit b8078a9f (2023-12)",
    says=SAYS,
    rules=RULES,
    write=_files,
    start=lambda plan: "import method of alpa_plan.py where your train step is parallelized, after alpa.init()",
    notes=(
        Note(
            text="its solver splits matrices over the logical mesh by its own costs, which may differ from the plan's",
            when=lambda plan: plan.strategy.tp > 1,
        ),
    ),
    read=_read,
    edited=_edited,
    recognised=_recognised,
    suggested=False,  # its last commit is of 2023
    software="xla",
)
