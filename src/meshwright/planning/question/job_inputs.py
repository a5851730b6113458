"""What a user gives a verb, turned into nouns: model, cluster, workload, and every default that shaped the answer."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.sequences import tokens_of_step
from meshwright.fields.gather import Gather
from meshwright.fields.job import JobFields
from meshwright.fields.kinds import shortened
from meshwright.formats.cluster import Assumption
from meshwright.library import models
from meshwright.library.calibration import calibration as calibration_of
from meshwright.library.clusters import resolve_cluster_file, resolve_gpus
from meshwright.library.software import canonical
from meshwright.planning.question.assumptions import job_assumptions
from meshwright.planning.question.batch import (
    DEFAULT_SAMPLES,
    check_batch,
    default_batch,
    sequence_length,
    usual_tokens,
)
from meshwright.planning.question.number_formats import (
    DEFAULT_DTYPE,
    asked_precision,
    check_computes,
    require_rank,
    wide_ends,
)
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.lengths import DYNAMIC, Lengths
from meshwright.specs.model import ModelSpec
from meshwright.specs.precision import Precision, precision
from meshwright.specs.software import DEFAULT_SOFTWARE, software_of_vendors, usual_software
from meshwright.specs.workload import Workload

_BOTH_BATCHES = Problem(
    what="both a global batch and tokens per step are given",
    why="each says how many sequences a step trains",
    fix="keep one of them",
    field="global_batch",
)
_FAILURES_OF_NO_RUN = Problem(
    what="--failures without --tokens",
    why="failures lengthen a run, not a step, and the length of the run is not given",
    fix="say the tokens of the run: --tokens 2T",
    field="failures",
)
_BOTH_PRICES = Problem(
    what="both --price and --prices are given",
    why="a device has one price per hour",
    fix="leave one of them out",
    field="price",
)
_FILE_ENDINGS = (".toml", ".json", ".yaml", ".yml", ".csv", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInputs:
    """Model, cluster and workload of a question, and the assumptions made where a field was not given."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    assumptions: tuple[Assumption, ...]
    batch_given: bool
    """Whether the batch is the user's own, so that it must not be changed."""
    by_tokens: bool = False
    """Whether it was given in tokens, which stay the same with other lengths."""
    software_given: bool = False
    """Whether the framework is stated, by the user, a plan file or a calibration: else it follows what is trained."""


def job_inputs(job: JobFields, *, usual_devices: int | None = None) -> JobInputs:
    """Resolve the inputs of a user; all problems of all inputs together.

    Args:
        job: model, cluster and workload; None where not given.
        usual_devices: the number of usual devices for whose number a batch that nobody gave is chosen; None for those
            of the cluster.

    Returns:
        The nouns and the assumptions.

    Raises:
        InputError: anything is missing or contradictory.
        UnsupportedError: an unknown model, device, dtype or optimizer and nothing else wrong.
    """
    gather = Gather()
    if job.weight_dtype == "fp32" and job.lora is not None:
        from meshwright.planning.question.tuned import beside_whole

        asked = job.lora
        beside = gather.attempt(lambda: beside_whole(asked))
        job = replace(job, weight_dtype=None, lora=beside or asked)
    spec = gather.attempt(lambda: resolve_model(job.model))
    if spec is not None and not spec.streams and (job.lora is not None or job.freeze):
        from meshwright.planning.question.tuned import with_tuning  # most jobs train all of a model

        whole = spec
        spec = gather.attempt(lambda: with_tuning(whole, job.lora, job.freeze))
    fitted = None if job.calibration is None else gather.attempt(lambda: calibration_of(job.calibration))
    where = gather.attempt(lambda: resolve_cluster(job.cluster, job.gpus, fitted))
    policy = gather.attempt(lambda: asked_precision(job, where))
    if spec is not None and policy is not None and (job.bf16_first or job.bf16_last):
        tuned, recipe = spec, policy
        spec = gather.attempt(lambda: wide_ends(tuned, recipe, job)) or spec
    lengths = gather.attempt(lambda: _lengths(job))
    _check_together(job, where, policy, gather)
    # A first workload of one sequence, so that its problems come with the others.
    first = gather.attempt(lambda: _workload(policy, fitted, job, lengths or ()))
    if spec is not None:
        first = _with_feed_forwards(job, spec, first, gather)
    gather.done()
    assert spec is not None
    assert where is not None
    assert first is not None
    return _sized(job, spec, where, first, usual_devices)


