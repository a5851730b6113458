"""Public launch files read by `check`, against what bash itself and a reader of its own say of them.

    python -m benchmarks.read_as_run draw FOLDER --seed 1 --scripts 36 --configs 24 -o drawn.txt
    python -m benchmarks.read_as_run measure FOLDER drawn.txt -o found.json

FOLDER holds one folder of files a repository. The rule of the draw: files that start or configure a training, by the
marks below, in the order of the SHA-256 of seed and path, at most `--each` of a repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.facts_of_keys import of_module
from benchmarks.facts_of_run import Facts, kind_of, load_keys, of_command, of_file, options, words_after
from benchmarks.options_of_run import lost, unlike
from benchmarks.recording import STARTERS, Recorded, Recording, record, recorders
from meshwright.errors import MeshwrightError
from meshwright.fields.job import JobFields
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import launches, read_script
from meshwright.launch_files.format import format_of
from meshwright.launch_files.script import script_question
from meshwright.launch_files.source import Outside

_SCRIPTS = (".sh", ".slurm", ".sbatch")
_CONFIGS = (".yaml", ".yml", ".toml", ".json")
_STARTS = re.compile(
    r"torchrun|torch\.distributed\.(run|launch)|deepspeed |accelerate launch|llamafactory-cli train|axolotl train"
    r"|python3? \S*train"
)
_TRAINS = re.compile(
    r"--micro-batch-size|--per_device_train_batch_size|llamafactory-cli train|axolotl(\.cli\.| )train"
    r"|--tensor-model-parallel-size|--train_micro_batch_size|--config[-_]file|--job\.config_file"
)
_OTHERWISE = re.compile(
    r"infer|eval|convert|export|test|merge|serve|generat|preprocess|docker|install|ckpt|multimodal|vision|vlm|llava|retro|msdp"
    r"|bert|t5|prompt|dpo|ppo|grpo|rlhf|kto|orpo|reward|rlvr|prune|pruning|quant|distill|diffusion|wan|flux",
    re.IGNORECASE,
)
"""Paths of files that train no decoder of text, or no one model alone: those are refused by what they are."""
_DESTRUCTIVE = re.compile(r"rm -rf /(?!tmp)|:\(\)\s*\{|mkfs|dd if=|/dev/sd|shutdown|reboot")


def drawn(folder: Path, *, seed: int, scripts: int, configs: int, each: int) -> list[str]:
    """Paths of a draw."""
    found = []
    kinds: dict[str, str] = {}
    for path in folder.rglob("*"):
        shown = str(path.relative_to(folder))
        if (
            path.suffix not in (*_SCRIPTS, *_CONFIGS)
            or not path.is_file()
            or _OTHERWISE.search(shown.partition("/")[2])
        ):
            continue
        text = path.read_text(errors="replace")
        if path.suffix in _SCRIPTS:
            if not _STARTS.search(text) or not _TRAINS.search(text) or _DESTRUCTIVE.search(text):
                continue
            kinds[shown] = "megatron" if "-model-parallel-size" in text or "--micro-batch-size" in text else "trainer"
        else:
            if len(text) > 60_000 or not (kind := _kind(path, text)):
                continue
            kinds[shown] = kind
        found.append(shown)
    found.sort(key=lambda shown: hashlib.sha256(f"{seed}:{shown}".encode()).hexdigest())
    chosen: list[str] = []
    of_repository: Counter[tuple[str, bool]] = Counter()
    of_kind: Counter[tuple[str, bool]] = Counter()
    left = {True: scripts, False: configs}
    for shown in found:
        script = Path(shown).suffix in _SCRIPTS
        repository = (shown.partition("/")[0], script)
        kind = (kinds[shown], script)
        most = scripts * 6 // 10 if script else max(2, configs // 4)
        if left[script] and of_repository[repository] < each and of_kind[kind] < most:
            of_repository[repository] += 1
            of_kind[kind] += 1
            left[script] -= 1
            chosen.append(shown)
    return chosen


def _kind(path: Path, text: str) -> str:
    return kind_of(load_keys(path), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One file, read twice."""

    path: str
    verdict: str
    kind: str = ""
    framework: str = ""
    differs: Mapping[str, Any] = field(default_factory=dict)
    """What both readers say, by fact, ours second."""
    compared: Mapping[str, Any] = field(default_factory=dict)
    unlike: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Options of the command that are read as something else, as they are stated and as they are read."""
    lost: Sequence[str] = ()
    """Options of the command of which the answer says nothing."""
    words: str = ""
    """Whether the words of the command agree."""
    questions: Sequence[str] = ()
    problems: Sequence[str] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    row: str = ""


def ours(launch: LaunchFile) -> Facts:
    """What `check` read."""
    row, facts = launch.row, {}
    if row is not None:
        moved = row.offload.partition("-")[0].replace("g", "")  # gradients go with the optimizer's states
        facts |= {
            "tp": row.tp,
            "pp": row.pp,
            "cp": row.cp_degree,
            "ep": row.ep,
            "dp": row.dp,
            "mbs": row.mbs,
            "gbs": row.gbs,
        }
        facts |= {"devices": row.devices, "sp": row.sp, "steps": row.micro_batches, "offload": moved}
        facts["zero"] = {"z3": "full", "fsdp": "full", "z2": "grad", "fsdp-keep": "grad"}.get(
            row.sharding, row.sharding
        )
        facts["recompute"] = "full" if row.recompute in ("full", "block", "uni") else row.recompute
    facts |= {
        "layers": launch.model.get("num_layers"),
        "hidden": launch.model.get("hidden"),
        "heads": launch.model.get("heads"),
    }
    facts |= {
        "kv": launch.model.get("kv_heads"),
        "ffn": launch.model.get("ffn_hidden"),
        "experts": launch.model.get("experts"),
    }
    facts |= {"topk": launch.model.get("top_k"), "seq": launch.workload.get("seq_len")}
    precision, lora = launch.workload.get("precision"), launch.workload.get("lora")
    if precision is not None:
        facts["compute"] = precision.compute
    said = re.search(r"r=(\d+)", lora) if isinstance(lora, str) else None
    facts["rank"] = lora.get("r") if isinstance(lora, Mapping) else int(said[1]) if said else None
    return {name: value for name, value in facts.items() if value is not None}


def measured(folder: Path, shown: str, programs: Path) -> Found:
    """One file read by both; what it asks is answered once, alike for both."""
    text = (folder / shown).read_text(errors="replace")
    engine = _engine(folder / shown.partition("/")[0])
    given: dict[str, str] = {}
    settings: dict[str, str] = {}
    arguments: list[str] = []
    for _ in range(4):
        found = _measured(folder, shown, programs, given, arguments, settings)
        if found.verdict != "asked":
            return found
        names, count = _asked(found.questions)
        keys = [one for one in re.findall(r"--set ([\w.-]+)=", "\n".join(found.questions)) if one not in settings]
        if not {*names} - given.keys() and count <= len(arguments) and not keys:
            return found
        given |= {name: answer(name, text, engine) for name in names if name not in given}
        if "fsdp" in keys:
            keys = ["fsdp"]  # one of several ways to say what shards
        settings |= {key: _SETTINGS.get(key.rpartition(".")[2].replace("-", "_"), "2") for key in keys}
        if count > len(arguments):
            arguments = [answer(str(number), text, engine) for number in range(1, count + 1)]
    return found


_SETTINGS = {
    "padded_vocab_size": "50304",
    "vocab_size": "50304",
    "lora_r": "16",
    "lora_target_modules": "q_proj,v_proj",
    "fsdp": "no",
    "bf16": "true",
    "use_peft": "true",
}
"""What is said where a key is asked for."""


def _asked(questions: Sequence[str]) -> tuple[list[str], int]:
    text = "\n".join(questions)
    names = [name for name in dict.fromkeys(re.findall(r"--env (\w+)=VALUE", text)) if not name.isdigit()]
    numbers = [int(one) for one in re.findall(r"--arg VALUE (\d+) times", text)]
    numbers += [int(one) for one in re.findall(r"--arg \(argument (\d+)\)", text)]
    return names, max(numbers, default=0)


def _engine(tree: Path) -> str:
    """A configuration of DeepSpeed that is in a tree, for scripts that take one as an argument."""
    there = (path for path in sorted(tree.rglob("*.json")) if '"zero_optimization"' in path.read_text(errors="replace"))
    found = next(there, None)
    return "/somewhere" if found is None else str(found.relative_to(tree))


def answer(name: str, text: str, engine: str = "/somewhere") -> str:
    """What is said where a name is asked for: the first value the script compares it with, else by what it counts."""
    if name.isdigit():
        held = re.search(rf"^\s*(?:export\s+)?(\w+)=\"?\$\{{?{name}\b", text, re.MULTILINE)
        if held is None:
            return "2"
        name = held[1]
    asked = re.search(rf"\$\{{?{name}\}}?\"?\s*==?\s*[\"']?([\w.:-]+)", text)
    if asked is None:
        asked = re.search(rf"case\s+\"?\$\{{?{name}\}}?\"?\s+in\s+[\"'(]?([\w.:-]+)", text)
    if asked is not None:
        return asked[1]
    plain = name.upper()
    if plain in ("TP", "PP", "CP", "EP", "SP"):
        return "1"
    if plain in ("PR", "PRECISION", "DTYPE"):
        return "bf16"
    if re.search(r"DEEPSPEED|DS_CONFIG", plain):
        return engine
    if re.search(r"RANK|NODEID|PROCID", plain):
        return "0"
    if re.search(r"GPU|NPROC|PROC_PER|PPN|LOCAL_WORLD|DEVICES", plain) and "VISIBLE" not in plain:
        return "8"
    if "VISIBLE" in plain:
        return "0,1,2,3,4,5,6,7"
    if re.search(r"NODES|NNODE|WORLD_SIZE|MACHINES|WORKER_NUM", plain):
        return "2"
    if re.search(r"LIST|HOST|ADDR|IP$", plain):
        return "node0"
    if re.search(r"PORT", plain):
        return "6000"
    if re.search(r"DIR|PATH|HOME|FOLDER|ROOT|FILE", plain):
        return "/somewhere"
    return "2"


def _measured(
    folder: Path,
    shown: str,
    programs: Path,
    given: Mapping[str, str],
    arguments: list[str],
    settings: Mapping[str, str],
) -> Found:
    path = folder / shown
    repository, _, inside = shown.partition("/")
    tree = folder / repository

    def find(name: str) -> Path | None:
        return _found(tree, path, name)

    words, kind, facts = "", "", {}
    stated: list[str] = []
    if path.suffix in _SCRIPTS:
        runs = [
            record(tree, inside, start=start, arguments=arguments, environment=given, programs=programs)
            for start in dict.fromkeys(["", str(Path(inside).parent)])
        ]
        chosen, kind, facts = _training(runs, find)
        if chosen is None:
            kind = "nothing" if not any(run.commands for run in runs) else "no training"
        else:
            words = _words(path, chosen, given, arguments)
            stated = words_after(chosen.argv)[2]
    elif path.suffix == ".py":
        kind, facts = of_module(path)
    else:
        kind, facts = of_file(path, find)
    common: dict[str, Any] = {
        "path": shown,
        "kind": kind,
        "words": words,
        "given": {**given, **settings},
        "arguments": arguments,
    }
    outside = Outside(arguments=tuple(arguments) or None, environment=dict(given), settings=dict(settings))
    try:
        framework = format_of(path, outside)
        _, _, launch, _ = script_question(path, framework, JobFields(), outside)
    except MeshwrightError as error:
        return Found(verdict="refused", problems=str(error).splitlines(), **common)
    common["framework"] = framework
    questions = [
        f"{one.what}: {one.why}; {one.fix}" for one in launch.questions if one.field not in ("model", "cluster")
    ]
    problems = [f"{one.what}: {one.why}" for one in launch.problems]
    read = ours(launch)
    common |= {"questions": questions, "problems": problems, "row": launch.row.format() if launch.row else ""}
    if questions:
        return Found(verdict="asked", **common)
    if launch.row is None and problems:
        return Found(verdict="refused", **common)
    if launch.row is None and launch.plan is None:
        return Found(verdict="no plan", **common)
    common["unlike"] = unlike(launch, stated) if stated else {}
    common["lost"] = lost(launch, stated) if kind == "megatron" else []
    facts |= {fact: _whole(settings[key]) for key, fact in _FACTS.items() if key in settings}
    if "steps" in facts and "gbs" not in facts and "mbs" in facts:
        facts["gbs"] = facts["mbs"] * facts["steps"] * read.get("dp", 1)
    if launch.started is None or any("the script starts" in note for note in launch.notes):
        # The cluster is asked for, or both numbers are said: the plan is read for as many devices as go with it.
        facts = {name: value for name, value in facts.items() if name not in ("devices", "dp")}
    if any(one.field == "model" for one in launch.questions):
        facts = {name: value for name, value in facts.items() if name in read or name not in _OF_A_MODEL}
    differs = {name: [value, read.get(name)] for name, value in facts.items() if value != read.get(name)}
    if facts.get("kv") == facts.get("heads") or "kv" not in read:
        differs.pop("kv", None)
    compared = {name: value for name, value in facts.items() if name not in differs}
    if path.suffix in _SCRIPTS and not facts:
        return Found(verdict="not recorded", **common)
    verdict = (
        ("differs" if not problems else "differs, part refused")
        if differs or common["unlike"] or common["lost"] or words.startswith("differs")
        else ("exact" if not problems else "part refused")
    )
    return Found(verdict=verdict, differs=differs, compared=compared, **common)


_OF_A_MODEL = ("layers", "hidden", "heads", "kv", "ffn", "experts", "topk")
"""Facts that are asked for with the model, where the file's own are not read."""
_FACTS = {"per_device_train_batch_size": "mbs", "gradient_accumulation_steps": "steps", "lora_r": "rank"}


