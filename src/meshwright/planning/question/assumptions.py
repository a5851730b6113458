"""What an answer assumes: recipe, framework, kernels, links, memory kept free, failures, prices."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.ranges import outside_experience
from meshwright.formats.cluster import Assumption
from meshwright.formats.cluster import assumptions as cluster_assumptions
from meshwright.library.calibration import calibration as calibration_of
from meshwright.library.software import generation_of, generations_of, software
from meshwright.planning.question.number_formats import formats_said, optimizer_said
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.failures import Failures
from meshwright.specs.model import ModelSpec
from meshwright.specs.precision import Precision
from meshwright.specs.software import DEFAULT_SOFTWARE, LOAD_NO_BITSANDBYTES, PEFT_SOFTWARE, USUAL_OF_VENDOR
from meshwright.specs.tuning import BITSANDBYTES
from meshwright.specs.workload import Workload
from meshwright.units import seconds, significant


def job_assumptions(
    workload: Workload,
    model: ModelSpec,
    cluster: ClusterSpec,
    price: float | None = None,
    *,
    software_given: bool = True,
) -> list[Assumption]:
    """Choices of recipe and hardware that shape the answer, stated or not.

    Args:
        workload: whole, with its lengths and batch.
        model: the model with what is trained of it.
        cluster: the cluster with its hosts and prices.
        price: the price per device and hour, where one was stated.
        software_given: whether the framework was stated rather than chosen for what is trained.
    """
    recipe = workload.precision
    compute, group = recipe.compute, cluster.groups[0]
    found = [
        Assumption(
            name="dtype", value=f"{recipe.name}: {formats_said(recipe)}{_in_tf32(recipe, cluster)}", basis="assumed"
        ),
        Assumption(name="optimizer", value=optimizer_said(workload), basis="assumed"),
        Assumption(name="attention", value=f"{workload.attention_kernel} kernel", basis="assumed"),
        Assumption(name="software", value=_software_note(model, workload, given=software_given), basis="assumed"),
    ]
    if workload.sequence_lengths or workload.loss_tiles > 1 or workload.mlp_tiles > 1:
        from meshwright.planning.question.sequences import sequence_notes  # few jobs have them

        found += sequence_notes(workload)
    wide = sum(count for layer, count in model.kind_counts().items() if layer.wide)
    if wide:
        value = f"{wide} of {model.num_layers} layers compute in {recipe.activations}"
        found.append(Assumption(name="dtype of layers", value=value, basis="assumed"))
    if model.tuning is not None:
        from meshwright.planning.question.tuned import trained_text  # most jobs train all of a model

        found.insert(0, Assumption(name="training", value=trained_text(model), basis="assumed"))
    if workload.tokens is not None:
        found += _of_run(workload.failures, cluster.devices)
    if model.is_moe:
        load = f"fullest expert rank has {significant(workload.expert_imbalance)}x the mean tokens"
        if workload.expert_load is not None:
            load = f"{workload.expert_load.described}; the fullest rank of each layer counts"
        value = f"{load}; no token is dropped unless a plan states a capacity"
        found.append(Assumption(name="experts", value=value, basis="assumed"))
    if workload.training and (where := _WHOLE[software(workload.software).whole_gradients]):
        value = f"FSDP keeps them whole on every rank and scatters them once a step where it adds up {where} (no_sync)"
        found.append(Assumption(name="gradients", value=value, basis="literature"))
    efficiency = group.device.efficiency
    fraction = efficiency.product_fraction(DTYPE_BYTES[compute])
    value = f"large products reach {significant(100 * fraction, 2)}% of the dense peak"
    if math.isinf(efficiency.product_curve(compute).joint):
        value += f"; rates of smaller ones follow a roofline, none was timed in {compute}"
    found.append(Assumption(name=f"{group.device.name} kernels", value=value, basis=efficiency.basis))
    found += cluster_assumptions(cluster)
    used = [(one.device, one.devices) for one in cluster.groups]
    if unlike := outside_experience(calibration_of(workload.calibration), workload, used):
        found.append(Assumption(name="outside all measurements", value=unlike, basis="extrapolated"))
    reserve = f"{100 * TIGHT_SHARE:.0f}% of the memory stays free where any plan allows it"
    found.append(Assumption(name="memory reserve", value=reserve, basis="assumed"))
    listed = {g.device.name: g.device.price_per_hour for g in cluster.groups if g.price_per_device_hour is None}
    for name, per_hour in listed.items() if price is None else ():
        if per_hour is not None:
            value = f"{per_hour:.2f} per {name} and hour (list price)"
            found.append(Assumption(name="price", value=value, basis="literature"))
    found += [Assumption(name=model.name, value=note, basis="assumed") for note in model.notes]
    return found


_WHOLE = {"never": "", "pipelines": "the micro-batches of a pipeline", "always": "several micro-batches"}
"""Where a framework keeps gradients whole, in words."""


def software_said(workload: Workload) -> str:
    """The framework and the time of it that a prediction is for."""
    line, _, _ = workload.software.partition("@")
    chosen = generation_of(workload.software)
    later = [one.since for one in generations_of(line) if one.since > chosen.since]
    return f"{line} from {chosen.since} on" + (f", before {later[0]}" if later else ", the newest known")


def _in_tf32(recipe: Precision, cluster: ClusterSpec) -> str:
    """What is said of products of fp32 on devices that have tf32, in which frameworks for training ask for them."""
    asked = recipe.compute == "fp32" and any(group.device.peak("tf32") for group in cluster.groups)
    return "; products of fp32 run in tf32, which the device has" if asked else ""


def _software_note(model: ModelSpec, workload: Workload, *, given: bool) -> str:
    """The framework, and what it has to do with a base that bitsandbytes stores."""
    said, base = software_said(workload), model.lora.base if model.lora else None
    if not given and workload.software in USUAL_OF_VENDOR.values():
        said += ": MaxText on JAX, as TPUs are usually trained"
    if base not in BITSANDBYTES:
        return said
    if not given:
        return f"{said}: PEFT and bitsandbytes, which load {base} weights as {DEFAULT_SOFTWARE} does not (--software)"
    if workload.software.startswith(LOAD_NO_BITSANDBYTES):
        said += f"; it loads no {base} weights: --software {PEFT_SOFTWARE} prices those of PEFT and bitsandbytes"
    return said


def _of_run(failures: Failures | None, devices: int) -> Iterator[Assumption]:
    """What interrupts the run, where nobody stated all of it."""
    from meshwright.planning.goodput import goodput  # few questions name the tokens of a run

    found = goodput(devices, failures, 0.0)
    if not found.assumed:
        return
    value = (
        f"{found.failures_per_day / devices / 24.0:.2g} per device and hour, restarted in "
        f"{seconds(found.restart_s)}, a checkpoint every {seconds(found.interval_s)} (public runs; --failures)"
    )
    yield Assumption(name="failures", value=value, basis="literature")