def _check_together(job: JobFields, where: ClusterSpec | None, policy: Precision | None, gather: Gather) -> None:
    """Fields that contradict each other, or the devices."""
    if job.global_batch is not None and job.tokens_per_step is not None:
        gather.problem(_BOTH_BATCHES, "MW203")
    if where is not None and not where.homogeneous and job.packing == DYNAMIC:
        why, fix = "micro-batches are grouped for one kind of device", "use --packing pack, or one kind of device"
        gather.problem(Problem(what=f"--packing {DYNAMIC}", why=why, fix=fix, field="packing"), "MW206")
    if job.prices is not None:
        from meshwright.library.prices import prices_of  # few jobs state them

        stated = job.prices
        gather.attempt(lambda: prices_of(stated))
        if job.price is not None:
            gather.problem(_BOTH_PRICES, "MW203")
    if job.failures is not None and job.tokens is None:
        gather.problem(_FAILURES_OF_NO_RUN, "MW203")
    if where is not None and policy is not None:
        gather.attempt(lambda: check_computes(where.groups, policy))


def _with_feed_forwards(job: JobFields, spec: ModelSpec, first: Workload | None, gather: Gather) -> Workload | None:
    """A workload whose load of experts is that of the model; what is said of experts, or of dense parts, needs some."""
    if first is not None:
        asked = first.update
        gather.attempt(lambda: require_rank(asked, spec))
        spread = first.expert_load
        if not spec.is_moe and (spread is not None or first.expert_imbalance != 1):
            gather.problem(_no_experts(spec, "a load of experts", "expert_load"), "MW203")
        elif spread is not None:
            known = gather.attempt(lambda: spread.of(spec))
            first = first if known is None else replace(first, expert_load=known)
    if not spec.is_moe and job.dispatch_dtype is not None:
        gather.problem(_no_experts(spec, "a number format of tokens sent to experts", "dispatch_dtype"), "MW203")
    dense = any(not layer.mlp.absent and not layer.mlp.routed_experts for layer in spec.kinds())
    if not dense and (job.mlp_tiles or 1) > 1:
        what, why = f"mlp_tiles is {job.mlp_tiles}", f"tiles are of dense feed-forward layers, and {spec.name} has none"
        gather.problem(Problem(what=what, why=why, fix="leave it out", field="mlp_tiles"), "MW203")
    return first


def _sized(
    job: JobFields, spec: ModelSpec, where: ClusterSpec, first: Workload, usual_devices: int | None
) -> JobInputs:
    """The inputs with their lengths, samples and batch, stated or usual, and the notes on them."""
    where, notes = _on_site(job, where)
    if first.sequence_lengths and spec.pooled:
        raise UnsupportedError(_no_lengths(spec), code="MW406")
    seq = sequence_length(job.seq_len, spec, first.sequence_lengths, notes)
    sampled: list[Assumption] = []
    beside_text = (job.images, job.image_size, job.audio, job.audio_seconds, job.encoder_seq_len)
    if spec.streams or any(one is not None for one in beside_text):
        from meshwright.planning.question.samples import with_samples  # few models read more than text

        beside = bool(spec.streams)
        spec, sampled = with_samples(spec, job, seq)
        if beside and (job.lora is not None or job.freeze):
            from meshwright.planning.question.tuned import with_tuning

            spec = with_tuning(spec, job.lora, job.freeze)
    batch = job.global_batch
    if batch is None:
        filled = tokens_of_step(replace(first, seq_len=seq, global_batch=1))
        devices = usual_devices or where.devices
        usual = DEFAULT_SAMPLES if spec.pooled else usual_tokens(devices)
        noun = "rows" if first.sequence_lengths else "sequences"
        several = len(where.groups) > 1
        batch = default_batch(filled, job.tokens_per_step, devices, notes, usual, noun, several=several)
    check_batch(batch)
    like = job.like
    stated = job.software is not None or _measured_under(first, like)
    usual_of_devices = software_of_vendors({group.device.vendor for group in where.groups})
    if stated or like is not None:
        software = first.software
    else:
        software = usual_software(spec.lora.base if spec.lora else None, usual_of_devices)
    workload = replace(first, seq_len=seq, global_batch=batch, software=software)
    if like is not None:
        workload = with_rest(workload, replace(like, software=workload.software) if stated else like)
    given = stated or like is not None
    _check_run(workload)
    notes += [*sampled, *job_assumptions(workload, spec, where, job.price, software_given=given)]
    return JobInputs(
        model=spec,
        cluster=where,
        workload=workload,
        assumptions=tuple(notes),
        batch_given=job.global_batch is not None or job.tokens_per_step is not None,
        by_tokens=job.tokens_per_step is not None,
        software_given=given,
    )


