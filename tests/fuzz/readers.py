"""Readers called by themselves: the same files as behind the doors of command lines, a hundredfold as many of them.

A command line costs milliseconds before it comes to a file. Here its file goes to the reader at once, so that most
inputs are spent where most mistakes of readers are; what verbs make of a file is left to the doors with a command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from meshwright.app.verbs import VERBS
from meshwright.calculon.reading import read_application, read_execution, read_system
from meshwright.fields.kinds import Count, Duration, Number, Numbers, Whole
from meshwright.fields.request import request_fields
from meshwright.formats.clusters import read_cluster
from meshwright.formats.device_file import device_spec, read_device_file
from meshwright.formats.expert_load import expert_load_of
from meshwright.formats.gguf import config_of_gguf
from meshwright.formats.gpus import parse_gpus
from meshwright.formats.host import disks_of, slot_bytes_per_s
from meshwright.formats.lengths import lengths_of
from meshwright.formats.logs import read_log
from meshwright.formats.logs.out_of_memory import read_out_of_memory
from meshwright.formats.measured import read_rows
from meshwright.formats.measured.run import read_run
from meshwright.formats.megatron.layout import read_layout
from meshwright.formats.megatron.model_options import read_pattern
from meshwright.formats.megatron.options import known_options
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.plan_json import read_job
from meshwright.formats.profiles import read_profiles
from meshwright.formats.stage_times import read_stage_times
from meshwright.formats.torch_csv import parse_actions
from meshwright.library.calibration import read_calibration
from meshwright.library.devices import device, kernel_efficiency
from meshwright.library.models import resolve
from meshwright.library.prices import prices_of
from meshwright.schedules import SCHEDULES
from meshwright.specs.row_text import parse_row
from tests.fuzz import doors, mutate, samples, service_doors
from tests.fuzz.cases import READS, Case, Door


def _measured(path: Path) -> None:
    for row in read_rows(path):
        read_run(row, device, _model_or_none)


def _model_or_none(name: str) -> Any:
    from meshwright.app.validate import named_model

    return named_model(name)


def _script(path: Path) -> None:
    read_flags(path.read_text("utf-8", "replace"))


OF_FILES: Mapping[str, tuple[Callable[[Random], Case], str, Callable[[Path], object]]] = {
    "config": (doors.config, "config.json", lambda path: resolve(str(path))),
    "cluster": (doors.cluster_files, "cluster", lambda path: read_cluster(path, device)),
    "device": (doors.device_files, "gpu.toml", lambda path: device_spec(read_device_file(path), kernel_efficiency)),
    "plan-file": (doors.plan_files, "plans.json", lambda path: read_job(f"{path}#1")),
    "script": (doors.scripts, "train.sh", _script),
    "application": (doors.calculon_files, "app.json", lambda path: read_application(str(path))),
    "execution": (doors.calculon_files, "execution.json", lambda path: read_execution(str(path))),
    "system": (doors.calculon_files, "system.json", lambda path: read_system(str(path))),
    "order": (doors.schedule_files, "order.csv", lambda path: parse_actions(path.read_text("utf-8", "replace"))),
    "stage-times": (doors.stage_times, "stages.csv", read_stage_times),
    "log": (doors.logs, "run.log", read_log),
    "oom-log": (doors.oom_logs, "oom.log", read_out_of_memory),
    "calibration": (doors.calibrations, "calibration.json", read_calibration),
    "measured": (doors.measured, "measured.csv", _measured),
    "profiles": (doors.profiles, "profiles", read_profiles),
}
"""Of every kind of file: the door that draws it, its name there, and what reads it."""


def _gguf(text: str) -> None:
    path = Path("model.gguf")
    path.write_bytes(bytes.fromhex(text))
    config_of_gguf(path)


def _options(text: str) -> None:
    read_flags(json.loads(text))


def _prices(text: str) -> None:
    Path("prices.toml").write_text(text, encoding="utf-8", errors="replace")
    prices_of("prices.toml")


def _lengths(text: str) -> None:
    Path("lengths.txt").write_text(text, encoding="utf-8", errors="replace")
    lengths_of("lengths.txt")


def _typed(text: str) -> None:
    verb, values = json.loads(text)
    VERBS[verb].request.read(values, typed=True)


OF_TEXT: Mapping[str, tuple[Callable[[Random], str], Callable[[str], object]]] = {
    "gpus": (lambda chance: doors._gpus(chance), lambda text: parse_gpus(text, device)),
    "plan-name": (
        lambda chance: doors._plan(chance),
        lambda text: parse_row(text, devices=64, global_batch=256, schedules=tuple(SCHEDULES)),
    ),
    "request": (lambda chance: _request(chance), _typed),
    "megatron-options": (lambda chance: _megatron(chance), _options),
    "lengths": (lambda chance: mutate.text(chance, chance.choice(samples.LENGTHS)), _lengths),
    "lengths-text": (
        lambda chance: mutate.text(chance, chance.choice(samples.LENGTHS[1:])).replace("\0", ""),
        lengths_of,
    ),
    "prices": (lambda chance: mutate.text(chance, samples.PRICES, changes=5), _prices),
    "expert-load": (
        lambda chance: mutate.text(chance, chance.choice(["balanced", "1.3", "zipf:1.2"])).replace("\0", ""),
        expert_load_of,
    ),
    "host": (
        lambda chance: mutate.text(chance, chance.choice(["4x7GB/s", "3.84TB", "2TB@6GB/s", "gen5", "4x16", "12GB/s"])),
        lambda text: (disks_of(text), slot_bytes_per_s(text)),
    ),
    "layout": (lambda chance: mutate.text(chance, chance.choice(LAYOUTS)), read_layout),
    "pattern": (
        lambda chance: mutate.text(chance, chance.choice(["([0]*1+[1]*3)*2", "2", "[1,0,1]"])),
        lambda text: read_pattern(text, 8),
    ),
    "gguf": (lambda chance: _gguf_bytes(chance), _gguf),
    "http": (service_doors.http_body, service_doors.answered),
    "mcp": (service_doors.tool_call, service_doors.called),
}
"""Of every grammar: what draws a text of it, and what reads that."""
LAYOUTS = ("Et*3|t*4|(t|)*2mL", "Ettt|tttL", "E|(tt|)*3,L", "E" + "t" * 30 + "|L")
ENTRIES = (b"general.architecture", b"llama.block_count", b"llama.embedding_length", b"llama.attention.head_count")


def read(name: str, folder: Path, text: str) -> None:
    """Let a reader read.

    Args:
        name: of `OF_FILES` or `OF_TEXT`.
        folder: where the case's files are.
        text: of a reader of texts.
    """
    if name in OF_FILES:
        _, file, reader = OF_FILES[name]
        reader(folder / file)
    else:
        OF_TEXT[name][1](text)


def _file_door(name: str) -> Door:
    draw, file, _ = OF_FILES[name]

    def read_again(chance: Random) -> Case:
        files = {at: content for at, content in draw(chance).files.items() if at.startswith(file)}
        return Case(verb=READS + name, values={"text": ""}, files=files)

    return Door(name=f"read-{name}", draw=read_again)


def _text_door(name: str) -> Door:
    draw, _ = OF_TEXT[name]
    return Door(name=f"read-{name}", draw=lambda chance: Case(verb=READS + name, values={"text": draw(chance)}))


def _request(chance: Random) -> str:
    """A verb, and values for its fields as they would be typed."""
    verb = chance.choice(list(VERBS))
    values: dict[str, Any] = {}
    for one in request_fields(VERBS[verb].request):
        if one.required is not None or chance.random() < 0.2:
            word = chance.choice([*doors._option(chance, one), "x"][-2:-1] or ["x"])
            if isinstance(one.kind, Whole | Count | Number | Numbers | Duration) and chance.random() < 0.5:
                word = mutate.number(chance)
            values[one.name] = True if one.flag else [word] if one.repeated else word
    return json.dumps([verb, values])


def _megatron(chance: Random) -> str:
    """Options of Megatron-LM with values of their kind or not."""
    words: list[str] = []
    for name in chance.sample(sorted(known_options()), chance.randint(1, 25)):
        words.append(name)
        for _ in range(chance.choice([0, 1, 1, 1, 2])):
            words.append(mutate.word(chance) if chance.random() < 0.4 else str(2 ** chance.randint(0, 12)))
    return json.dumps(words + ["--deepspeed"] * (chance.random() < 0.2))


def _gguf_bytes(chance: Random) -> str:
    """A header of GGUF, and bytes of it changed."""

    def text(one: bytes) -> bytes:
        return len(one).to_bytes(8, "little") + one

    keys = [text(ENTRIES[0]) + (8).to_bytes(4, "little") + text(b"llama")]
    for one in ENTRIES[1:]:
        keys.append(text(one) + (4).to_bytes(4, "little") + chance.choice([1, 32, 4096]).to_bytes(4, "little"))
    tensor = text(b"token_embd.weight") + (2).to_bytes(4, "little") + (4096).to_bytes(8, "little") * 2
    header = b"GGUF" + (3).to_bytes(4, "little") + (1).to_bytes(8, "little") + len(keys).to_bytes(8, "little")
    found = bytearray(header + b"".join(keys) + tensor + (0).to_bytes(4, "little") + (0).to_bytes(8, "little"))
    for _ in range(chance.choice([0, 1, 2, 4])):
        at = chance.randrange(len(found))
        found[at] = chance.choice([0, 1, 9, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    if chance.random() < 0.2:
        del found[chance.randrange(len(found)) :]
    return found.hex()


READERS = (*map(_file_door, OF_FILES), *map(_text_door, OF_TEXT))
"""A door for each."""
