"""A Megatron-LM launch script, or a list of its options, as a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.megatron.beyond import beyond_options
from meshwright.formats.megatron.foreign import of_the_program
from meshwright.formats.megatron.layout import read_layout
from meshwright.formats.megatron.model_options import read_facts
from meshwright.formats.megatron.optimizers import read_optimizer
from meshwright.formats.megatron.options import Values, read_options
from meshwright.formats.megatron.precision import read_precision
from meshwright.formats.megatron.row import read_row, schedule_in
from meshwright.formats.megatron.script import ChosenCommand, training_launch
from meshwright.formats.shell import Script, Word, processes, read_script, word
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.specs.row import PlanRow
from meshwright.units import whole_number

_LAYERS_OF_STAGES = (
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout",
)
_DEFAULT_TOKENIZERS = dict.fromkeys(("pretrain_gpt.py", "pretrain_hybrid.py"), "GPT2BPETokenizer")
"""What a program's `args_defaults` say where no --tokenizer-type is given, in Megatron-LM and Megatron-DeepSpeed."""
DEVICES = "devices"
"""The field of what is wrong with the number of devices that a launcher starts."""
_OF_ITS_OWN = ("tokenizer", "vocab")
"""Facts of a model that follow from options of their own alone."""
OF_THE_RUN = ("DATA_ARGS", "TRAIN_ARGS")
"""Variables of scripts that are exported here: data and the length of the run, which no plan depends on."""
MegatronFlags = LaunchFile
"""What the options of Megatron-LM say."""


def read_flags(
    source: str | Sequence[str | Word] | Script,
    *,
    devices: int | None = None,
    beside: Sequence[tuple[str, str]] = (),
) -> MegatronFlags:
    """Read a launch configuration.

    Args:
        source: a script that was read, the text of one, text of options alone, or a list of words.
        devices: processes of the job; read off the launcher's options by default.
        beside: options that other files of the job stand for, where the source leaves them out.

    Returns:
        The plan and everything else that was said, with problems instead of exceptions.
    """
    found, notes, problems = _command(source)
    if found.questions or not found.words:
        wrong = tuple(problems) or (() if found.questions else _NO_OPTIONS)
        return MegatronFlags(row=None, layout=None, problems=wrong, questions=found.questions, notes=tuple(notes))
    values = _values(found.words, beside)
    wrong_options, taken = _translated(values, found)
    problems, notes = [*problems, *wrong_options], [*notes, *taken]
    started = processes(found.launcher)[0] or found.tasks
    if devices is None:
        devices = found.tasks or _devices(found.launcher, problems)
    elif started not in (None, 1, devices):
        notes.append(f"the script starts {started} processes, the plan is read for {devices} devices")
    if values.has("--rampup-batch-size"):
        notes.append("the batch grows until --global-batch-size, which is planned: --rampup-batch-size")
    facts, derived = _facts(values, found.program, notes)
    workload = _workload(values, derived)
    row = read_row(values, devices, derived)
    layout = _layout(values, row, facts, derived) if row else None
    if row is not None and layout is not None and len(layout) != row.pp * row.vpp:
        vpp = len(layout) // row.pp
        row = replace(row, vpp=vpp, schedule=schedule_in(values, row.pp, vpp))
    for flag in _LAYERS_OF_STAGES:
        values.has(flag)  # asked for with the rest, where nothing else is known either
    if row is None and found.problems:
        derived = []  # what a command that is refused leaves out may be another program's to say
    questions = tuple(_questions(values))
    unresolved = tuple(dict.fromkeys(name for unknown in values.hidden.values() for name in unknown.names))
    if questions:
        # What follows from a value nobody knows would be wrong: nothing of it is said.
        row, layout, derived, workload = None, None, [], {}
        facts = {name: facts[name] for name in _OF_ITS_OWN if name in facts and facts[name] is not None}
    return MegatronFlags(
        row=row,
        layout=layout,
        dealt=None if row is None or facts.get("num_layers") else partial(_dealt, values, row, facts),
        started=started,
        multiple=1 if questions else _divides(values),
        model=facts,
        workload=workload,
        unresolved=unresolved,
        problems=(*problems, *derived),
        questions=questions,
        said=tuple(_said(values, values.asked - values.hidden.keys())),
        unpriced=tuple(_said(values, set(values.unread))),
        notes=tuple(notes),
    )


