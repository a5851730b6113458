"""The page of models in the documentation, from the table of counts: `python -m benchmarks.families`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.formats import huggingface
from meshwright.formats.huggingface import FAMILIES, WHOLE, read_config
from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.keys import CHANGES
from meshwright.formats.huggingface.refused import REFUSED
from meshwright.formats.huggingface.vision import SOUNDS, TOWERS
from meshwright.library.models import names, spec
from meshwright.specs.model import ModelSpec
from tests.counts import FAMILIES as ONE_EACH
from tests.counts import LIBRARY
from tests.formats.huggingface.encoders import PUBLISHED as ENCODERS
from tests.formats.huggingface.sounds import CLASSES as CLASSES_WITH_SOUND
from tests.formats.huggingface.tower_classes import CLASSES as CLASSES_WITH_TOWERS
from tests.formats.huggingface.towers import PUBLISHED as PUBLISHED_TOWERS
from tests.real_files import ACTIVE, CLASS, SOURCES, RealFile, real_files

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"

HEAD = """# Models

Any Hugging Face `config.json` of a decoder is read, whatever its `model_type`: the keys say the sizes, under all the
spellings that are in use. Two things differ between families, which the table below knows: what a class takes for keys
that its configs leave out, and parts that no key states (norms on queries and keys, biases, gates).

* A `model_type` that is not in the table is read by its keys where every one of them is understood; the answer says as
  what, and which known name is nearest.
* A key that changes sizes or work and is not understood is refused by its name and value. So is an activation
  other than SiLU in an unknown family, as nothing says whether its MLPs have a gate; `"gated_mlp": true` or `false`
  says it.
* A key that a known family does not have is left out and named in the answer, and refused if it looks like a size.
* Of configs with several parts (`text_config`, `llm_config`, `language_config`, `thinker_config`, and MLC's
  `model_config`), the text is read, and a vision tower that the second table below names; the answer says what is left
  out. Encoders are in that table, too.
* `architectures` says what the head predicts: words, or (`...ForSequenceClassification`, `...ForTokenClassification`)
  classes or a reward in their place, or (`MistralModel`) nothing, as models of embeddings; nested configs and those of
  remote code that `auto_map` calls causal are language models.
* `per_layer_config` changes keys of single layers or skips their attention or MLP, as transformers 5.24 saves them.
* Weights beside a config.json (safetensors, their `model.safetensors.index.json`, or GGUF) check the number of
  parameters by their headers; the answer says when it differs by more than 0.1%.

## Families

The counts are tests (`tests/library/test_counts.py` and `tests/formats/huggingface/test_counts.py`, of encoders and
towers `test_encoders.py` and `test_vision.py` beside it): parameters of a config beside those of the class that runs it
(transformers 5.23.0, built without weights), or beside the model card where the class is not in transformers. `models`
is how many configs are counted, and `difference` the largest of them;
biases that balance experts are no parameters, as no gradient moves them.

