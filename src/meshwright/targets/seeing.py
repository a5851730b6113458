"""Models that see: where their classes hold the tower, and which of their plans files can say.

Modules are those of the classes for AutoModelForImageTextToText in transformers 5.23.0 (2026-11),
https://github.com/huggingface/transformers/tree/main/src/transformers/models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.errors import Problem
from meshwright.specs.streams import Stream
from meshwright.targets.contract import Note
from meshwright.targets.sayable import Plan, Says

BESIDE = {
    "beside": Says(
        values=("a stream of vision", "cross attention"),
        why="files are written for models of text and images",
        fix="leave out --target: the plan holds whatever starts it",
    )
}
"""What a model may have beside a stack of causal layers over text, for programs that load its whole class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeing:
    """Where a class that sees holds its parts, by the start of the names of their weights."""

    text: str = "model.language_model"
    tower: tuple[str, ...] = ("model.vision_tower",)
    projector: tuple[str, ...] = ("model.multi_modal_projector",)

    def of(self, part: str) -> tuple[str, ...]:
        """Names of a part as `--freeze` calls it: vision, projector or text."""
        return {"vision": self.tower, "projector": self.projector}.get(part, (self.text, "lm_head"))


_USUAL = Seeing()
_NAMED = Seeing(tower=("model.vision_model",))
_MERGED = Seeing(tower=("model.visual.patch_embed", "model.visual.blocks"), projector=("model.visual.merger",))
_STACKED = Seeing(
    tower=("model.visual.patch_embed", "model.visual.pos_embed", "model.visual.blocks"),
    projector=("model.visual.merger", "model.visual.deepstack_merger_list"),
)
_SAMPLED = Seeing(
    tower=tuple(
        f"model.visual.{part}"
        for part in ("embeddings", "patch_embed", "blocks", "post_conv_layernorm", "post_layernorm")
    ),
    projector=("model.visual.merger", "model.visual.downsample"),
)
_CONNECTED = Seeing(text="model.text_model", tower=("model.vision_model",), projector=("model.connector",))
_LINED = replace(_USUAL, tower=("model.vision_tower", "model.image_newline"))
CLASSES: dict[str, Seeing] = {
    "aria": _USUAL,
    "aya_vision": _USUAL,
    "cohere2_vision": _USUAL,
    "deepseek_vl": replace(_NAMED, projector=("model.aligner",)),
    "gemma3": _USUAL,
    "glm46v": _SAMPLED,
    "glm4v": _SAMPLED,
    "glm4v_moe": _SAMPLED,
    "idefics2": _CONNECTED,
    "idefics3": _CONNECTED,
    "internvl": _USUAL,
    "kimi_k25": replace(_USUAL, projector=("model.mm_projector",)),
    "lfm2_vl": _USUAL,
    "lighton_ocr": Seeing(tower=("model.vision_encoder",), projector=("model.vision_projection",)),
    "llava": _USUAL,
    "llava_next": _LINED,
    "llava_onevision": _LINED,
    "mistral3": _USUAL,
    "mllama": _NAMED,
    "paddleocr_vl": Seeing(tower=("model.visual",), projector=("model.projector",)),
    "qianfan_ocr": _USUAL,
    "qwen2_5_vl": _MERGED,
    "qwen2_vl": _MERGED,
    "qwen3_5": replace(_STACKED, projector=("model.visual.merger",)),
    "qwen3_5_moe": replace(_STACKED, projector=("model.visual.merger",)),
    "qwen3_vl": _STACKED,
    "qwen3_vl_moe": _STACKED,
    "smolvlm": _CONNECTED,
    "video_llama_3": replace(_NAMED, projector=("model.projector",)),
    "vipllava": _USUAL,
}
"""Classes whose towers are priced here, by `model_type`."""
NAME_MISSING_LAYERS = frozenset(
    {
        "cohere2_vision",
        "deepseek_vl",
        "gemma3",
        "lfm2_vl",
        "llava",
        "llava_next",
        "llava_onevision",
        "vipllava",
    }
)
"""Classes whose `_no_split_modules` name layers that they have not, where FSDP of Accelerate 1.15 stops."""
_WHOLE_PARTS = ("vision", "projector", "text")