def _command(source: str | Sequence[str | Word] | Script) -> tuple[ChosenCommand, list[str], list[Problem]]:
    """The command that trains, what was assumed of its script, and what is wrong with both."""
    if isinstance(source, str):
        source = read_script(source)
    if not isinstance(source, Script):
        found = _of_words(source)
        return found, [], [*found.problems]
    found = training_launch(source)
    return found, [*source.notes(OF_THE_RUN)], [*_unread(source), *found.problems]


def _values(words: Sequence[Word], beside: Sequence[tuple[str, str]]) -> Values:
    """Options with what others of a command, or other files, say of those it leaves out."""
    values = read_options(words)
    if any(one.text.startswith("--moe-num-experts") for one in words):
        # What MegaBlocks' fork does without an option.
        values.given.setdefault("--moe-router-topk", ("1",))
        values.given.setdefault("--moe-token-dispatcher-type", ("alltoall",))
    for flag, value in beside:
        if flag not in values.given and flag not in values.hidden:
            values.given[flag] = (value,) if value else ()
    return values


def _translated(values: Values, found: ChosenCommand) -> tuple[list[Problem], list[str]]:
    """What is wrong with options, and what was taken of them."""
    wrong, notes = [*values.problems], []
    of_mindspeed = False
    if "--deepspeed" in values.given:
        from meshwright.formats.megatron.deepspeed import as_megatron, wrong_of  # few scripts start it

        wrong, notes = [*wrong_of(values)], [*as_megatron(values)]
    elif _of_mindspeed(values, found.program):
        from meshwright.formats.megatron import mindspeed  # few scripts start it

        of_mindspeed = True
        wrong, notes = [*wrong, *mindspeed.wrong_of(values)], [*mindspeed.as_megatron(values)]
    own, foreign = of_the_program(found.program, values)
    own = [*map(mindspeed.as_its_own, own)] if of_mindspeed else own
    wrong += [*own, *beyond_options(values)]
    return wrong, [*notes, *values.notes, *foreign, *_of_earlier_attention(found.words)]


def _of_mindspeed(values: Values, program: str) -> bool:
    """Whether MindSpeed-LLM is started: a program that it alone has, or options."""
    return program.endswith("posttrain_gpt.py") or any(" of MindSpeed, " in note for note in values.notes)


def _facts(values: Values, program: str, notes: list[str]) -> tuple[dict[str, Any], list[Problem]]:
    """What options say of the model, and what is wrong in it; nothing where its layers are of several kinds."""
    mixed = _mixed(program, values)
    if mixed:
        from meshwright.formats.megatron.hybrid import hybrid_facts  # few scripts train such

        found, wrong = hybrid_facts(values)
        if found:
            return found, wrong
        notes.append(f"{mixed} makes layers of Mamba, or of several kinds, which a model's config.json describes")
        return {}, []
    facts, problems = read_facts(values)
    if not any(facts.get("tokenizer", ())) and _by_default(values):
        facts["tokenizer"] = (_DEFAULT_TOKENIZERS.get(program.rpartition("/")[2], ""), "")
    return facts, list(problems)


_NO_OPTIONS = (
    Problem(
        what="there are no options",
        why="a launch script names them after a .py file",
        fix="name the script that starts pretrain_gpt.py",
        field="options",
    ),
)


def _mixed(program: str, values: Values) -> str:
    """What makes layers of other kinds than attention and MLP, which options alone do not describe; else nothing."""
    name = program.rpartition("/")[2]
    flags = ("--hybrid-layer-pattern", "--hybrid-override-pattern", "--is-hybrid-model")
    given = next((flag for flag in flags if flag in values.given or flag in values.hidden), "")
    by_spec = "--spec" if values.given.get("--spec", ())[-1:] == ("mamba_stack_spec",) else ""
    return given or by_spec or (name if name in ("pretrain_mamba.py", "pretrain_hybrid.py") else "")


def _by_default(values: Values) -> bool:
    """Whether the script takes the program's own kind of tokenizer: it names its file, and no kind."""
    kinds = {"--tokenizer-type", "--tokenizer-model", "--tokenizer-name-or-path"}
    said = values.given.keys() | values.hidden.keys()
    return "--vocab-file" in said and not kinds & said