def _whole(text: str) -> Any:
    return int(text) if text.isdigit() else text


def _found(tree: Path, path: Path, name: str) -> Path | None:
    name = name.removeprefix("/job/")
    if not name or len(name) > 200:
        return None
    above = [path.parent, *path.parent.parents]
    for folder in above[: above.index(tree) + 1] if tree in above else above[:1]:
        if (folder / name).is_file():
            return folder / name
    beside = path.parent / name.rpartition("/")[2]
    return beside if beside.is_file() else None


def _training(runs: Sequence[Recording], find: Any) -> tuple[Recorded | None, str, Facts]:
    best: tuple[int, Recorded | None, str, Facts] = (0, None, "", {})
    for run in runs:
        for one in run.commands:
            if one.argv[0] in STARTERS:
                continue
            kind, facts = of_command(one.argv, find)
            if kind and len(one.argv) >= best[0]:
                best = (len(one.argv), one, kind, facts)
    return best[1:]


def _words(path: Path, run: Recorded, given: Mapping[str, str], arguments: list[str]) -> str:
    """Whether the words of the command are those that were read; where ours are not known, any word."""

    def read(name: str) -> str | None:
        there = _found(path.parent, path, name)
        return None if there is None else there.read_text(errors="replace")

    launcher, program, words = words_after(run.argv)
    script = read_script(
        path.read_text(errors="replace"), name=path.name, arguments=arguments or None, environment=given, read=read
    )
    ways = [one for one in launches(script.commands) if one.program.rpartition("/")[2] == program.rpartition("/")[2]]
    if not ways:
        return "not found by us"
    best = ""
    for way in ways:
        before = way.launcher[:-1] if way.launcher and way.launcher[-1].text in ("-m", "--module") else way.launcher
        near = launcher[-12:]
        theirs, mine = [*near, *words], [*before[-len(near) :], *way.words] if near else list(way.words)
        if len(theirs) == len(mine) and all(
            b.unknown is not None or _same(a, b.text) for a, b in zip(theirs, mine, strict=True)
        ):
            return "same" if all(one.unknown is None for one in mine) else "same but for unknown"
        if any(one.unknown is not None for one in mine):
            a, b = options(theirs), options([one.text if one.unknown is None else "?" for one in mine])
            wrong = {
                name: (a[name], b[name])
                for name in a.keys() & b.keys()
                if "?" not in b[name] and (len(a[name]) != len(b[name]) or not all(map(_same, a[name], b[name])))
            }
            best = best or (f"differs: {wrong}" if wrong else "same but for unknown")
            continue
        first = next(
            ((a, b.text) for a, b in zip(theirs, mine, strict=False) if not _same(a, b.text)), (len(theirs), len(mine))
        )
        best = best or f"differs: {first}"
    return best


