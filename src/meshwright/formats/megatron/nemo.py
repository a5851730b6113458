"""The config of a GPT model of NeMo 1 as options of Megatron-LM, with what no option says.

Source: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and nemo/collections/nlp/models/language_modeling/
megatron_base_model.py of NeMo 1.23 (2024); interpolations as OmegaConf 2.3 has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from meshwright.errors import Problem, UnsupportedError

Table = Mapping[str, Any]
Option = tuple[str, str | None, str]
"""An option, its value, None for switches, and the key that says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoConfig:
    """What a config says."""

    options: tuple[Option, ...]
    launcher: str = ""
    """What starts as many processes as the trainer."""
    problems: tuple[Problem, ...] = ()
    """Settings that are not read."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """What no option says: adapters."""


_NUMBERS = (
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "kv_channels",
    "max_position_embeddings",
    "make_vocab_size_divisible_by",
    "hidden_dropout",
    "attention_dropout",
    "position_embedding_type",
    "moe_router_topk",
    "moe_token_dispatcher_type",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "expert_tensor_parallel_size",
)
"""Keys with a value that are options of the same name."""
_RENAMED = {
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "encoder_seq_length": "--seq-length",
    "num_moe_experts": "--num-experts",
    "layernorm_epsilon": "--norm-epsilon",
    "rotary_percentage": "--rotary-percent",
    "rotary_base": "--rotary-base",
    "override_vocab_size": "--vocab-size",
    "num_query_groups": "--num-query-groups",
}
_SWITCHES = {
    "sequence_parallel": "--sequence-parallel",
    "qk_layernorm": "--qk-layernorm",
    "qkv_bias": "--add-qkv-bias",
    "fp32_residual_connection": "--fp32-residual-connection",
    "scale_positional_embedding": "--use-rope-scaling",
    "moe_grouped_gemm": "--moe-grouped-gemm",
    "cross_entropy_loss_fusion": "--cross-entropy-loss-fusion",
    "ub_tp_comm_overlap": "--tp-comm-overlap",
}
_OFF = {
    "bias": "--disable-bias-linear",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "masked_softmax_fusion": "--no-masked-softmax-fusion",
    "bias_dropout_add_fusion": "--no-bias-dropout-fusion",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
}
"""Keys that are true by default, with the option that says false."""
_ACTIVATIONS = {
    "swiglu": "--swiglu",
    "fast-swiglu": "--swiglu",
    "squared-relu": "--squared-relu",
    "gelu": None,
}
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}
_POSITIONS = ("rope", "learned_absolute", "none")
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_PLAIN = ("fused_adam", "adam", "adamw", "megatron_fused_adam")
_TARGETS = {
    "attention_qkv": "linear_qkv",
    "attention_dense": "linear_proj",
    "mlp_fc1": "linear_fc1",
    "mlp_fc2": "linear_fc2",
}
"""Where adapters stand, by NeMo's names and Megatron-Core's."""


def nemo_config(data: Any) -> NemoConfig | None:
    """What a config of NeMo 1 says; None of other tables.

    Args:
        data: the table of the file; that of a launcher may stand in a table of its own, `training`.

    Raises:
        UnsupportedError: it trains an encoder, or a tower of images, too.
    """
    root = data if isinstance(data, dict) else {}
    inner = next((name for name in _GROUPS if isinstance(root.get(name), dict) and "model" in root[name]), None)
    root = root[inner] if inner is not None else root
    model, trainer = root.get("model"), root.get("trainer")
    other = next((name for name in _OTHERS if isinstance(model, dict) and model.get(name) not in (None, False)), None)
    split = isinstance(model, dict) and "pipeline_model_parallel_split_rank" in model and "num_layers" not in model
    other = "pipeline_model_parallel_split_rank" if split else other
    other = "bert_binary_head" if isinstance(model, dict) and "bert_binary_head" in model else other
    if (why := _trains_none(str(root.get("name") or ""))) is not None:
        what = f"the config is {str(root['name'])[:60]}"
        raise UnsupportedError(Problem(what=what, why=why, fix="check a config that trains GPT", field="name"))
    if other is not None:
        why = f"model.{other} is of another model, or of more than one, whose plan would be read wrong"
        raise UnsupportedError(Problem(what="the model is no plain decoder", why=why, fix="check a config of GPT"))
    if not isinstance(model, dict) or not isinstance(trainer, dict) or "_target_" in model:
        return None
    if not {"micro_batch_size", "tensor_model_parallel_size"} <= model.keys():
        return None
    reader = _Config(root=root)
    options = tuple(reader.options())
    sizes = [reader.value("trainer", name) for name in ("devices", "num_nodes")]
    known = all(type(size) is int and size > 0 for size in sizes)
    launcher = f"torchrun --nproc_per_node {sizes[0]} --nnodes {sizes[1]}" if known else ""
    workload = reader.adapters()
    return NemoConfig(options=options, launcher=launcher, problems=tuple(reader.problems), workload=workload)


_OTHERS = (
    *("mm_cfg", "encoder", "decoder", "patch_dim", "img_h", "bert_binary_head", "retro", "vision", "text"),
    *("unet_config", "first_stage_key", "unet", "speech_encoder", "modality_adapter", "perception"),
)
"""Keys of image and speech models, of encoders and of retrievers."""
_NAMED = {
    r"infer|inference|eval|generate|export|ptq": "it generates, evaluates or converts a model",
    r"t0|t5|ul2|bart": "it trains an encoder and a decoder",
    r"griffin|mamba|hyena": "its layers mix tokens by recurrences or convolutions, which its keys do not tell",
    r"retro": "its sequences look at texts that are retrieved, through an encoder",
    r"distill|prune": "it runs a second model, or cuts one",
}
"""What a config is, by a part of its name."""


def _trains_none(name: str) -> str | None:
    """Why a config trains no decoder of attention, by its name; None where it may."""
    found = (why for part, why in _NAMED.items() if re.search(rf"(?:^|_)(?:{part})(?:_|$)", name))
    return next((f"by its name {why}" for why in found), None)


_FROZEN = ("virtual_prompt_style", "prompt_learning", "ia3_tuning", "adapter_tuning")
"""Keys of trainings of prompts and of parts beside a frozen model."""
_GROUPS = ("training", "fine_tuning", "peft", "prompt_learning")
"""Tables of NeMo's launcher, under whose name its configs are kept and name themselves."""