def _of_words(given: Sequence[str | Word]) -> ChosenCommand:
    words = [word(one) if isinstance(one, str) else one for one in given]
    at = next((at for at, one in enumerate(words) if one.text.endswith(".py")), None)
    if at is not None:
        return ChosenCommand(launcher=tuple(words[:at]), words=tuple(words[at + 1 :]), program=words[at].text)
    first = next((at for at, one in enumerate(words) if one.text.startswith("--")), len(words))
    return ChosenCommand(words=tuple(words[first:]))


def _unread(script: Script) -> Iterator[Problem]:
    """What part of a script was not read: then an option may have been missed."""
    for why, place in script.broken[:4]:
        yield Problem(what=f"{place} cannot be read", why=why, fix="correct the script there", field="source")


def _questions(values: Values) -> Iterator[Problem]:
    """Options that the plan needs and that nobody can know."""
    strays = [
        Open(what="which options are here", unknown=unknown, place=place, field="options")
        for place, unknown in values.strays[:8]
    ]
    options = [
        Open(what=flag, unknown=unknown, place=values.places.get(flag), field=flag)
        for flag, unknown in values.open.items()
    ]
    return questions_for([*strays, *options])


def _said(values: Values, wanted: set[str]) -> Iterator[Said]:
    """Options of a set with their values, in the order of the script, those of values that nobody knows behind."""
    for flag in (*values.given, *values.hidden):
        shown_as = values.written.get(flag, values.given.get(flag, ()))
        if flag in wanted and shown_as is not None:
            place = values.places.get(flag)
            shown = str(place) if place is not None and place.line else ""
            yield Said(option=flag, value=" ".join(shown_as), place=shown)


def _devices(launcher: Sequence[Word], problems: list[Problem]) -> int | None:
    """Processes that the launcher starts."""
    found, unknown = processes(launcher)
    if found is None:
        why = "the data-parallel degree is what is left of the devices"
        fix = "give the number of devices, or a script with torchrun --nproc_per_node and --nnodes"
        if unknown is not None:
            (asked,) = questions_for([Open(what="the number", unknown=unknown, place=None, field="devices")])
            why, fix = asked.why, asked.fix
        problems.append(Problem(what="the number of devices is not said", why=why, fix=fix, field=DEVICES))
    return found


