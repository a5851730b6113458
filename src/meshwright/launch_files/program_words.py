"""What the words of a program say of its model and of the file of keys that it is started with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from meshwright.errors import Problem
from meshwright.formats.files import path_end
from meshwright.formats.megatron.script import several_models, trains
from meshwright.formats.shell import Launch, Script, launches
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.formats.shell.values import Word

CONFIG_NAME = re.compile(r"[^=\s]+\.(?:h?json|ya?ml|toml)$")
"""Words that name a configuration."""


def not_here(path: str, launch: Launch) -> Problem:
    """The problem that a file which a program is started with is not here."""
    why = f"it says what the command does not ({launch.place})"
    return Problem(what=f"{path_end(path)} is not here", why=why, fix="put it beside the script", field="source")


def _bare(launch: Launch) -> Iterator[Word]:
    """Words of a program behind no option, nor one themselves."""
    for before, one in pairwise([None, *launch.words]):
        assert one is not None
        behind = before is not None and before.text.startswith("--") and "=" not in before.text
        if not behind and not one.text.startswith("-") and "=" not in one.text:
            yield one


def missing_file(launch: Launch, script: Script, read: Callable[[str], str | None]) -> Iterator[Problem]:
    """A file of a trainer's keys that is named and not here."""
    for path in (one.text for one in _bare(launch) if one.unknown is None and CONFIG_NAME.fullmatch(one.text)):
        if path.rpartition("/")[2] not in script.files and read(path) is None:
            yield not_here(path, launch)


_TOWER = re.compile(
    r"--(?:vision_(?:tower\w*|model|path)|tune_vision\w*|connector_lr|(?:image|video)_target_size|mm_\w+"
    r"|image_folder|(?:image|vision|audio|video)_(?:model|encoder)\w*"
    r"|freeze_(?:backbone|vision\w*|vit)|pretrain_mm_\w+|tune_mm_\w+|force_image_size|max_dynamic_patch|(?:video|image|audio)_(?:folder|path|root)|speech_encoder|audio_tower)$"
)
"""Options of trainers whose model sees or hears."""


def of_towers(launch: Launch) -> Iterator[Problem]:
    """Why a program is none of a plain decoder: images or sound go through a tower before the text."""
    flags = (word.text.partition("=")[0].replace("-", "_").replace("__", "--", 1) for word in launch.words)
    found = next((flag for flag in flags if _TOWER.fullmatch(flag)), None)
    if found is not None:
        program = launch.program.rpartition("/")[2]
        why = "images or sound go through a tower before the text, which a plan of its decoder leaves out"
        fix = "check a script that trains a text model"
        yield Problem(what=f"{program} is started with {found}", why=why, fix=fix, field=found)


_OTHER_HEADS = re.compile(
    r"--(?:pooling_\w+|sentence_pooling\w*|simcse_\w+|bidirectional|train_group_size|train_n_passages|mlm_probability"
    r"|negatives\w*|hard_negative\w*|contrastive\w*|pool_type|embedding_norm|embedder_name|gradcache_\w+"
    r"|matryoshka_\w+|num_labels|num_classes)$"
)
"""Options of trainers of embeddings, classes or masked words."""
_OF_OTHER_HEADS = re.compile(
    r"(?:^|[_.-])(?:embeddings?|clip|rerank(?:er)?|retriev(?:er|al)|classif\w*|scorers?|glue|squad|ner|mlm|swag|superglue)"
    r"(?=[_.-]|$)"
)
"""Marks in the names of such programs."""


def of_other_heads(launch: Launch) -> Iterator[Problem]:
    """Why a program does not train a decoder to predict the next token."""
    program = launch.program.rpartition("/")[2]
    why = "it trains embeddings, classes or masked words: its head and its passes are others"
    fix = "check a script of SFT or pretraining"
    if _OF_OTHER_HEADS.search(program):
        yield Problem(what=f"{program} is started", why=why, fix=fix, field="source")
        return
    if several_models(launch) is not None:
        return  # a policy may pool, too
    for before, after in pairwise([*(word.text for word in launch.words), ""]):
        flag, equals, value = before.partition("=")
        said = (value if equals else after).lower()
        name = flag.replace("-", "_").replace("__", "--", 1)
        if _OTHER_HEADS.fullmatch(name) and said not in ("false", "0", "none"):
            yield Problem(what=f"{program} is started with {name}", why=why, fix=fix, field=name)
            return


def unknown_file(launch: Launch) -> Iterator[Problem]:
    """Asks for a word of the program, behind no option, that may be the file of a trainer's keys."""
    what = "the file or option that the program is started with"
    opened = [
        Open(what=what, unknown=one.unknown, place=one.place, field="source")
        for one in _bare(launch)
        if one.unknown is not None and not one.unknown.unset and not one.unknown.flags
    ]
    yield from questions_for(opened[:1])


_NAMES_A_FILE = re.compile(r"--(?:\w+\.)?config(?:[_-]file)?(?:=|$)|--module(?:=|$)")
"""Options that name the configuration of a program, or the module that makes it."""


def unknown_configuration(launch: Launch) -> Iterator[Problem]:
    """Asks for the configuration of a program that is named by what nobody can know."""
    for one, following in pairwise([*launch.words, None]):
        assert one is not None
        value = one if "=" in one.text else following
        if _NAMES_A_FILE.match(one.text) and value is not None and value.unknown is not None:
            flag = one.text.partition("=")[0]
            yield from questions_for([Open(what=flag, unknown=value.unknown, place=value.place, field=flag)])
            return