def _same(run: str, read: str) -> bool:
    if (
        run == read
        or run.replace("/job/", "") == read.removeprefix("./")
        or run.rpartition("/")[2] == read.rpartition("/")[2] != ""
    ):
        return True
    # What a template leaves to fill in is one word where it runs, and another where it is read.
    return "to_fill_in" in run and re.fullmatch(re.escape(run).replace("to_fill_in", r"_\w+"), read) is not None


def main() -> Iterator[str]:
    """Draw or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("list", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scripts", type=int, default=36)
    parser.add_argument("--configs", type=int, default=24)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    if given.what == "draw":
        found = drawn(given.folder, seed=given.seed, scripts=given.scripts, configs=given.configs, each=given.each)
        given.output.write_text("\n".join(found) + "\n")
        yield f"{len(found)} files of {len({one.partition('/')[0] for one in found})} repositories"
        return
    programs = recorders(Path(given.folder).parent / "programs")
    results = [measured(given.folder, one, programs) for one in given.list.read_text().split("\n") if one]
    given.output.write_text(json.dumps([asdict(one) for one in results], indent=1, default=str))
    for one in results:
        wrong = " ".join(str(found) for found in (one.differs, one.unlike, one.lost) if found)
        yield f"{one.verdict:22} {one.framework or one.kind:12} {one.path} {one.words} {wrong}"
    yield str(Counter(one.verdict for one in results))


if __name__ == "__main__":
    for line in main():
        print(line)
