"""The script that the trainer of the transformers library is started with: the model, samples, and what is trained."""

from __future__ import annotations

from meshwright.targets import adapters, seeing
from meshwright.targets.sayable import Plan


def script(plan: Plan, weights: str = "", divided: str = "", devices: int | None = None) -> str:
    """A Python file that trains the model on random tokens.

    Args:
        plan: the plan that it runs.
        weights: format in which it makes weights that are trained whole; that of activations by default.
        divided: the file that says how the transformers library divides the model over ranks; none by default.
        devices: the number of devices of the job, where the batch of a step does not tell how many there are.
    """
    seen = seeing.sees(plan)
    samples = _SEEN if seen else _TOKENS.format(positions=_POSITIONS if _by_heads(plan) else "")
    return f'''"""{plan.model.name}: {plan.workload.seq_len} tokens a sequence, random data in place of yours.

Set MODEL to the Hugging Face id or folder of the model: its own config.json says all of its shape.
"""

{_imports(plan, divided)}

SEQ_LEN = {plan.workload.seq_len}
{_devices(devices)}{_images(plan)}ATTENTION = "{_attention(plan)}"


{samples}

{_made(plan, weights, divided)}


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
{_sequences(plan)}{_counted(devices)}    model = made(os.environ["MODEL"])
{_TRAINED_SEEING if seen else _TRAINED}

if __name__ == "__main__":
    main()
'''


_TOKENS = """class RandomTokens(torch.utils.data.Dataset):
    def __init__(self, vocab):
        self.vocab = vocab

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        tokens = torch.randint(self.vocab, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {{"input_ids": tokens, "labels": tokens{positions}}}
"""
_POSITIONS = ', "position_ids": torch.arange(SEQ_LEN)'
_TRAINED = """    vocab = model.config.get_text_config().vocab_size
    Trainer(model=model, args=arguments, train_dataset=RandomTokens(vocab)).train()
"""
_SEEN = '''class RandomSamples(torch.utils.data.Dataset):
    """The images of a sample as the model's processor cuts them, and random words behind them."""

    def __init__(self, processor):
        parts = [{"type": "image", "image": Image.new("RGB", (WIDTH, HEIGHT))}] * IMAGES
        asked = [{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}]
        said = {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
        self.begun = dict(processor.apply_chat_template(asked, **said))
        words, added = processor.tokenizer.get_vocab(), processor.tokenizer.get_added_vocab()
        self.words = torch.tensor([number for word, number in words.items() if word not in added])
        self.left = SEQ_LEN - self.begun["input_ids"].shape[1]
        if self.left < 0:
            sys.exit(f"{IMAGES} images take {SEQ_LEN - self.left} tokens, the sequence has {SEQ_LEN}")

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        tokens = self.begun["input_ids"]
        more = torch.randint(len(self.words), (1, self.left), generator=torch.Generator().manual_seed(index))
        sample = {name: self.longer(value) for name, value in self.begun.items()}
        sample["input_ids"] = torch.cat([tokens, self.words[more]], dim=1)
        labels = sample["input_ids"].clone()
        labels[:, : tokens.shape[1]] = -100
        return sample | {"labels": labels}

    def longer(self, value):
        if value.shape[:2] != self.begun["input_ids"].shape:
            return value  # of the images, not of the tokens
        return torch.cat([value, value[:, -1:].expand(-1, self.left, *value.shape[2:])], dim=1)


def together(samples):
    return {name: torch.cat([one[name] for one in samples]) for name in samples[0]}
'''
_TRAINED_SEEING = """    for name, weight in model.named_parameters():
        if name.startswith(FROZEN):
            weight.requires_grad_(False)
    # Some classes name layers that they have in other models, and FSDP would look for them.
    kinds = {type(module).__name__ for module in model.modules()}
    model._no_split_modules = [name for name in model._no_split_modules or () if name in kinds]
    samples = RandomSamples(AutoProcessor.from_pretrained(os.environ["MODEL"]))
    Trainer(model=model, args=arguments, train_dataset=samples, data_collator=together).train()
"""


def _images(plan: Plan) -> str:
    """Lines of the script that say the images of a sample, and what of the model is not trained."""
    if not seeing.sees(plan):
        return ""
    width, height = seeing.size_in_pixels(plan) if seeing.images_of(plan) else (0, 0)
    frozen = "".join(f'"{name}", ' for name in seeing.frozen_names(plan)).rstrip()
    return f"IMAGES, WIDTH, HEIGHT = {seeing.images_per_sample(plan)}, {width}, {height}\nFROZEN = ({frozen})\n"