def sees(plan: Plan) -> bool:
    """Whether the class of the model has a tower, with or without images in the samples."""
    return plan.model.settings.seen_by is not None or images_of(plan) is not None


def images_of(plan: Plan) -> Stream | None:
    """The stream of images; None where samples are text alone."""
    return next((one for one in plan.model.streams if one.images is not None and not one.window_of), None)


def class_of(plan: Plan) -> Seeing:
    """Where the class of a model that sees holds its parts."""
    return CLASSES[plan.model.settings.seen_by or ""]


def frozen_names(plan: Plan) -> tuple[str, ...]:
    """Starts of the names of weights that are not trained, where no adapters are: a tower that nothing uses is none."""
    if not sees(plan) or plan.model.lora is not None:
        return ()
    parts = class_of(plan)
    if images_of(plan) is None:
        return (*parts.tower, *parts.projector)
    tuning = plan.model.tuning
    return tuple(name for one in (tuning.frozen if tuning else ()) for name in parts.of(one.part))


def outside_text(plan: Plan) -> str:
    """A pattern of the modules of a model that sees on which no adapters stand: all but its text."""
    return f"(?!{re.escape(class_of(plan).text)}\\.).*" if sees(plan) else ""


def trained_names(plan: Plan) -> tuple[str, ...]:
    """Starts of the names of weights that are trained, where no adapters are."""
    parts, frozen = class_of(plan), frozen_names(plan)
    every = (*parts.of("text"), *parts.tower, *parts.projector)
    return tuple(name for name in every if name not in frozen)


def freezes_wholes(plan: Plan) -> bool:
    """Whether what is frozen, without adapters, are the tower, the projector or the text as a whole."""
    tuning = plan.model.tuning
    return sees(plan) and tuning is not None and all(one.part in _WHOLE_PARTS for one in tuning.frozen)


def size_in_pixels(plan: Plan) -> tuple[int, int]:
    """Width and height of an image that has as many patches as the plan's: as nearly square as whole groups allow."""
    stream = images_of(plan)
    assert stream is not None
    assert stream.images is not None
    images = stream.images
    if images.size is not None:
        return images.size
    side = images.patch * images.merge
    groups = max(1, ((stream.length or 1) - images.extra) // images.merge**2)
    high = next(one for one in range(int(groups**0.5), 0, -1) if groups % one == 0)
    return groups // high * side, high * side


def images_per_sample(plan: Plan) -> int:
    """Images of a sample; 0 where it is text alone."""
    stream = images_of(plan)
    return 0 if stream is None else round(stream.sequences or 0)


def problems(plan: Plan, title: str, known: frozenset[str] | None = None) -> Iterator[Problem]:
    """What keeps a program that loads models of the transformers library from training one that sees.

    Args:
        plan: the plan of any model.
        title: the title of the program.
        known: `model_type` of those that it trains; None for all classes.
    """
    if not sees(plan):
        return
    said = plan.model.settings.seen_by
    if said not in CLASSES or (known is not None and said not in known):
        why = f"which modules of it {title} would freeze is not known here"
        if said in CLASSES:
            why = f"{title} knows the parts of {', '.join(sorted(known or ()))}"
        fix = "use another target, or the code that comes with the model"
        yield Problem(what=f"model: {plan.model.name} is of class {said}", why=why, fix=fix, field="model")
        return
    sequences = images_of(plan)
    if sequences is not None and sequences.sequences != images_per_sample(plan):
        why = "its script makes equal samples"
        yield Problem(
            what=f"plan: images is {sequences.sequences:g}", why=why, fix="use a whole number of images", field="images"
        )
    for name, degree in (
        ("tp", plan.strategy.tp),
        ("cp", plan.strategy.cp),
        ("pp", plan.found.pp),
        ("ep", plan.strategy.expert.ep),
    ):
        if degree > 1:
            why = f"how {title} cuts the tower of {said}, or the samples that it reads, over ranks is not known here"
            yield Problem(
                what=f"plan: {name} is {degree}", why=why, fix=f"use {name}1 and shards of data ranks", field=name
            )


NOTES = (
    Note(
        text="the tower of its class is loaded too, and frozen: --images trains with images",
        when=lambda plan: sees(plan) and images_of(plan) is None,
    ),
)
"""Notes for programs that load a model's whole class."""
