"""OLMo-core's scripts: sizes of the published models, tokens of batches, and what is asked or refused."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport
from meshwright.targets import target_of_file
from meshwright.targets.trainers.olmo_core_module import script_keys

SEVEN = """
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.train.train_module import TransformerTrainModuleConfig

LENGTH = 4096


def build_config(opts, overrides):
    tokenizer_config = TokenizerConfig.dolma2()
    sequence_length = opts.sequence_length or LENGTH
    model_config = TransformerConfig.olmo2_7B(vocab_size=tokenizer_config.padded_vocab_size(), fused_ops=False)
    data_loader_config = NumpyDataLoaderConfig(global_batch_size=2**10 * LENGTH, seed=1)
    train_module_config = TransformerTrainModuleConfig(
        rank_microbatch_size=2 * LENGTH,
        max_sequence_length=sequence_length,
        optim=SkipStepAdamWConfig(lr=3e-4),
        compile_model=True,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.hsdp, param_dtype=DType.bfloat16, reduce_dtype=DType.float32
        ),
        ac_config=TransformerActivationCheckpointingConfig(TransformerActivationCheckpointingMode.full),
    )
    if get_world_size() >= 1024:
        train_module_config.rank_microbatch_size //= 2
    return ExperimentConfig(model=model_config, train_module=train_module_config, data_loader=data_loader_config)