@dataclass(slots=True, kw_only=True)
class _Config:
    """A config with its interpolations resolved as they are asked for."""

    root: Table
    problems: list[Problem] = field(default_factory=list)

    def value(self, *path: str) -> Any:
        """The value at a path, its interpolations resolved; None where there is none."""
        at: Any = self.root
        for name in path:
            at = at.get(name) if isinstance(at, dict) else None
        return _resolved(at, path, self.root)

    def refuse(self, path: str, value: object, why: str, fix: str = "") -> None:
        """Note a setting that is not read."""
        self.problems.append(Problem(what=f"{path} is {value!r:.80}", why=why, fix=fix, field=path))

    def options(self) -> Iterator[Option]:
        """Options of the model, its optimizer and the number formats."""
        yield from self._numbers()
        for names, stated in ((_SWITCHES, True), (_OFF, False)):
            for name, option in names.items():
                if self.value("model", name) is stated:
                    yield option, None, name
        if self.value("model", "encoder_seq_length") is None:
            length = self.value("model", "data", "train_ds", "max_seq_length")
            if length is not None:
                yield "--seq-length", _text(length), "max_seq_length"
        yield from self._kinds()
        yield from self._recompute()
        yield from self._formats()
        yield from self._optimizer()
        yield from self._tokenizer()
        self._others()

    def _numbers(self) -> Iterator[Option]:
        for name, option in ({one: f"--{one.replace('_', '-')}" for one in _NUMBERS} | _RENAMED).items():
            value = self.value("model", name)
            if value is None or (name, value) == ("moe_router_topk", 0):
                continue
            if name == "rotary_base" and isinstance(value, float) and value.is_integer():
                value = int(value)
            yield option, _text(value), name
        if self.value("model", "num_query_groups") is not None:
            yield "--group-query-attention", None, "num_query_groups"

    def _kinds(self) -> Iterator[Option]:
        activation = str(self.value("model", "activation") or "gelu")
        if activation not in _ACTIVATIONS:
            self.refuse("model.activation", activation, f"{', '.join(_ACTIVATIONS)} are read", "name the model instead")
        elif option := _ACTIVATIONS[activation]:
            yield option, None, "activation"
        norm = self.value("model", "normalization")
        norm = norm.lower() if isinstance(norm, str) else norm  # Megatron-Core's own names are taken, too
        if norm not in (None, *_NORMS):
            self.refuse("model.normalization", norm, f"{', '.join(_NORMS)} are read", "name the model instead")
        elif norm is not None:
            yield "--normalization", _NORMS[norm], "normalization"
            if norm == "layernorm1p":
                yield "--apply-layernorm-1p", None, "normalization"
        positions = self.value("model", "position_embedding_type")
        if positions not in (None, *_POSITIONS):
            self.refuse("model.position_embedding_type", positions, f"{', '.join(_POSITIONS)} are read")

    def _recompute(self) -> Iterator[Option]:
        granularity = self.value("model", "activations_checkpoint_granularity")
        if granularity is None:
            return
        yield "--recompute-granularity", _text(granularity), "activations_checkpoint_granularity"
        for name in ("method", "num_layers"):
            value = self.value("model", f"activations_checkpoint_{name}")
            if value is not None and granularity == "full":
                yield f"--recompute-{name.replace('_', '-')}", _text(value), f"activations_checkpoint_{name}"

    def _formats(self) -> Iterator[Option]:
        precision = str(self.value("trainer", "precision") or "32").removesuffix("-mixed")
        option = {"bf16": "--bf16", "16": "--fp16"}.get(precision)
        if option is not None:
            yield option, None, "precision"
            if self.value("model", "megatron_amp_O2") is False:
                why = "its weights stay in fp32 under autocast; priced are 16-bit weights beside fp32 copies"
                self.refuse("model.megatron_amp_O2", False, why, "use megatron_amp_O2: True")
        if self.value("model", "fp8") is True:
            low = "e4m3" if self.value("model", "fp8_e4m3") is True else "hybrid"
            yield "--fp8-format", low, "fp8"
            if self.value("model", "fp8_params") is True:
                yield "--fp8-param-gather", None, "fp8_params"

    def _optimizer(self) -> Iterator[Option]:
        name = str(self.value("model", "optim", "name") or "")
        if name in _SHARDED:
            yield "--use-distributed-optimizer", None, "optim"
            for key, option in (
                ("overlap_grad_sync", "--overlap-grad-reduce"),
                ("overlap_param_sync", "--overlap-param-gather"),
            ):
                if self.value("model", "optim", key) is True:
                    yield option, None, key
            if str(self.value("model", "optim", "grad_sync_dtype")) in ("bf16", "torch.bfloat16"):
                yield "--grad-reduce-in-bf16", None, "grad_sync_dtype"
        elif name and name not in _PLAIN:
            self.refuse("model.optim.name", name, f"{', '.join((*_SHARDED, *_PLAIN))} are read")

    def _tokenizer(self) -> Iterator[Option]:
        kind, model = (self.value("model", "tokenizer", name) for name in ("type", "model"))
        library = self.value("model", "tokenizer", "library")
        if library == "huggingface" and isinstance(kind, str):
            yield "--tokenizer-type", "HuggingFaceTokenizer", "library"
            yield "--tokenizer-model", kind, "type"
        elif isinstance(kind, str):
            yield "--tokenizer-type", kind, "type"
        elif isinstance(model, str) and "$" not in model:
            yield "--tokenizer-model", model, "model"

    def _others(self) -> None:
        """Settings that change a plan and that no option says."""
        if self.value("model", "fsdp") is True:
            self.refuse("model.fsdp", True, "its shards are not read; whole copies are priced", "use fsdp: False")
        if self.value("model", "cpu_offloading") is True:
            why = "activations in the host's memory are not read from NeMo's configs"
            self.refuse("model.cpu_offloading", True, why, "use cpu_offloading: False")
        for name in (
            "num_micro_batches_with_partial_activation_checkpoints",
            "activations_checkpoint_layers_per_pipeline",
        ):
            if self.value("model", name):
                why = "stages, or micro-batches, recompute different layers, which no row says"
                self.refuse(f"model.{name}", self.value("model", name), why, "use null")
        block = self.value("model", "transformer_block_type")
        if block not in (None, "pre_ln"):
            self.refuse("model.transformer_block_type", block, "norms before a layer are read", "use pre_ln")

    def adapters(self) -> dict[str, Any]:
        """LoRA as a workload has it."""
        for name in _FROZEN:
            if self.value("model", name) not in (None, "no-prompts"):
                why = "it trains parts beside a frozen model, which are not read; full training is priced"
                self.refuse(
                    f"model.{name}", self.value("model", name), why, "check a config of pretraining, SFT or LoRA"
                )
        scheme = self.value("model", "peft", "peft_scheme")
        if scheme in (None, "null", "none"):
            return {}
        if scheme != "lora":
            self.refuse("model.peft.peft_scheme", scheme, "lora is read; full training is priced", "use lora")
            return {}
        own = self.value("model", "peft", "lora_tuning") or {}
        named = own.get("target_modules") or ["attention_qkv"]
        if "all" in named:
            named = list(_TARGETS)
        unknown = [name for name in named if name not in _TARGETS]
        rank = own.get("adapter_dim", 32)
        if unknown or type(rank) is not int:
            self.refuse("model.peft.lora_tuning.target_modules", named, f"{', '.join(_TARGETS)} are read")
            return {}
        return {"lora": {"r": rank, "targets": [_TARGETS[name] for name in named]}}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_INNER = re.compile(r"\$\{([^${}]*)\}")
