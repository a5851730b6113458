"""Models that Galvatron's classes build: what they have not is refused, and a program starts them with our sizes.

Options of its trainer say no width of the MLP, no heads of keys and values and no epsilon:
`--set_model_config_manually` takes those of Llama-7B, with an inner width of 8/3 of the hidden one.

Source: galvatron/models/llama_hf and gpt_hf of hetu-galvatron 2.4.0: meta_configs/config_utils.py and
*Model_tensor_parallel.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.formats.megatron.model import model_flags
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec

PROGRAM = "start.py"
_FIX = "use a target that loads the model's own config.json, such as accelerate"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """A folder of its models."""

    folder: str
    module: str
    title: str
    fixed: dict[str, str]
    """What its classes build whatever is asked for, in options of Megatron-LM."""
    sizes: dict[str, str]
    """Galvatron's name of each option that says a size."""
    positions: str
    epsilon: str


_SIZES = ("--num-layers", "--hidden-size", "--num-attention-heads")
_NO_DROPOUT = {"--hidden-dropout": "0.0", "--attention-dropout": "0.0"}
_FAMILIES = {
    "llama": _Family(
        folder="llama_hf",
        module="LlamaModel_hybrid_parallel",
        title="Llama",
        fixed={
            "--normalization": "RMSNorm",
            "--disable-bias-linear": "",
            "--swiglu": "",
            "--untie-embeddings-and-output-weights": "",
            "--position-embedding-type": "rope",
            **_NO_DROPOUT,
        },
        sizes=dict(zip(_SIZES, ("n_layers", "dim", "n_heads"), strict=True))
        | {"--ffn-hidden-size": "ffn_dim", "--num-query-groups": "n_kv_heads", "--vocab-size": "vocab_size"},
        positions="n_positions",
        epsilon="norm_eps",
    ),
    "gpt2": _Family(
        folder="gpt_hf",
        module="GPTModel_hybrid_parallel",
        title="GPT-2",
        fixed={"--normalization": "LayerNorm", "--position-embedding-type": "learned_absolute"},
        sizes=dict(zip(_SIZES, ("n_layer", "n_embd", "n_head"), strict=True)) | {"--vocab-size": "vocab_size"},
        positions="n_positions",
        epsilon="layer_norm_epsilon",
    ),
}
_ELSEWHERE = ("--group-query-attention", "--kv-channels", "--ffn-hidden-size", "--norm-epsilon", "--vocab-size")
"""Options that another says too, or that are compared on their own."""


def problems(job: Job) -> Iterator[Problem]:
    """What part of the model its classes do not build."""
    model = job.model
    family = _FAMILIES.get(model.family)
    if family is None or model.is_moe or model.beside_decoder:
        why = f"its models are {', '.join(_FAMILIES)}"
        yield Problem(what=f"model: {model.name} is a {model.family}", why=why, fix=_FIX, field="model")
        return
    given, _, unsaid = model_flags(model)
    said = dict(given)
    yield from unsaid
    for flag, value in said.items():
        known = flag in family.sizes or flag in _ELSEWHERE or family.fixed.get(flag) == value
        if not known and flag not in _NO_DROPOUT and not _of_rope(flag):
            what, why = f"the model needs {flag} {value}".rstrip(), f"its {family.title} has no such part"
            yield Problem(what=what, why=why, fix=_FIX, field=flag)
    for flag, value in family.fixed.items():
        if said.get(flag) != value:
            what, why = f"the model is without {flag} {value}".rstrip(), f"its {family.title} is always built with it"
            yield Problem(what=what, why=why, fix=_FIX, field=flag)
    yield from _unlike(job, family, said)


def _of_rope(flag: str) -> bool:
    """Whether an option says how positions rotate, which settings of the model are asked for."""
    return flag.startswith("--rotary") or "rope" in flag


def _unlike(job: Job, family: _Family, said: dict[str, str]) -> Iterator[Problem]:
    """Sizes and constants that its classes take from others."""
    model, settings = job.model, job.model.settings
    if not model.learned_positions and (
        settings.rope_base != 10000
        or settings.rope_kind not in (None, "default")
        or settings.rope_share not in (None, 1)
    ):
        named = f"{settings.rope_base or 'not stated'}, {settings.rope_kind or 'not stated'}"
        why = "its Llama rotates with a base of 10000 and without scaling, whatever the config says"
        what = f"model: rope of {model.name} is {named}"
        yield Problem(what=what, why=why, fix=_FIX, field="model.settings.rope_base")
    # A layer of another kind has no heads, and is refused by its own name.
    heads = int(said.get("--num-attention-heads", 0))
    if heads and heads * int(said.get("--kv-channels", model.hidden // heads)) != model.hidden:
        why = "the width of a head is the hidden width over the heads"
        what = f"model: heads of {model.name} are {said['--kv-channels']} wide"
        yield Problem(what=what, why=why, fix=_FIX, field="--kv-channels")
    if "--ffn-hidden-size" not in family.sizes and int(said.get("--ffn-hidden-size", 0)) not in (0, 4 * model.hidden):
        what, why = f"model: the MLP is {said['--ffn-hidden-size']} wide", "that of its GPT-2 is 4 x the hidden width"
        yield Problem(what=what, why=why, fix=_FIX, field="--ffn-hidden-size")
    learned, length = model.learned_positions, job.workload.seq_len
    if learned and learned != length:
        what, why = f"workload: seq_len is {length}", "its GPT-2 has as many positions as a sequence has tokens"
        yield Problem(what=what, why=why, fix=f"use {learned}", field="workload.seq_len")


def asked(model: ModelSpec) -> list[str]:
    """Lines of the script that ask for what the model does not state."""
    if model.settings.norm_epsilon is not None:
        return []
    return [f"export NORM_EPSILON=${{NORM_EPSILON:?norm epsilon, which {model.family} as planned does not state}}"]


def program(job: Job) -> str:
    """A Python file that starts its trainer with the sizes of the model."""
    model = job.model
    family = _FAMILIES[model.family]
    said = dict(model_flags(model)[0]) | {"--vocab-size": str(model.vocab)}
    keys: dict[str, object] = {name: int(said[flag]) for flag, name in family.sizes.items() if flag in said}
    keys[family.positions] = job.workload.seq_len
    if model.family == "gpt2":
        share = float(said.get("--hidden-dropout", "0.1"))
        keys |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), share)
    stated = model.settings.norm_epsilon
    epsilon = 'float(os.environ["NORM_EPSILON"])' if stated is None else repr(stated)
    lines = [*(f'    "{name}": {value!r},' for name, value in keys.items()), f'    "{family.epsilon}": {epsilon},']
    package = f"galvatron.models.{family.folder}"
    return f'''"""Starts Galvatron's {family.title} with the sizes of the model, which its options do not all say."""

{"import os" + chr(10) if stated is None else ""}import runpy

import galvatron.core  # before the models, which need it loaded
from {package} import {family.module} as model

SIZES = {{
{chr(10).join(lines)}
}}
made = model.config_from_meta
model.config_from_meta = lambda named: made(dict(SIZES))

if __name__ == "__main__":
    runpy.run_module("{package}.train_dist", run_name="__main__")
'''