def _measured_under(first: Workload, like: Workload | None) -> bool:
    """Whether a calibration that the plan file does not carry already was measured under a framework of its own."""
    carried = like is not None and first.calibration == like.calibration
    return not carried and calibration_of(first.calibration).run is not None


def _check_run(workload: Workload) -> None:
    """A run has at least one step; `--tokens 15` is 15 T without its unit."""
    step = tokens_of_step(workload)
    if workload.tokens is None or workload.tokens >= step:
        return
    what, why = f"--tokens is {workload.tokens:,.0f}", f"one step trains on {step:,.0f} tokens"
    raise InputError(
        what=what, why=why, fix="give the tokens of the whole run, such as --tokens 15T", field="tokens", code="MW204"
    )


def _on_site(job: JobFields, where: ClusterSpec) -> tuple[ClusterSpec, list[Assumption]]:
    """A cluster with its hosts, prices and power as stated, and the notes on them."""
    if (job.host_ram, job.nvme, job.pcie) != (None, None, None):
        from meshwright.formats.host import with_host  # few jobs state any

        where = with_host(where, job.host_ram, job.nvme, job.pcie)
    if job.price is not None:
        price = float(job.price)
        where = replace(where, groups=tuple(replace(g, price_per_device_hour=price) for g in where.groups))
    if job.prices is job.power is job.pue is job.carbon_intensity is None:
        return where, []
    from meshwright.planning.question.site_power import with_site  # few jobs state any

    return with_site(where, job)


def with_rest(workload: Workload, like: Workload) -> Workload:
    """A workload with what no option says taken from another: framework, training or not."""
    return replace(workload, software=like.software, training=like.training)


def job_fields(model: ModelSpec | None, cluster: ClusterSpec | None, workload: Workload) -> JobFields:
    """What was asked of a job that exists."""
    return JobFields(
        model=model,
        cluster=cluster,
        seq_len=workload.seq_len,
        global_batch=workload.global_batch,
        lengths=workload.sequence_lengths or None,
        packing=workload.packing if workload.sequence_lengths else None,
        dynamic_cp=workload.dynamic_cp,
        dtype=workload.precision,
        optimizer=workload.optimizer,
        attention_kernel=workload.attention_kernel,
        loss_tiles=workload.loss_tiles if workload.loss_tiles > 1 else None,
        mlp_tiles=workload.mlp_tiles if workload.mlp_tiles > 1 else None,
        expert_load=workload.expert_load or workload.expert_imbalance,
        tokens=workload.tokens,
        failures=workload.failures,
        calibration=workload.calibration,
        like=workload,
    )