def _imports(plan: Plan, divided: str) -> str:
    """What the script imports."""
    tuned, seen = plan.model.lora is not None, seeing.sees(plan)
    stored = any(name == adapters.QUANTIZED for name, _ in adapters.files(plan))
    names = [_class(plan), "HfArgumentParser", "Trainer", "TrainingArguments", *(["AutoProcessor"] if seen else [])]
    names += ["BitsAndBytesConfig"] if stored else [] if tuned or divided else ["AutoConfig"]
    modules = [*(["json"] if stored or divided else []), "os", "sys"]
    head = "".join(f"import {name}\n" for name in modules)
    ulysses = (
        "from accelerate.parallelism_config import ParallelismConfig\n"
        "from accelerate.utils import DeepSpeedSequenceParallelConfig\n"
    )
    own = "\nfrom transformers.distributed import DistributedConfig" if divided else ""
    return (
        f"{head}\nimport torch\n{ulysses if _by_heads(plan) else ''}"
        f"{'from PIL import Image' + chr(10) if seen else ''}from transformers import {', '.join(sorted(names))}{own}"
    )


def _class(plan: Plan) -> str:
    """The class that makes the model."""
    return "AutoModelForImageTextToText" if seeing.sees(plan) else "AutoModelForCausalLM"


def _by_heads(plan: Plan) -> bool:
    """Whether sequences are cut by heads, which DeepSpeed does inside the trainer."""
    return any(level.kind == "a2a" for level in plan.strategy.context)


def _sequences(plan: Plan) -> str:
    """Lines of the script that tell the trainer to cut sequences by heads (Ulysses)."""
    if not _by_heads(plan):
        return ""
    return f"""    arguments.parallelism_config = ParallelismConfig(
        sp_backend="deepspeed",
        sp_size={plan.strategy.cp},
        dp_shard_size={plan.strategy.dp},
        sp_handler=DeepSpeedSequenceParallelConfig(
            sp_seq_length=SEQ_LEN, sp_seq_length_is_variable=False, sp_attn_implementation=ATTENTION
        ),
    )
"""


def _devices(devices: int | None) -> str:
    """The line of the script that says how many devices make the batch of a step."""
    return f"DEVICES = {devices}\n" if devices is not None else ""


def _counted(devices: int | None) -> str:
    """Lines of the script that stop where others start it."""
    if devices is None:
        return ""
    return """    if arguments.world_size != DEVICES:
        sys.exit(f"the plan is of {DEVICES} devices, started are {arguments.world_size}")
"""


def _made(plan: Plan, weights: str, divided: str) -> str:
    """The function of the script that makes the model: its weights as they start, or frozen ones with adapters."""
    lora, dtype, model = plan.model.lora, _FORMATS[plan.precision.activations], _class(plan)
    if lora is None:
        # The format is said: without it weights are in that of the config, 16 bits in most, and stay in it.
        return (_DIVIDED if divided else _FROM_CONFIG).format(dtype=weights or dtype, file=divided, model=model)
    if lora.base == "fp32":
        return _WITH_ADAPTERS.format(dtype="float32", stored="", model=model)
    stored = "" if lora.base is None else _STORED.format(file=adapters.QUANTIZED, dtype=dtype)
    return _WITH_ADAPTERS.format(dtype=dtype, stored=stored, model=model)


_FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_FROM_CONFIG = """def made(model):
    config = AutoConfig.from_pretrained(model)
    return {model}.from_config(config, attn_implementation=ATTENTION, dtype="{dtype}")"""
_DIVIDED = """def made(model):
    with open("{file}") as file:
        parts = DistributedConfig(**json.load(file))
    said = {{"attn_implementation": ATTENTION, "dtype": "{dtype}"}}
    return {model}.from_pretrained(model, distributed_config=parts, **said)"""
_WITH_ADAPTERS = """def made(model):
    from peft import PeftConfig, get_peft_model

    said = {{"attn_implementation": ATTENTION, "dtype": "{dtype}"}}{stored}
    return get_peft_model({model}.from_pretrained(model, **said), PeftConfig.from_pretrained("."))"""
_STORED = """
    with open("{file}") as file:
        stored = json.load(file)
    said["quantization_config"] = BitsAndBytesConfig(
        **stored, bnb_4bit_compute_dtype="{dtype}", bnb_4bit_quant_storage="{dtype}"
    )"""


def _attention(plan: Plan) -> str:
    return "eager" if plan.workload.attention_kernel == "materialised" else "sdpa"
