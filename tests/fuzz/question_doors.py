"""Doors of questions: adapters, frameworks that are priced, tuned spaces, lengths as people write them, pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random

from meshwright.targets import TARGETS
from tests.fuzz import mutate, samples
from tests.fuzz.cases import KEPT, Case

LIMIT = ("--time-limit", "3")
SMALL_MODELS = ("gpt2", "qwen3-0.6b", "llama-3.1-8b", "mixtral-8x7b")
SMALL_GPUS = ("1xRTX4090", "2xH100", "8xH100", "4x8xA100-80", "4xRTX4090,4xA100-40")
ADAPTER_KEYS = {
    "r": ("16", "8", "1", "0", "-1", "1e3", "65536"),
    "targets": ("q_proj", "all", "q_proj,v_proj", "nothing", "gate_proj,up_proj", ""),
    "base": ("nf4", "int8", "fp8", "bf16", "fp4", "nf"),
    "dropout": ("0.05", "0", "1", "2", "nan"),
    "alpha": ("32", "x"),
    "train": ("embedding", "head", "embedding,head", "norms"),
}
SCALES = ("", "k", "K", "M", "Ki", "kk", " k", "k ", "T", "b", "e3k")


def adapters(chance: Random) -> Case:
    """`--lora` with its keys, in every verb that takes it."""
    verb = chance.choice(["estimate", "plan", "check", "size", "explain", "trace"])
    model, gpus = chance.choice(SMALL_MODELS[1:]), chance.choice(SMALL_GPUS)
    where = {
        "size": ("size", model, "--device", "H100", "--step-time", chance.choice(["1s", "0.01", "100"])),
        "plan": ("plan", model, "--gpus", gpus, "--top", "1"),
        "estimate": ("estimate", model, "--plan", _line(chance), "--gpus", gpus),
        "check": ("check", model, "--plan", _line(chance), "--gpus", gpus),
        "explain": ("explain", _line(chance), "--model", model, "--gpus", gpus),
        "trace": ("trace", _line(chance), "--model", model, "--gpus", gpus, "-o", "out"),
    }[verb]
    words = (*where, "--lora", adapter_words(chance))
    words += LIMIT if verb in ("plan", "check", "size") else ()
    if chance.random() < 0.3 and verb in ("plan", "estimate"):
        words += ("--target", _target(chance))
    for option, values in (("--offload", ("optimizer", "activations", "all")), ("--gbs", ("1", "8", "7"))):
        words += (option, chance.choice(values)) if chance.random() < 0.2 and verb == "plan" else ()
    return Case(words=words + _json(chance), files={"out": KEPT.encode()})


def priced_targets(chance: Random) -> Case:
    """`estimate --target`: a plan as a framework would run it."""
    words = ("estimate", chance.choice(SMALL_MODELS), "--plan", _line(chance), "--gpus", chance.choice(SMALL_GPUS))
    words += ("--target", _target(chance))
    for option, values in (
        ("--lora", ("r=16", "r=8,base=nf4")),
        ("--dtype", ("fp8", "fp32", "fp16", "int8")),
        ("--optimizer", ("adafactor", "muon", "sgd")),
        ("--seq", ("512", "32k")),
        ("--gbs", ("1", "64", "7")),
        ("--attention-kernel", ("standard", "fa2")),
    ):
        words += (option, chance.choice(values)) if chance.random() < 0.25 else ()
    return Case(words=words + _json(chance))


def tuned_spaces(chance: Random) -> Case:
    """Studies of small and large spaces, with axes pinned and forbidden."""
    large = chance.random() < 0.2
    model = chance.choice(("gpt2", "mixtral-8x7b", "deepseek-v3") if large else SMALL_MODELS[:3])
    gpus = chance.choice(("2048xH800", "16384xH100", "1000xH100", "7xH100") if large else ("2xH100", "8xH100"))
    words = ["tune", model, "--gpus", gpus, "--with", chance.choice(["random", "random", "exhaustive", "none"])]
    words += ["--trials", chance.choice(["1", "3", "5", "0", mutate.number(chance)[:5]]), *LIMIT]
    if chance.random() < 0.6:
        words.append("--no-optimum")
    for _ in range(chance.choice([0, 0, 1, 2])):
        axis = chance.choice(
            ["tp", "pp", "cp", "ep", "mbs", "vpp", "sharding", "recompute", "schedule", "offload", "x"]
        )
        value = chance.choice(["1", "2", "4", "8", "64", "z3", "full", "1f1b", "zb-h1", "all", mutate.word(chance)])
        words += [chance.choice(["--pin", "--forbid"]), f"{axis}={value}".replace("\0", "")]
    for option, values in (
        ("--gbs", ("1", "8", "720720", "1048576", "7")),
        ("--seq", ("512", "131072", "131040", "7")),
        ("--memory-limit", ("1GiB", "100MiB", "1")),
        ("--lora", ("r=16", "r=8,base=nf4")),
        ("--seed", ("0", "-1", "4294967296", "x")),
    ):
        words += [option, chance.choice(values)] if chance.random() < 0.2 else []
    return Case(words=(*words, *_json(chance)))


def scaled_numbers(chance: Random) -> Case:
    """Lengths, batches and tokens with letters for thousands and more."""
    words = ["estimate", chance.choice(SMALL_MODELS), "--plan", _line(chance), "--gpus", chance.choice(SMALL_GPUS)]
    for option in chance.sample(("--seq", "--gbs", "--tokens", "--tokens-per-step", "--encoder-seq"), 2):
        words += [option, scaled(chance)]
    return Case(words=(*words, *_json(chance)))


def pages(chance: Random) -> Case:
    """Report files of answers and of damaged plan sets, in every form."""
    form = chance.choice(["html", "md", "cell", "pdf"])
    place = chance.choice(["out", "out", "page.html", "page.md", "no/such/folder", "."])
    how = ("--format", form, "-o", place) if chance.random() < 0.8 else ("-o", place)
    if chance.random() < 0.3:
        words = ("report", chance.choice(SMALL_MODELS), "--gpus", chance.choice(SMALL_GPUS), "--top", "2", *LIMIT)
        return Case(words=(*words, *how), files={"out": KEPT.encode()})
    content = mutate.written(chance, mutate.data(chance, chance.choice(samples.plan_sets())))
    return Case(words=("report", "plans.json", *how), files={"plans.json": content, "out": KEPT.encode()})


def made_by(chance: Random) -> Case:
    """Plan sets whose record of who made them, and of what was asked, is another."""
    found = json.loads(json.dumps(chance.choice(samples.plan_sets())))
    rest = [name for name in found if name != "plans"]
    changed = mutate.data(chance, {name: found[name] for name in rest}, changes=5)
    kept = {"plans": found["plans"][: chance.choice([0, 1, 9])]} if chance.random() < 0.9 else {}
    document = {**changed, **kept} if isinstance(changed, dict) else changed
    if isinstance(document, dict) and chance.random() < 0.5:
        command = chance.choice(["plan llama-3.1-8b --gpus 16xH100", "plan 'x", "rm -rf /", "\x1b[31m", "a" * 9000])
        version = chance.choice(["0.1.0", "99.0.0", "x", "", None, 1, "0.18.0.dev1+é"])
        document["made_by"] = chance.choice([{"version": version, "command": command}, {}, None, [], version])
    words = chance.choice(
        [
            ("report", "plans.json", "--format", "md", "-o", "out"),
            ("explain", "plans.json"),
            ("compare", "plans.json#1", "plans.json#2"),
            ("estimate", "plans.json"),
            ("check", "plans.json", *LIMIT),
            ("trace", "plans.json", "--text"),
            ("export", "plans.json", "--to", chance.choice(samples.TARGETS), "-o", "launch"),
        ]
    )
    files = {"plans.json": mutate.written(chance, document), "out": KEPT.encode()}
    return Case(words=words + _json(chance), files=files)


def adapter_words(chance: Random) -> str:
    """A text for `--lora`."""
    keys = chance.sample(sorted(ADAPTER_KEYS), chance.randint(0, 3))
    keys = ["r", *keys] if chance.random() < 0.8 else keys
    text = ",".join(f"{key}={chance.choice(ADAPTER_KEYS[key])}" for key in keys)
    text += chance.choice(["", "", "", ",dora", ",rslora", "dora", ",,", "=", ",r=4"])
    return (mutate.text(chance, text) if chance.random() < 0.25 else text).replace("\0", "")


def scaled(chance: Random) -> str:
    """A number as people write sizes."""
    number = chance.choice(["32", "4", "1", "0.5", "1.5", "128", "0", "-1", "1e3", "1_000", mutate.number(chance)])
    return (number + chance.choice(SCALES)).replace("\0", "")


def _target(chance: Random) -> str:
    return chance.choice([*TARGETS, *TARGETS, mutate.word(chance)]).replace("\0", "")


def _line(chance: Random) -> str:
    own = ("tp2.mbs1", "z3.mbs1.rc-full", "tp1", "dp1", "z3", "pp2", "tp8.mbs1", "mbs1.z0", "tp2.pp2")
    return chance.choice(own if chance.random() < 0.8 else samples.PLANS)


def _json(chance: Random) -> tuple[str, ...]:
    return ("--json",) if chance.random() < 0.6 else ()


DRAWS: Sequence[Callable[[Random], Case]] = (adapters, priced_targets, tuned_spaces, scaled_numbers, pages, made_by)
