"""Every way in: what is drawn for it. A draw is the whole command line with the files that it names."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from meshwright.app.verbs import VERBS
from meshwright.fields.field import Field
from meshwright.fields.kinds import Choice, Count, Duration, Flag, Number, Numbers, OutputFile, Texts, Whole
from meshwright.fields.request import request_fields
from tests.fuzz import launch_doors, mutate, question_doors, samples
from tests.fuzz.cases import KEPT, Case, Door

JSON = ("--json",)
SLOW_VERBS = ("run", "verify", "profile", "web", "serve", "mcp", "xray")
"""They start devices or servers; of runs, what is refused before they start is asked."""
GOOD = {
    "model": samples.MODELS,
    "gpus": samples.GPUS,
    "plan": samples.PLANS,
    "seq_len": ("512", "2048", "4k", "8192", "131072"),
    "global_batch": ("1", "8", "64", "256", "1024", "96"),
    "dtype": ("bf16", "fp8", "fp16", "fp32", "mxfp8", "int8"),
    "optimizer": ("adam", "muon", "sgd", "galore:rank=64", "galore:rank=0", "adafactor", "adam:x=1"),
    "lora": ("r=16", "r=8,targets=q_proj,v_proj", "r=16,base=nf4,dora", "r=0", "r=16,r=8", "targets=all"),
    "lengths": samples.LENGTHS[1:],
    "packing": ("pack", "pad", "concat", "dynapipe", "bins", "bins:512,2048", "bins:", "bins:0"),
    "image_size": ("1024x768", "0x0", "224", "224x224x3", "1x1"),
    "attention_kernel": ("flash", "fa1", "fa2", "fa3", "standard", "sdpa"),
    "freeze": ("vision", "all", "embedding", "layers=0-3", "0-3"),
    "software": ("megatron-core", "xla", "megatron-core@2025-06", "megatron-core@25.04", "x@", "@"),
    "failures": ("8h", "mtbf=50000h", "1e-6", "per_device=50000h,restart=10min"),
    "pin": ("tp=8", "pp=2,4", "vpp=2", "mbs=1", "zero=1", "tp=", "=8", "tp=8,8", "schedule=zb-h1", "rc=full"),
    "forbid": ("tp=8", "pp=1", "cp=2", "tp=1,2,4,8", "zero=3"),
    "schedule": ("1f1b", "interleaved", "zb-h1", "all", "zbv", "gpipe", "zb-h2"),
    "offload": ("optimizer", "activations", "none", "all"),
    "objective": ("time", "cost", "memory", "energy", "goodput"),
    "target": samples.TARGETS,
    "to": samples.TARGETS,
    "parallelizer": ("native", "layerwise", "calculon", "native,calculon", "native,native", "os:system"),
    "device": ("H100", "A100-80", "H100,A100-80", "B200"),
    "lost": ("8xH100", "0-3", "16-23", "0-1e9"),
    "added": ("8xH100", "8xA100-80"),
    "source": ("megatron", "args", "wandb", "hydra", "torchtitan", "deepspeed"),
    "name": (
        "1f1b",
        "list",
        "best",
        "zb-h1",
        "interleaved",
        "gpipe,1f1b",
        "chimera",
        "hanayo",
        "dualpipe",
        "ftpipe",
        "zbv",
    ),
    "app": ("gpt3-13B", "megatron-126M", "gpt3-175B"),
    "system": ("a100_80g", "h100_80g_nvl8"),
    "execution": ("execution.json",),
    "space": ("optimal-execution",),
    "with": ("random", "native", "exhaustive", "optuna", "local", "tpe"),
    "host_ram": ("512GiB", "1TB", "0"),
    "nvme": ("4x7GB/s", "3.84TB", "2x3.84TB@6GB/s"),
    "pcie": ("gen5", "gen4x8", "5x16"),
    "power": ("620W", "0.5kW", "0"),
    "carbon_intensity": ("400g/kWh", "0.4", "public", "FR"),
    "prices": ("public",),
    "framework": ("megatron", "csv", "torchtitan", "deepspeed", "transformers", "pytorch-profiler"),
}
OFTEN = {"tokens_per_step", "expert_imbalance", "images", "tokens"}
LIMIT = ("--time-limit", "3")
"""Of verbs that search: what they find by then is an answer."""
STARTS_PROCESSES = ("ray", "compare")
SMALL = {"--trials": "5", "--repeats": "2", "--workers": "1", "--seconds": "1"}


def config(chance: Random) -> Case:
    """A config.json, shown or planned for."""
    content = mutate.written(chance, mutate.data(chance, chance.choice(samples.models())))
    verb = chance.choice(
        [
            ("models", "show", "config.json"),
            (
                "estimate",
                "config.json",
                "--plan",
                chance.choice(samples.PLANS),
                "--gpus",
                chance.choice(samples.GPUS[:3]),
            ),
            ("plan", "config.json", "--gpus", chance.choice(samples.GPUS[:3]), "--top", "1", *LIMIT),
            ("models", "add", "config.json", "--name", mutate.word(chance), "--library", "lib"),
        ]
    )
    return Case(words=verb + _json(chance), files={"config.json": content})


def cluster_words(chance: Random) -> Case:
    """The grammar of --gpus."""
    return Case(
        words=(
            "estimate",
            "llama-3.1-8b",
            "--plan",
            chance.choice(("tp2", "tp1", "pp2")),
            "--gpus",
            _gpus(chance),
            *_json(chance),
        )
    )


def cluster_files(chance: Random) -> Case:
    """Cluster files, bandwidth matrices, and what the tools of clusters print."""
    source = chance.choice(samples.clusters())
    files = {"cluster": mutate.encoded(chance, mutate.text(chance, source))}
    words: tuple[str, ...] = ("clusters", "show", "cluster")
    if chance.random() < 0.4:
        words = ("estimate", "llama-3.1-8b", "--plan", "tp2", "--cluster", "cluster")
    elif chance.random() < 0.2:
        words += ("--toml",)
    return Case(words=words + _json(chance), files=files)


def device_files(chance: Random) -> Case:
    """Device files."""
    files = {"gpu.toml": mutate.encoded(chance, mutate.text(chance, chance.choice(samples.devices())))}
    return Case(words=("gpus", "add", "gpu.toml", "--library", "lib", *_json(chance)), files=files)


def plan_words(chance: Random) -> Case:
    """The grammar of plan names."""
    verb = chance.choice(["estimate", "check"])
    model, gpus = chance.choice(samples.MODELS), chance.choice(samples.GPUS)
    more = ("--schedule", chance.choice(GOOD["schedule"])) if verb == "estimate" and chance.random() < 0.2 else ()
    more += LIMIT if verb == "check" else ()
    return Case(words=(verb, model, "--plan", _plan(chance), "--gpus", gpus, *more, *_json(chance)))


def plan_files(chance: Random) -> Case:
    """Plan files, read by every verb that takes one."""
    content = mutate.written(chance, mutate.data(chance, chance.choice(samples.plan_sets())))
    plan = "plans.json" + chance.choice(["", "#1", "#2", "#0", "#-1", "#x", "#99999999999999999999"])
    words = chance.choice(
        [
            ("explain", plan),
            ("estimate", "--plan", plan),
            ("check", "--plan", plan, *LIMIT),
            ("trace", plan, "-o", "trace.json"),
            ("trace", plan, "--svg", "trace.svg"),
            ("trace", plan, "--text"),
            ("export", plan, "--to", chance.choice(samples.TARGETS), "-o", "launch"),
            ("compare", plan, "plans.json#1"),
            ("plan", "--replan-from", plan, "--lost", chance.choice(["8xH100", "0-3", mutate.word(chance)]), *LIMIT),
        ]
    )
    return Case(words=words + _json(chance), files={"plans.json": content})


def scripts(chance: Random) -> Case:
    """Launch scripts of bash."""
    content = mutate.text(chance, chance.choice(samples.scripts()), changes=4)
    words = [
        "check",
        chance.choice(["llama-3.1-8b", "gpt3-13b"]),
        "train.sh",
        "--gpus",
        chance.choice(samples.GPUS),
        *LIMIT,
    ]
    if chance.random() < 0.3:
        words.append("--fix")
    if chance.random() < 0.3:
        words += ["--env", f"{chance.choice(['TP', 'PP', '', 'X'])}={mutate.word(chance)}"]
    if chance.random() < 0.2:
        words += ["--from", chance.choice([*GOOD["source"], mutate.word(chance)])]
    return Case(words=(*words, *_json(chance)), files={"train.sh": mutate.encoded(chance, content)})


def calculon_files(chance: Random) -> Case:
    """The three files of Calculon."""
    app, execution, system = chance.choice(samples.calculon())
    parts = {"app.json": app, "execution.json": execution, "system.json": system}
    changed = chance.choice(list(parts))
    files = {
        name: mutate.written(chance, mutate.data(chance, part)) if name == changed else json.dumps(part).encode()
        for name, part in parts.items()
    }
    words: tuple[str, ...] = ("calculon", "estimate", "app.json", "execution.json", "system.json")
    if chance.random() < 0.3:
        words += ("--layers",)
    if chance.random() < 0.2:
        words = ("calculon", "search", "app.json", "system.json", "--procs", "8", "--batch", "16", *LIMIT)
    return Case(words=words + _json(chance), files=files)


def calculon_batches(chance: Random) -> Case:
    """Files with an execution a line."""
    rows: list[Any] = [
        {"app": chance.choice(GOOD["app"]), "system": "a100_80g", "execution": chance.choice(samples.calculon())[1]}
        for _ in range(chance.randint(1, 4))
    ]
    rows[0] = mutate.data(chance, rows[0])
    content = "\n".join(json.dumps(row) for row in rows)
    if chance.random() < 0.3:
        content = mutate.text(chance, content)
    words = ("calculon", "estimate", "--batch", "rows.jsonl")
    return Case(words=words + _json(chance), lines=True, files={"rows.jsonl": mutate.encoded(chance, content)})


def schedules(chance: Random) -> Case:
    """Schedules with their sizes and parameters."""
    from meshwright.schedules import SCHEDULES, parameters

    name = chance.choice(list(SCHEDULES)) if chance.random() < 0.8 else chance.choice(GOOD["name"])
    words = ["schedule", name]
    sizes = ["1", "2", "3", "4", "8", "5", "16", "100", "1000", "2147483647"]
    for option in ("--p", "--m", "--v"):
        if chance.random() < (0.35 if option == "--v" else 0.95):
            words += [option, chance.choice(sizes) if chance.random() < 0.9 else mutate.number(chance)]
    for option in ("--tf", "--ti", "--tw", "--tr", "--tc"):
        if chance.random() < 0.12:
            words += [option, mutate.number(chance)]
    for one in parameters():
        if chance.random() < (0.5 if name in one.schedules else 0.01):
            words.append(f"--{one.name.replace('_', '-')}")
            if one.kind != "flag":
                words.append(chance.choice([*(one.choices or sizes[:6]), mutate.number(chance)]))
    if chance.random() < 0.2:
        words += [chance.choice(["--svg", "--csv"]), "drawn"]
    if name == "best":
        words += LIMIT
    return Case(words=(*words, *_json(chance)))


def schedule_files(chance: Random) -> Case:
    """Orders as PyTorch loads them."""
    content = mutate.text(chance, chance.choice(samples.orders()))
    return Case(
        words=("schedule", "--from", "order.csv", *_json(chance)), files={"order.csv": mutate.encoded(chance, content)}
    )


def stage_times(chance: Random) -> Case:
    """Tables of stage times, as CSV and as JSON."""
    content = mutate.encoded(chance, mutate.text(chance, samples.STAGES))
    if chance.random() < 0.4:
        names, *rows = (line.split(",") for line in samples.STAGES.splitlines())
        table = [dict(zip(names, map(float, row), strict=True)) for row in rows]
        content = mutate.written(chance, mutate.data(chance, table))
    words = ("schedule", "best", "--m", chance.choice(["2", "4", "8"]), "--times", "stages.csv")
    return Case(words=words + _json(chance), files={"stages.csv": content})


def logs(chance: Random) -> Case:
    """Logs of every framework, for calibrate and compare."""
    content = mutate.encoded(chance, mutate.text(chance, chance.choice(samples.LOGS), changes=4))
    asked = ("--gpus", "8xH100", "--gbs", "256", "--seq", "4096")
    words = (
        "calibrate",
        "--from-log",
        "run.log",
        "--model",
        "llama-3.1-8b",
        "--plan",
        "tp8.mbs1",
        *asked,
        "-o",
        "out.json",
    )
    if chance.random() < 0.5:
        words = ("compare", "tp8.mbs1", "--with-run", "run.log", "--model", "llama-3.1-8b", *asked)
    if chance.random() < 0.3:
        words += ("--framework", chance.choice(GOOD["framework"]))
    return Case(words=words + _json(chance), files={"run.log": content, "out.json": KEPT.encode()})


def oom_logs(chance: Random) -> Case:
    """Messages of devices that ran out of memory."""
    source = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of "
        "79.10 GiB of which 1.25 GiB is free. Process 123 has 77.84 GiB memory in use. Of the allocated memory 70.12 "
        "GiB is allocated by PyTorch, and 5.31 GiB is reserved by PyTorch but unallocated.\n"
    )
    words = ("check", "llama-3.1-8b", "--plan", "tp8.mbs1", "--gpus", "8xH100", "--oom-log", "oom.log", *LIMIT)
    return Case(words=words + _json(chance), files={"oom.log": mutate.encoded(chance, mutate.text(chance, source))})


def calibrations(chance: Random) -> Case:
    """Calibration files."""
    content = mutate.written(chance, mutate.data(chance, samples.calibration(), changes=4))
    words = ("estimate", "llama-3.1-8b", "--plan", "tp8.mbs1", "--gpus", "8xH100", "--calibration", "calibration.json")
    return Case(words=words + _json(chance), files={"calibration.json": content})


def measured(chance: Random) -> Case:
    """Rows of measured runs."""
    content = mutate.encoded(chance, mutate.text(chance, samples.measured(), changes=5))
    return Case(words=("validate", "measured.csv", "-o", "out", *_json(chance)), files={"measured.csv": content})


def profiles(chance: Random) -> Case:
    """Folders of measured layer profiles, and clusters for them."""
    parts = dict(samples.profiles())
    changed = chance.choice(list(parts))
    parts[changed] = mutate.text(chance, parts[changed], changes=4)
    if chance.random() < 0.1:
        del parts[changed]
    files = {f"profiles/{name}": mutate.encoded(chance, text) for name, text in parts.items()}
    devices = "\n".join(chance.choice(samples.MEASURED_GROUPS) for _ in range(chance.choice([1, 1, 2])))
    files["cluster.toml"] = mutate.encoded(chance, mutate.text(chance, devices) if chance.random() < 0.3 else devices)
    where: tuple[str, ...] = ("--cluster", "cluster.toml") if chance.random() < 0.9 else ("--gpus", _gpus(chance))
    batch = chance.choice(["8", "16", "7"])
    return Case(
        words=("plan", "tiny", *where, "--profiles", "profiles", "--gbs", batch, *LIMIT, *_json(chance)), files=files
    )


def small_files(chance: Random) -> Case:
    """Prices and lengths of sequences."""
    base = ("estimate", "llama-3.1-8b", "--plan", "tp8.mbs1", "--gpus", "8xH100")
    if chance.random() < 0.5:
        files = {"prices.toml": mutate.encoded(chance, mutate.text(chance, samples.PRICES))}
        return Case(words=(*base, "--prices", "prices.toml", *_json(chance)), files=files)
    shape = mutate.text(chance, chance.choice(samples.LENGTHS))
    if "\n" in shape:
        return Case(
            words=(*base, "--lengths", "lengths.txt", *_json(chance)),
            files={"lengths.txt": mutate.encoded(chance, shape)},
        )
    return Case(words=(*base, "--lengths", shape.replace("\0", ""), *_json(chance)))


def commands(chance: Random) -> Case:
    """Command lines of every verb, of the options it has."""
    verb = chance.choice([name for name in VERBS if name not in SLOW_VERBS])
    request = VERBS[verb].request
    options = [one for one in request_fields(request) if one.cli and one.name not in STARTS_PROCESSES]
    words = verb.split()
    likely = 0.5 * 6 / max(len(options), 6)
    for one in options:
        needed = one.argument or one.name in (
            "model",
            "gpus",
            "plan",
            "global_batch",
            "p",
            "m",
            "procs",
            "batch",
            "device",
        )
        if chance.random() < (0.92 if needed else likely):
            words += _option(chance, one)
    for one, value in SMALL.items():
        if one in (field.spelled for field in options) and one not in words:
            words += [one, value]
    if any(one.name == "time_limit" for one in options):
        words += LIMIT
    if verb in ("models add", "gpus add") and "--library" not in words:
        words += ["--library", "lib"]
    if chance.random() < 0.05:
        words.insert(chance.randint(0, len(words)), mutate.word(chance))
    execution = json.dumps(samples.calculon()[0][1]).encode()
    files = {"execution.json": execution, "out": KEPT.encode()}
    return Case(words=(*words, *_json(chance)), lines=verb == "calculon estimate", files=files)


def refused_runs(chance: Random) -> Case:
    """Runs that are refused before a device is looked for."""
    verb = chance.choice(["run", "verify"])
    options = [
        one
        for one in request_fields(VERBS[verb].request)
        if one.cli and one.name not in ("plan", "ray", "steps", "model")
    ]
    words = [verb, chance.choice(["mlp-tiny", "gpt-tiny"]), "--plan", "tp3.banana", "--steps", "1"]
    for one in options:
        if chance.random() < 0.3:
            words += _option(chance, one)
    return Case(words=(*words, *_json(chance)))


def python_calls(chance: Random) -> Case:
    """Calls from Python with values of any type."""
    verb = chance.choice(["plan", "estimate", "check", "explain", "schedule", "size", "trace", "export", "compare"])
    values: dict[str, Any] = {}
    for one in request_fields(VERBS[verb].request):
        if not one.python or one.name in ("output", "svg", "csv"):
            continue
        needed = one.name in ("model", "gpus", "plan", "first", "second", "name", "p", "m", "device")
        if chance.random() < (0.9 if needed else 0.04):
            good: Any = GOOD.get(one.name)
            values[one.name] = chance.choice(good) if good and chance.random() < 0.75 else chance.choice(mutate.VALUES)
            if isinstance(one.kind, Whole) and chance.random() < 0.7:
                values[one.name] = chance.randint(1, 16)
        if one.name == "time_limit":
            values[one.name] = 3.0
    return Case(verb=verb, values=values)


def _option(chance: Random, one: Field) -> list[str]:
    """An option with a value, good or bad."""
    if isinstance(one.kind, Flag):
        return [one.spelled]
    value = mutate.word(chance) if chance.random() < 0.12 else _good(chance, one)
    if isinstance(one.kind, Texts) and chance.random() < 0.1:
        value = f"{value},{_good(chance, one)}"
    value = value.replace("\0", "")
    return [value] if one.argument else [one.spelled, value]


def _good(chance: Random, one: Field) -> str:
    known = GOOD.get(one.name)
    if one.name == "gpus" and chance.random() < 0.2:
        return _gpus(chance)
    if one.name == "plan" and chance.random() < 0.2:
        return _plan(chance)
    if known:
        return str(chance.choice(known))
    kind = one.kind
    if isinstance(kind, Choice):
        return chance.choice(kind.names)
    if isinstance(kind, OutputFile) or one.name == "output":
        return chance.choice(["out", "new", "out", "no/such/folder", ".", "/", "/proc/x"])
    if isinstance(kind, Whole | Count):
        return chance.choice(["1", "2", "4", "8", "64", "1000", "1e6", mutate.number(chance)])
    if isinstance(kind, Number | Duration | Numbers):
        return chance.choice(["1", "0.5", "10", "1e3", "1e-9", "1e15", mutate.number(chance)])
    return mutate.word(chance)


def _gpus(chance: Random) -> str:
    """Of the grammar [NODESx]COUNTxDEVICE, +, and commas."""

    def entry() -> str:
        count = chance.choice(["1", "2", "8", "16", "3", "64"]) if chance.random() < 0.85 else mutate.number(chance)
        device = chance.choice(["H100", "A100-80", "h100", "B200", "RTX4090", "MI300X", "V100"])
        device = device if chance.random() < 0.9 else mutate.word(chance)
        nodes = f"{chance.choice(['1', '2', '4', '1000', mutate.number(chance)])}x" if chance.random() < 0.25 else ""
        return f"{nodes}{count}x{device}"

    text = chance.choice([",", "+", ", "]).join(entry() for _ in range(chance.choice([1, 1, 1, 2, 3])))
    text = mutate.text(chance, text) if chance.random() < 0.3 else text
    return text.replace("\0", "")


def _plan(chance: Random) -> str:
    """Of tokens with numbers, schedules and settings."""

    def token() -> str:
        if chance.random() < 0.25:
            return chance.choice(
                [
                    "1f1b",
                    "interleaved",
                    "zb-h1",
                    "zb-h2",
                    "zbv",
                    "gpipe",
                    "rc-full",
                    "rc-sel",
                    "rc-none",
                    "z0",
                    "z3",
                    "sp",
                    "ftpipe",
                ]
            )
        count = str(2 ** chance.randint(0, 6)) if chance.random() < 0.85 else mutate.number(chance)
        return chance.choice(["tp", "pp", "vpp", "cp", "ep", "etp", "dp", "z", "mbs", "gbs", "vp"]) + count

    text = (
        chance.choice(samples.PLANS)
        if chance.random() < 0.3
        else ".".join(token() for _ in range(chance.randint(1, 9)))
    )
    text = mutate.text(chance, text) if chance.random() < 0.3 else text
    return text.replace("\0", "")


def _json(chance: Random) -> tuple[str, ...]:
    return JSON if chance.random() < 0.6 else ()


DRAWS: tuple[Callable[[Random], Case], ...] = (
    *(config, cluster_words, cluster_files, device_files, plan_words, plan_files, scripts, calculon_files),
    *(calculon_batches, schedules, schedule_files, stage_times, logs, oom_logs, calibrations, measured, profiles),
    *(small_files, commands, refused_runs, python_calls),
    *question_doors.DRAWS,
    *launch_doors.DRAWS,
)
DOORS = tuple(Door(name=draw.__name__.replace("_", "-"), draw=draw) for draw in DRAWS)