def resolve_cluster(
    cluster: ClusterSpec | str | os.PathLike[str] | None,
    gpus: str | None = None,
    calibration: Calibration | None = None,
) -> ClusterSpec:
    """The cluster of a spec, a file or the one-line form; `calibration` as `library.devices.device` takes it.

    Raises:
        InputError: none or two are given, or the one given cannot be used.
        UnsupportedError: an unknown device.
    """
    if (cluster is None) == (gpus is None):
        what = "no cluster is given" if cluster is None else "both --gpus and --cluster are given"
        fix = "give --gpus 64xH100 or --cluster FILE"
        raise InputError(
            Problem(what=what, why="a plan is made for one cluster", fix=fix, field="cluster"), code="MW203"
        )
    if isinstance(cluster, ClusterSpec):
        return cluster
    if gpus is not None:
        return resolve_gpus(gpus, calibration)
    assert cluster is not None
    text = os.fspath(cluster)
    if text.partition("#")[0].endswith(".json"):
        from meshwright.fields.plan_file import is_plan_file  # few clusters are those of a plan
        from meshwright.formats.plan_json import read_job

        if is_plan_file(text):
            return read_job(text).job.cluster
    read = resolve_cluster_file if is_cluster_path(cluster) else resolve_gpus
    return read(text, calibration)


def is_cluster_path(cluster: str | os.PathLike[str]) -> bool:
    """Whether a text names a file rather than being the one-line form."""
    text = os.fspath(cluster)
    looks_like_a_path = text.lower().endswith(_FILE_ENDINGS) or os.sep in text
    return not isinstance(cluster, str) or looks_like_a_path or os.path.exists(text)


def _no_lengths(model: ModelSpec) -> Problem:
    return Problem(
        what=f"lengths of sequences for {model.name}",
        why="every sample gives one result, whatever its tokens, and rows of several are not priced",
        fix="leave --lengths out, and say --seq",
        field="lengths",
    )


def _no_experts(model: ModelSpec, said: str, field: str) -> Problem:
    return Problem(
        what=f"{said} is given for {model.name}",
        why="a dense model has no experts",
        fix="leave it out, or name a model with experts",
        field=field,
    )


def resolve_model(model: object) -> ModelSpec:
    """The model of a spec, a name of the library, a path, or the content of a config.

    Raises:
        InputError, UnsupportedError: it is none of them.
    """
    if isinstance(model, ModelSpec):
        return model
    if model is not None and not isinstance(model, (str, os.PathLike)) and models.stated_config(model) is None:
        why = "must be a name of the library, a path, the content of a config.json or a ModelSpec"
        fix = 'for example "llama-3.1-8b" or "./config.json"'
        raise InputError(Problem(what=f"model is {shortened(model)}", why=why, fix=fix, field="model"), code="MW203")
    return models.resolve("" if model is None else model)  # type: ignore[arg-type]


def _lengths(job: JobFields) -> Lengths:
    if job.lengths is None and job.packing is None and not job.dynamic_cp:
        return ()
    from meshwright.planning.question.sequences import lengths_asked  # few jobs state them

    return lengths_asked(job)


def _workload(policy: Precision | None, calibration: Calibration | None, job: JobFields, lengths: Lengths) -> Workload:
    kernel = job.attention_kernel or "flash"
    if kernel not in ("flash", "materialised"):
        why = "must be flash or materialised"
        raise InputError(Problem(what=f"attention_kernel is {shortened(kernel)}", why=why, field="attention_kernel"))
    measured = calibration_of(calibration).run
    spread: float | ExpertLoad = 1.0
    if job.expert_load is not None:
        from meshwright.formats.expert_load import expert_load_of  # few jobs state one

        spread = expert_load_of(job.expert_load)
    asked = str(job.software) if job.software is not None else measured.framework if measured else DEFAULT_SOFTWARE
    return Workload(
        seq_len=1,
        global_batch=1,
        precision=policy or precision(DEFAULT_DTYPE),
        optimizer="adam" if job.optimizer is None else str(job.optimizer),
        attention_kernel=kernel,  # type: ignore[arg-type]
        loss_tiles=job.loss_tiles or 1,
        mlp_tiles=job.mlp_tiles or 1,
        expert_imbalance=spread if isinstance(spread, float) else 1.0,
        expert_load=None if isinstance(spread, float) else spread,
        tokens=job.tokens,
        failures=job.failures,
        sequence_lengths=lengths,
        packing=(job.packing or "pack") if lengths else "pack",
        dynamic_cp=job.dynamic_cp and bool(lengths),
        software=canonical(asked),
        calibration=calibration,
    )