_OF_ADAPTERS = re.compile(r"--(?:peft|lora|adapter)_config(?:_path|_file|_dir)?(?:=|$)")


def adapters_path(launch: Launch) -> str:
    """The file of an adapter's settings that a program is started with, or its folder; nothing where it has none."""
    for one, following in pairwise(words_of(launch)):
        if _OF_ADAPTERS.match(one):
            return one.partition("=")[2] or ("" if following.startswith("--") else following)
    return ""


def words_of(launch: Launch) -> list[str]:
    """Words of a program, with an end."""
    return [*(word.text for word in launch.words), ""]


_SEVERAL = re.compile(
    r"(?:^|[_.-])(dpo|spin|simpo|orpo|ppo|grpo|kto|orpo|rloo|rlhf|reward|preference|gkd|rollout\d*)(?=[_.-]|$)"
)


_OF_PAIRS = re.compile(
    r"--(?:beta|max_prompt_length|num_generations|reward_model_path|(?:dpo|simpo|rrhf|rank(?:ing)?)_\w+|margin|lenpen)"
    r"(?:=|$)"
)
"""Options of trainers on pairs, rewards and answers."""
_BY_NAME = re.compile(
    r"(?:--|\+{1,2})?(?:loss|method|algorithm|algo|objective|trainer|task)(?:[._-](?:name|type|kind|_target_))?="
    r"(?:dpo|kto|ppo|grpo|orpo|simpo|ipo|cdpo|slic|rloo|rm|reward|bradley-terry|csft-pairs)\b"
)
"""Words that name how a program trains, of those that train on pairs or rewards."""
_STAGES = ("rm", "dpo", "ppo", "kto", "orpo", "simpo", "grpo", "cls", "prm", "orm")
"""Values of `--stage` of LLaMA-Factory and its forks: passes over pairs, several models, or a head of another kind."""


def of_several_models(launch: Launch) -> Iterator[Problem]:
    """Programs that run more than one model, or a sequence more than once."""
    names = [launch.program, *(word.text for word in launch.words if word.text.endswith(".py"))]
    program = next((name for name in (one.rpartition("/")[2] for one in names) if _SEVERAL.search(name.lower())), "")
    role = several_models(launch)
    pairs = next((one.text for one in launch.words if _OF_PAIRS.match(one.text) or _BY_NAME.match(one.text)), None)
    stages = [one for one, after in pairwise(words_of(launch)) if one == "--stage" and after in _STAGES]
    pairs = next((one for one in stages), pairs)
    if role is not None:
        yield role
    elif pairs is not None and not program:
        why = "it trains on pairs or rewards: more than one pass runs a sequence, which no plan here prices"
        what = f"{pairs if _BY_NAME.match(pairs) else pairs.partition('=')[0]} is given"
        yield Problem(what=what, why=why, fix="check a script of SFT or pretraining", field=pairs.partition("=")[0])
    elif program:
        why = "it trains on pairs or rewards: more than one pass runs a sequence, which no plan here prices"
        yield Problem(what=f"{program} is started", why=why, fix="check a script of SFT or pretraining", field="source")


_SHIPPED = ("base.yml",)
"""Configurations that a program comes with."""


def missing_configs(launch: Launch) -> Iterator[str]:
    """Configurations that a program is given and that are not here, but for the one that it comes with."""
    for before, one in zip(("", *(word.text for word in launch.words)), launch.words, strict=False):
        named = "=" not in one.text and CONFIG_NAME.fullmatch(one.text) and not _OF_A_TOKENIZER.match(before)
        if named and one.text.rpartition("/")[2] not in _SHIPPED:
            yield one.text


_OF_A_TOKENIZER = re.compile(r"--(?:vocab|merge|tokenizer)")
"""Options whose file holds tokens."""


_BY_FILE = re.compile(r"(?:^|[/.])(?:axolotl(?:\.cli\.train)?|llamafactory-cli|automodel|run_train\.py)$")
"""Programs whose file of keys would be read."""


def _by_file(launch: Launch) -> bool:
    """Whether the file that a program is started with says its plan: it is known to, or the words say nothing else."""
    if _BY_FILE.search(launch.program):
        return True
    words = words_of(launch)
    named = any(one == "--config" and CONFIG_NAME.fullmatch(after) for one, after in pairwise(words))
    return named and launch.distributed and not any(_SAYS_A_PLAN.match(one) for one in words)


_SAYS_A_PLAN = re.compile(r"--\w*(?:batch|size|parallel|layers|stage)", re.IGNORECASE)


def missing_configuration(script: Script, read: Callable[[str], str | None]) -> Problem | None:
    """The configuration that the last training of a script is started with, where that is not here.

    Args:
        script: the script as bash means it.
        read: the text of a file beside the script, None where there is none.
    """
    training = [launch for launch in launches(script.commands) if trains(launch) and _by_file(launch)]
    for launch in reversed(training):
        paths = list(missing_configs(launch))
        others = (*of_several_models(launch), *of_towers(launch), *of_other_heads(launch))
        if paths and others and not _BY_FILE.search(launch.program):
            return others[0]  # its file would make no plan of it
        if paths:
            return not_here(paths[0], launch) if all(read(path) is None for path in paths) else None
    return None