_DEEPEST = 16


def _resolved(value: Any, path: tuple[str, ...], root: Table) -> Any:
    """A value with its interpolations; what they leave open stands as a variable of bash, which is asked for."""
    if value == "???":
        return f"${{{path[-1]}}}"
    for _ in range(_DEEPEST):
        match = _INNER.search(value) if isinstance(value, str) else None
        if match is None:
            return value
        found = _looked_up(match[1].strip(), path, root)
        if found is None:
            return re.sub(r"\$\{oc\.env:(\w+)(?:,([^}]*))?\}", _variable, value) if "oc.env" in value else value
        value = found if match[0] == value else f"{value[: match.start()]}{found}{value[match.end() :]}"
    return value


def _variable(match: re.Match[str]) -> str:
    return f"${{{match[1]}}}" if match[2] is None else f"${{{match[1]}:-{match[2]}}}"


def _looked_up(text: str, path: tuple[str, ...], root: Table) -> Any:
    """What an interpolation stands for; None where that is not in the config."""
    resolver, colon, rest = text.partition(":")
    if colon:
        numbers = [part.strip() for part in rest.split(",")]
        if resolver == "multiply" and all(re.fullmatch(r"\d{1,9}", part) for part in numbers):
            return prod(int(part) for part in numbers)
        return None
    dots = len(text) - len(text.lstrip("."))
    names = text.lstrip(".").split(".")
    if dots:
        names = [*path[: len(path) - dots], *names]
    elif names[0] in _GROUPS and names[0] not in root:
        names = names[1:]
    at: Any = root
    for name in names:
        at = at.get(name) if isinstance(at, dict) else None
    return None if isinstance(at, (dict, list)) or at is None else at