def _workload(values: Values, problems: list[Problem]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    precision, more = read_precision(values)
    problems += more
    found["precision"] = precision
    for flag, name in (("--seq-length", "seq_len"), ("--global-batch-size", "global_batch")):
        if values.has(flag):
            found[name] = values.whole(flag)
    problems += _positions(values)
    found["optimizer"], more = read_optimizer(values)
    problems += more
    if values.has("--first-last-layers-bf16") and not (values.has("--fp8-format") or values.has("--fp4-format")):
        why, fix = "all layers compute in 16 bits", "leave it out, or give --fp8-format"
        what = "--first-last-layers-bf16 without 8-bit products"
        problems.append(Problem(what=what, why=why, fix=fix, field="--first-last-layers-bf16"))
    elif values.has("--first-last-layers-bf16"):
        for side, name in (("start", "bf16_first"), ("end", "bf16_last")):
            found[name] = values.whole(f"--num-layers-at-{side}-in-bf16", 1) or None
    unfused = values.text("--attention-backend") in ("unfused", "local")
    found["attention_kernel"] = "materialised" if unfused else "flash"
    if "--lora-r" in values.given:
        from meshwright.formats.megatron.mindspeed import adapters  # few scripts train them

        found["lora"] = adapters(values)
    return found


def _positions(values: Values) -> Iterator[Problem]:
    """Fewer positions than a sequence has tokens, with which the program stops.

    Source: validate_args of megatron/training/arguments.py.
    """
    # Looked at where it is known: no plan needs it, and who asks for options does not ask for this one.
    said = (values.given.get(flag, ("",))[:1] for flag in (_POSITIONS, "--seq-length"))
    most, length = (whole_number("".join(one)) for one in said)
    if most is not None and length is not None and most < length:
        why = f"sequences have {length} tokens, and it stops where there are fewer positions"
        what, fix = f"{_POSITIONS} is {most}", f"use {length} or more"
        yield Problem(what=what, why=why, fix=fix, field=_POSITIONS)


_POSITIONS = "--max-position-embeddings"
_BEFORE_FUSED = ("--DDP-impl", "--data-impl", "--checkpoint-activations", "--activations-checkpoint-method")
"""Options that left Megatron-LM before its fused attention became what runs unless another is asked for."""
_ATTENTION = ("--attention-backend", "--use-flash-attn", "--transformer-impl", "--use-mcore-models", "--deepspeed")
"""Options that say which attention runs, or that it is of later releases."""


def _of_earlier_attention(words: Sequence[Word]) -> Iterator[str]:
    """Says that a script of earlier releases is priced with today's attention."""
    flags = {one.text.partition("=")[0] for one in words}
    dated = [flag for flag in _BEFORE_FUSED if flag in flags]
    if dated and not any(flag.startswith(_ATTENTION) for flag in flags):
        yield (
            f"{dated[0]} is of releases whose attention wrote out all scores unless --use-flash-attn was given; it is "
            "priced as today's fused kernel: --set attention-backend=unfused prices the earlier one"
        )


def _divides(values: Values) -> int:
    """What divides the devices of a job: its tensor, pipeline and context ranks."""
    degrees = (f"--{name}-parallel-size" for name in ("tensor-model", "pipeline-model", "context"))
    return math.prod(max(1, values.whole(flag, 1)) for flag in degrees)


def _layout(values: Values, row: PlanRow, facts: dict[str, Any], problems: list[Problem]) -> tuple[int, ...] | None:
    """Layers of each virtual stage."""
    layers = facts.get("num_layers")
    if values.has("--pipeline-model-parallel-layout"):
        return _said_layout(values, row, facts, problems)
    if layers is None:
        return None
    vpp = row.vpp
    first, last = (values.whole(f"--decoder-{end}-pipeline-num-layers", -1) for end in ("first", "last"))
    extra = [int(values.has(f"--account-for-{end}-in-pipeline-split")) for end in ("embedding", "loss")]
    per_chunk = values.whole("--num-layers-per-virtual-pipeline-stage")
    if per_chunk > 0:
        vpp = max(1, (layers + sum(extra)) // (row.pp * per_chunk))
    ends = [count for count in (first, last) if count >= 0]
    middle = row.pp - len(ends)
    share, rest = divmod(layers + sum(extra) - sum(ends), middle) if middle else (0, layers - sum(ends))
    counts = [share] * row.pp
    if first >= 0:
        counts[0] = first
    if last >= 0:
        counts[-1] = last
    if "--deepspeed" in values.given and vpp == 1 and share > 0 and not ends:
        from meshwright.formats.megatron.deepspeed import balanced  # few scripts start it

        counts, rest = balanced(layers + sum(extra), row.pp), 0
    chunks = [divmod(count, vpp) for count in counts]
    if rest or share < 0 or any(left for _, left in chunks):
        why = f"{layers} layers cannot be spread evenly over pp {row.pp} x vpp {vpp}"
        fix = "give --pipeline-model-parallel-layout"
        problems.append(Problem(what=f"--num-layers is {layers}", why=why, fix=fix, field="--num-layers"))
        return None
    stages = [size for _ in range(vpp) for size, _ in chunks]
    stages[0] -= extra[0]
    stages[-1] -= extra[1]
    return tuple(stages)


def _dealt(values: Values, row: PlanRow, facts: dict[str, Any], layers: int) -> tuple[int, ...]:
    """Layers of each virtual stage of a model that other files describe.

    Raises:
        InputError: they do not go with the options.
    """
    problems: list[Problem] = []
    layout = _layout(values, row, {**facts, "num_layers": layers}, problems)
    if layout is None:
        raise InputError(problems)
    return layout


def _said_layout(
    values: Values, row: PlanRow, facts: dict[str, Any], problems: list[Problem]
) -> tuple[int, ...] | None:
    flag = "--pipeline-model-parallel-layout"
    try:
        stages, mtp = read_layout(values.text(flag))
    except InputError as error:
        problems += error.problems
        return None
    for name, found, rule in (
        ("stages", len(stages) % row.pp, f"{len(stages)} stages must be a multiple of pp {row.pp}"),
        (
            "layers",
            sum(stages) != facts.get("num_layers", sum(stages)),
            f"it holds {sum(stages)} of the model's layers",
        ),
        ("modules", mtp != facts.get("mtp_layers", mtp), f"it holds {mtp} multi-token-prediction modules"),
    ):
        if found:
            problems.append(Problem(what=f"{flag}: {name} do not agree", why=rule, field=flag))
            return None
    return stages