"""


def checked(tmp_path: Path, text: str = SEVEN, **more: object) -> CheckReport:
    file = tmp_path / "seven.py"
    file.write_text(text)
    return check(source=file, **{"gpus": "64xH100", "search": False, **more})


@pytest.mark.parametrize(
    ("made", "parameters"),
    [("olmo2_7B", 7_298_617_344), ("olmo2_13B", 13_716_198_400), ("olmo3_32B", 32_234_279_936)],
)
def test_published_models_are_the_sizes_they_are(made: str, parameters: int, tmp_path: Path) -> None:
    report = checked(tmp_path, SEVEN.replace("olmo2_7B", made))
    assert report.inputs is not None
    assert report.inputs.model.parameters == parameters


WINDOWS = """    model_config.block.attention.sliding_window = SlidingWindowAttentionConfig(
        force_full_attention_on_first_layer={first}, force_full_attention_on_last_layer=True, pattern={pattern}
    )
    model_config.block.attention.use_flash = True
    return"""


def test_windows_that_a_script_sets_are_those_of_its_layers(tmp_path: Path) -> None:
    set_ = SEVEN.replace("    return", WINDOWS.format(first=False, pattern=[2048, 2048, 2048, -1]))
    report, published = checked(tmp_path, set_), checked(tmp_path, SEVEN.replace("olmo2_7B", "olmo3_7B"))
    assert report.ok
    assert report.inputs is not None
    assert published.inputs is not None
    windows = [layer.attention.window for layer in islice(report.inputs.model.layers(), 8)]
    assert windows == [2048, 2048, 2048, None] * 2
    assert [layer.attention.window for layer in islice(published.inputs.model.layers(), 4)] == [
        *(4096, 4096, 4096, None)
    ]
    assert report.launch is not None
    assert "model.sliding_window.pattern" in {one.option for one in report.launch.said}


@pytest.mark.parametrize(
    ("first", "pattern"), [(True, [2048, 2048, 2048, -1]), (False, [2048, -1]), (False, [2048, 1024, 2048, -1])]
)
def test_windows_of_another_pattern_are_refused(first: bool, pattern: list[int], tmp_path: Path) -> None:
    report = checked(tmp_path, SEVEN.replace("    return", WINDOWS.format(first=first, pattern=pattern)))
    assert [one.field for one in report.violations] == ["model.sliding_window"]


def test_windows_under_a_condition_are_not_taken(tmp_path: Path) -> None:
    body = WINDOWS.format(first=False, pattern=[2048, 2048, 2048, -1]).replace("\n    ", "\n        ")
    text = SEVEN.replace("    return", f"    if opts.narrow:\n    {body}".replace("        return", "    return"))
    report = checked(tmp_path, text)
    assert any("is not read" in one.what for one in report.violations)


def test_batches_count_tokens_and_copies_are_nodes(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert target_of_file("seven.py", SEVEN) == "olmo-core"
    assert report.ok
    assert report.name == "dp64.hsdp8.mbs2.gbs1024.rc-full"
    assert report.inputs is not None
    assert report.inputs.workload.seq_len == 4096
    assert report.launch is not None
    said = {one.option: (one.value, one.place) for one in report.launch.said}
    assert said["train_module.rank_microbatch_size"] == ("8192", "seven.py:14")


def test_a_branch_on_the_devices_is_followed_where_they_are_known() -> None:
    assert not script_keys("seven.py", SEVEN, 64).problems
    assert "rank_microbatch_size" in script_keys("seven.py", SEVEN, 1024).problems[0].why


@pytest.mark.parametrize(
    ("modules", "plan"),
    [
        ('["blocks.*.feed_forward"]', "rc-sel-mlp"),
        ('[f"blocks.{i}.feed_forward" for i in range(32)]', "rc-sel-mlp"),
        ('[f"blocks.{i}.feed_forward" for i in range(16)]', None),
        ('[f"blocks.{i:02d}.feed_forward" for i in range(32)]', None),
        ('[f"blocks.{i}.feed_forward" for i in range(10**9)]', None),
    ],
)
def test_modules_may_be_listed_by_counting(modules: str, plan: str | None, tmp_path: Path) -> None:
    mode = "mode=TransformerActivationCheckpointingMode.selected_modules"
    report = checked(
        tmp_path, SEVEN.replace("TransformerActivationCheckpointingMode.full", f"{mode}, modules={modules}")
    )
    if plan is None:
        assert any("ac_config" in one.what for one in report.violations)
    else:
        assert report.ok
        assert report.name.endswith(plan)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("fused_ops=False", "block_mods={}", "model.block_mods is 'given'"),
        ("olmo2_7B", "ngpt_271M", "model is 'ngpt_271M'"),
        ("SkipStepAdamWConfig", "MuonConfig", "train_module.optim is 'MuonConfig'"),
        ("2 * LENGTH", "opts.size", "train_module.rank_microbatch_size is not known"),
        ("2 * LENGTH", "1000", "train_module.rank_microbatch_size is 1000"),
        ("Mode.full", "Mode.budget", "train_module.ac_config is 'budget'"),
        ("compile_model=True", "pp_config=PipelineConfig(degree=3)", "train_module.pp_config.degree is 3"),
        ("compile_model=True", "pp_config=PipelineConfig(degree=2)", "train_module.dp_config.name is 'hsdp'"),
        ("olmo2_7B", "small_hybrid_moe", "model is 'small_hybrid_moe'"),
        ("    return", "    model_config.block.name = 'x'\n    return", " is not read"),
    ],
)
def test_what_no_plan_says_is_refused_or_asked(old: str, new: str, told: str, tmp_path: Path) -> None:
    report = checked(tmp_path, SEVEN.replace(old, new))
    assert any(told in violation.what for violation in report.violations)


def test_what_builds_the_configuration_may_say_length_and_batch(tmp_path: Path) -> None:
    loader = "    data_loader_config = NumpyDataLoaderConfig(global_batch_size=2**10 * LENGTH, seed=1)\n"
    text = SEVEN.replace(loader, "").replace("opts.sequence_length or LENGTH", "common.max_sequence_length")
    text += (
        "\n\nmain(config_builder=partial(build_config, global_batch_size=512 * LENGTH, max_sequence_length=LENGTH))\n"
    )
    assert checked(tmp_path, text).name == "dp64.hsdp8.mbs2.gbs512.rc-full"


def test_keys_given_stand_over_the_script(tmp_path: Path) -> None:
    report = checked(tmp_path, settings={"train_module.dp_config.num_replicas": "1"})
    assert report.name == "dp64.fsdp.mbs2.gbs1024.rc-full"


def fsdp(more: str) -> str:
    return SEVEN.replace("DataParallelType.hsdp", "DataParallelType.fsdp").replace("compile_model=True", more)


@pytest.mark.parametrize(
    ("said", "plan", "layers"),
    [
        ("degree=4, schedule=PipelineScheduleType.single_1F1B", "pp4.dp16.fsdp-keep", (8, 8, 8, 8)),
        ("degree=4", "pp4.vpp2.dp16.fsdp-keep", (4,) * 8),
        ("degree=3, schedule=PipelineScheduleType.gpipe", None, (10, 11, 11)),
        ("degree=2, split_points=[7, 16, 25]", "pp2.vpp2.dp32.fsdp-keep", (7, 9, 9, 7)),
    ],
)
def test_stages_are_those_that_it_cuts(said: str, plan: str | None, layers: tuple[int, ...], tmp_path: Path) -> None:
    text = fsdp(f"pp_config=TransformerPipelineParallelConfig({said})").replace("2**10", "960")
    report = checked(tmp_path, text, gpus="48xH100" if plan is None else "64xH100")
    assert report.launch is not None
    assert report.launch.layout == layers
    if plan is not None:
        assert str(report.name).startswith(plan)


EXPERTS = """TransformerConfig.llama_like_moe(
        vocab_size=100352, d_model=1024, n_layers=4, n_heads=16, num_experts=16, top_k=2,
        expert_hidden_size=int(0.5 * 1024), shared_expert_hidden_size=1024 * 2, dropless=True)"""


def test_experts_are_spread_over_the_ranks_of_a_copy(tmp_path: Path) -> None:
    spread = "ep_config=TransformerExpertParallelConfig(degree=-1)"
    text = SEVEN.replace("compile_model=True", spread).replace("fused_ops=False", "")
    report = checked(tmp_path, text.replace("olmo2_7B", "olmoe_1B_7B"))
    assert report.ok, report.violations
    assert report.name == "ep8.dp64.hsdp8.mbs2.gbs1024.rc-full"
    assert report.inputs is not None
    each = 4 * 2048**2 + 64 * 3 * 2048 * 1024 + 64 * 2048 + 4 * 2048  # attention, experts, router, norms
    assert report.inputs.model.parameters == 16 * each + 2048 + 2 * 100_352 * 2048
    started = text.index("TransformerConfig.olmo2_7B(")
    made = text[started : text.index("\n", started)]
    shared = checked(tmp_path, text.replace(made, EXPERTS))
    assert shared.ok, shared.violations
    refused = checked(tmp_path, text.replace(made, EXPERTS.replace("dropless=True", "capacity_factor=1.05")))
    assert [one.field for one in refused.violations] == ["model.capacity_factor"]
    other = checked(tmp_path, text.replace("degree=-1", "degree=4").replace("olmo2_7B", "olmoe_1B_7B"))
    assert [one.field for one in other.violations] == ["train_module.ep_config.degree"]


@pytest.mark.parametrize(
    ("said", "low", "sent"),
    [
        ("ao=AOFloat8LinearConfig.recommended()", "fp8", "fp8"),
        ("ao_recipe=AOFloat8LinearRecipe.rowwise", "fp8", None),
        ("ao_mx=AOMXLinearConfig.mxfp8_cublas_rceil()", "mxfp8", None),
        ("ao=AOFloat8LinearConfig.recommended(), enabled=False", "bf16", None),
    ],
)
def test_products_in_8_bits_are_on_unless_they_are_off(said: str, low: str, sent: str | None, tmp_path: Path) -> None:
    report = checked(
        tmp_path, SEVEN.replace("compile_model=True", f"float8_config=Float8Config({said})"), gpus="64xB200"
    )
    assert report.ok, report.violations
    assert report.inputs is not None
    precision = report.inputs.workload.precision
    assert (precision.compute, precision.gathered) == (low, sent)