"""


def kinds(models: list[ModelSpec]) -> str:
    """Kinds of parts that layers of some models have."""
    found = {f"{part.kind}" for model in models for layer in model.kinds() for part in (layer.attention, layer.mlp)}
    return ", ".join(sorted(found - {"none"}))


def counted() -> dict[str, list[tuple[ModelSpec, int]]]:
    """Models with a count, by family."""
    found: dict[str, list[tuple[ModelSpec, int]]] = {}
    for name, count in LIBRARY.items():
        model = spec(name)
        found.setdefault(model.family, []).append((model, count["parameters"] if count["basis"] == "class" else 0))
    for name, entry in ONE_EACH.items():
        model = read_config(entry["config"], name)
        found.setdefault(model.family, []).append((model, entry["parameters"]))
    return found


def entries() -> dict[str, tuple[Family, list[str]]]:
    """Families by the name of their entry, each with the `model_type`s that mean it."""
    found: dict[str, tuple[Family, list[str]]] = {}
    for said, place in sorted(FAMILIES.items()):
        if said == "gpt":  # a plain shape of our own
            continue
        file, _, entry = place.partition(".")
        family: Family = getattr(import_module(f"{huggingface.__name__}.{file}"), entry)
        found.setdefault(entry, (family, []))[1].append(said)
    return found


def table() -> list[str]:
    """One row a family."""
    rows = ["| family | `model_type` | parts of its layers | models | difference |", "|---|---|---|---|---|"]
    models = counted()
    for entry, (family, said) in sorted(entries().items(), key=lambda item: item[1][0].title.lower()):
        known = models.get(entry, [])
        off = [abs(model.parameters / count - 1) for model, count in known if count]
        difference = largest(off) if off or not known else "card"
        names_said = ", ".join(f"`{name}`" for name in said)
        rows.append(f"| {family.title} | {names_said} | {kinds([m for m, _ in known])} | {len(known)} | {difference} |")
    return rows


def beside() -> list[str]:
    """One row a reader of encoders or towers: what it reads, and how its counts compare."""
    differences: dict[str, list[float]] = {}
    for name, (config, count) in {**ENCODERS, **PUBLISHED_TOWERS, **CLASSES_WITH_TOWERS, **CLASSES_WITH_SOUND}.items():
        off = abs(read_config(config, name).parameters / count - 1)
        differences.setdefault(str(config["model_type"]), []).append(off)
    readers: dict[str, list[str]] = {}
    for said, place in [*sorted({**WHOLE, **TOWERS}.items()), *sorted(SOUNDS.items())]:
        readers.setdefault(place, []).append(said)
    rows = ["", "## Encoders, vision and audio towers", "", "| `model_type` | what is read | models | difference |"]
    rows.append("|---|---|---|---|")
    for place, names_said in sorted(readers.items(), key=lambda item: item[1][0]):
        file, _, function = place.partition(".")
        what = getattr(import_module(f"{huggingface.__name__}.{file}"), function).__doc__.strip().split("\n")[0]
        off = [one for said in names_said for one in differences.get(said, [])]
        said_as = ", ".join(f"`{name}`" for name in names_said)
        rows.append(f"| {said_as} | {what} | {len(off)} | {largest(off)} |")
    rows += [
        "",
        "A tower is part of the plan where `--images` or `--audio` says how many images or clips a sample has; without",
        "it the text alone is planned, and the answer says so. Other audio towers are left out.",
    ]
    return rows


def of_files(files: list[RealFile]) -> tuple[list[tuple[RealFile, ModelSpec]], list[str]]:
    """Files with their models, and why the others are refused."""
    read, why = [], []
    for file in files:
        try:
            read.append((file, read_config(file.config, file.name)))
        except MeshwrightError as error:
            why += [f"`{problem.field}`: {problem.why}" for problem in error.problems]
    return read, why


def largest(differences: list[float]) -> str:
    """The largest of some differences, in percent."""
    if not differences:
        return "-"
    return "0" if not max(differences) else "below 0.001%" if max(differences) < 1e-5 else f"{max(differences):.3%}"


def real() -> list[str]:
    """Real files: one row a `model_type`."""
    families: dict[str, list[RealFile]] = {}
    for file in real_files():
        families.setdefault(file.model_type, []).append(file)
    rows, read = [], []
    for said, files in sorted(families.items(), key=lambda item: item[0].lower()):
        models, why = of_files(files)
        read += models
        totals = [abs(model.parameters / file.parameters - 1) for file, model in models if file.parameters]
        active = [abs(model.active_parameters / file.active - 1) for file, model in models if file.active]
        names_of = ", ".join(file.name for file in files)
        card = " (card)" if any(file.of_card for file, _ in models) else ""
        what = kinds([model for _, model in models]) if models else f"refused, {why[0]}"
        rows.append(f"| `{said}` | {len(files)} | {what} | {largest(totals)}{card} | {largest(active)} | {names_of} |")
    of_class = [one for one in read if one[0].parameters and not one[0].of_card]
    close = sum(abs(model.parameters / file.parameters - 1) <= CLASS for file, model in of_class if file.parameters)
    active_of = [(file.active, model.active_parameters) for file, model in read if file.active]
    close_active = sum(abs(ours / theirs - 1) <= ACTIVE for theirs, ours in active_of)
    number = sum(map(len, families.values()))
    return [
        "",
        "## Real files",
        "",
        f"{number} config.json files of {len(families)} `model_type`s, each a test (`test_real_files.py` in",
        f"`tests/formats/huggingface`): {len(read)} are read and {number - len(read)} refused, for the reason in the",
        f"table. Parameters are within {CLASS:.1%} of the class (transformers 5.24.0, built without weights) for",
        f"{close} of the {len(of_class)} files that have one, active ones within {ACTIVE:.1%} for {close_active} of",
        f"{len(active_of)} mixtures of experts; where no class is public, the model card prints three digits. They are",
        "from:",
        "",
        *(f"* {source}" for source in SOURCES.values()),
        "",
        "| `model_type` | files | parts of its layers | parameters differ by | active differ by | names |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


def refused() -> list[str]:
    """What is refused: families by name, and keys with what they ask for."""
    rows = ["", "## What is refused", ""]
    rows += ["These families, by name:", "", "| `model_type` | why |", "|---|---|"]
    rows += [f"| `{name}` | {why} |" for name, why in sorted(REFUSED.items())]
    rows += [
        "",
        "These keys, in any family, unless their value switches them off:",
        "",
        "| key | it asks for |",
        "|---|---|",
    ]
    return rows + [f"| `{key}` | {why} |" for key, why in sorted(CHANGES.items())]


def page() -> str:
    """The whole page."""
    built_in: Mapping[str, Any] = {name: spec(name) for name in names()}
    total = f"\n{len(built_in)} models are built in: `meshwright models list` names them.\n"
    return HEAD + "\n".join([*table(), *beside()]) + "\n" + total + "\n".join([*real(), *refused()]) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
