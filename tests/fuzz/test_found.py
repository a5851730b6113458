"""Inputs that once ended in a traceback, a hang or a file cut off: each is refused with its rule, or answered."""

from __future__ import annotations

import json
import re
import struct
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.cli import main
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.fields.kinds import Number, Whole, shortened
from meshwright.formats.expert_load import expert_load_of
from meshwright.formats.files import parsed
from meshwright.formats.gguf import config_of_gguf
from meshwright.formats.huggingface import read_config
from meshwright.formats.logs import read_log
from meshwright.formats.logs.out_of_memory import read_out_of_memory
from meshwright.formats.measured.fold import fabric_bytes_per_s
from meshwright.formats.megatron.options import known_options
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import read_script
from meshwright.formats.shell.filters import printf
from meshwright.formats.shell.state import MAX_STEPS
from meshwright.library.calibration import read_calibration
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device
from meshwright.library.models import resolve
from meshwright.report.words.identities import identities
from meshwright.schedules import SCHEDULES
from meshwright.search.tuners.store import storage_path
from meshwright.specs.job import Job
from meshwright.specs.plan import StrategyRun
from meshwright.specs.row_text import parse_row
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from meshwright.specs.workload import Workload
from tests.answers.schemas import faults
from tests.estimate.mixed import Stage, plan_of
from tests.fuzz import samples

HUGE = "9" * 4400
"""More digits than Python turns into an integer."""


@pytest.fixture(autouse=True)
def _uncaught_errors_are_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MESHWRIGHT_DEBUG", "1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("option", ["--gpus", "--cluster", "--plan", "--calibration", "--lengths", "--prices"])
@pytest.mark.parametrize("text", ["x" * 5000, "x/" * 3000], ids=["long", "deep"])
def test_texts_longer_than_a_file_name_are_refused(option: str, text: str) -> None:
    words = {"--plan": "tp2", "--gpus": "8xH100"} | {option: text}
    if option == "--cluster":
        del words["--gpus"]
    assert main(["estimate", "llama-3.1-8b", *(word for pair in words.items() for word in pair)]) in (2, 4)


@pytest.mark.parametrize("words", [["models", "show"], ["explain"], ["calculon", "search"], ["check"]])
def test_names_longer_than_a_file_name_are_refused(words: list[str]) -> None:
    assert main([*words, "x" * 5000]) in (2, 4)


@pytest.mark.parametrize("text", [".e5", "e5", "1.2.3e4", "1e", "--1", "0x10", HUGE, " ", "1e400"])
def test_a_whole_number_is_refused_by_its_rule(text: str) -> None:
    with pytest.raises(InputError, match="must be a whole number from 1 to 1,000"):
        Whole(high=1000).read("--repeats", text)


@pytest.mark.parametrize("text", ["1,000", "1e3", "1_000", "+1000", " 1000 ", "1.0e3", "1.e3"])
def test_a_thousand_is_read_as_people_write_it(text: str) -> None:
    assert Whole(high=1000).read("--repeats", text) == 1000


def test_more_trials_than_allowed_are_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "llama-3.1-8b", "--gpus", "8xH100", "--repeats", "1e+5"]) == 2
    assert "from 1 to 1,000" in capsys.readouterr().err


@pytest.mark.parametrize("value", [10**400, -(10**400), 2**63, float("inf"), float("nan")])
def test_numbers_beyond_every_float_are_refused(value: Any) -> None:
    for kind in (Number(), Whole()):
        with pytest.raises(InputError):
            kind.read("x", value)
    assert len(shortened(value)) <= 80
    assert len(shortened(10**5000)) <= 80


def test_a_plan_of_thousands_of_tokens_is_refused_in_a_few_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-8b", "--gpus", "8xH100", "--plan", "tp2." * 5000]) == 2
    assert len(capsys.readouterr().err) < 1000


@pytest.mark.parametrize("cell", [HUGE, str(2**64), "1e400", "nan", "-1", "1\r1"])
def test_a_time_of_a_stage_that_is_no_number_is_refused(tmp_path: Path, cell: str) -> None:
    table = tmp_path / "stages.csv"
    table.write_bytes(samples.STAGES.replace("0,0,1.0,", f"{cell},0,1.0,").encode())
    assert main(["schedule", "best", "--m", "4", "--times", str(table)]) == 2
    (tmp_path / "stages.json").write_text(f'[{{"forward_s": {cell}, "input_s": 1, "weight_s": 1, "worker": 0.5}}]')
    assert main(["schedule", "best", "--m", "4", "--times", str(tmp_path / "stages.json")]) == 2


def test_a_carriage_return_within_a_row_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "run.csv"
    for text in (samples.LOGS[3].replace(",256,", ",256\r,", 1), samples.LOGS[3].replace("\n", "\r\n")):
        log.write_bytes(text.encode())
        asked = ["--model", "llama-3.1-8b", "--gpus", "8xH100", "--gbs", "256", "--seq", "4096"]
        assert main(["compare", "tp8.mbs1", "--with-run", str(log), *asked]) in (0, 2)


CHANGES: list[tuple[str, Any, str]] = [
    ("numbers", [], "numbers is"),
    ("numbers", {"device.hopper.banana": {"value": 1, "low": 1, "high": 1, "prior": 1}}, "no number that a fit finds"),
    ("numbers", {"device.hopper.gemm_fraction": {"value": "x", "low": 1, "high": 1, "prior": 1}}, "must be a number"),
    ("numbers", {"device.hopper.gemm_fraction": 3}, "must be a table"),
    ("numbers", {"device.hopper.gemm_fraction": {"value": 2, "low": 0.1, "high": 1, "prior": 1}}, "not between low"),
    ("numbers", {"device.hopper.gemm_fraction": {"value": float("nan"), "low": 1, "high": 1, "prior": 1}}, "nan"),
    ("spread", {"all": float("inf")}, "inf"),
    ("spread", {"all": -1}, "at least 0"),
    ("source", {"a": 1}, "must be text"),
    ("ranges", {"weights": {}, "seen": {}}, "base is missing"),
    ("run", {"model": "x"}, "plan is missing"),
]


@pytest.mark.parametrize(("key", "value", "why"), CHANGES, ids=range(len(CHANGES)))
def test_a_calibration_that_is_none_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any, why: str
) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(samples.calibration() | {key: value}))
    words = ["estimate", "llama-3.1-8b", "--plan", "tp8", "--gpus", "8xH100", "--calibration", str(file)]
    assert main(words) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "estimate llama-3.1-70b --plan tp8.pp4.vpp8 --gpus 128xH100 --schedule zb-h2",
        "estimate llama-3.1-70b --plan tp64.pp2.vpp8 --gpus 128xH100 --schedule 1f1b,interleaved,zb-h2",
        "check llama-3.1-8b --plan tp8.mbs1.z1 --gpus 8xH100 --seq 1048576",
        "schedule ftpipe --p 4 --m 8 --v 100",
        "schedule ftpipe --p 4 --m 800 --v 100",
    ],
)
def test_questions_that_once_took_minutes_are_answered(words: str) -> None:
    assert main(words.split()) in (0, 2, 3, 5)


def test_a_number_between_blanks_is_a_number() -> None:
    assert main(["calculon", "search", "gpt3-13B", "a100_80g", "--procs", " 3 ", "--batch", "16"]) in (0, 3)


def test_zones_without_a_measured_link_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profiles").mkdir()
    for name, text in samples.profiles().items():
        (tmp_path / "profiles" / name).write_text(text)
    (groups,) = (one for one in samples.MEASURED_GROUPS if "z9" in one and "Beta-12" in one)
    (tmp_path / "cluster.toml").write_text(groups)
    words = ["plan", "tiny", "--cluster", "cluster.toml", "--profiles", "profiles", "--gbs", "8"]
    assert main(words) in (2, 3, 4)
    assert "z9" in capsys.readouterr().err


def test_a_device_of_thousands_of_letters_is_unknown() -> None:
    with pytest.raises(UnsupportedError):
        device("x" * 5000)


@pytest.mark.parametrize(
    "words",
    [
        "schedule zb-auto --p 2147483647 --m 100 --v 1000",
        "schedule best --p 2147483647 --m 2",
        "schedule gpipe --p 1 --m 2147483647",
        "schedule zb-auto --p 8 --m 2 --tw 2147483648",
    ],
)
def test_sizes_beyond_what_is_listed_are_refused_before_anything_is_built(words: str) -> None:
    assert main(words.split()) == 2


@pytest.mark.parametrize("seconds", ["1e9", "1e-300", "5e-324", "0"])
def test_tasks_of_any_length_are_drawn(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "zb-h1", "--p", "2", "--m", "2", "--tw", seconds]) == 0
    assert len(capsys.readouterr().out) < 5000


def test_a_measured_run_of_too_large_a_batch_is_not_predicted(tmp_path: Path) -> None:
    (tmp_path / "measured.csv").write_text(
        samples.measured().replace(",4,4,fp16,full", ",1000000000000,4,fp16,full", 1)
    )
    assert main(["validate", "measured.csv"]) == 0


def test_printf_takes_the_number_that_a_word_begins_with() -> None:
    assert printf("%d %x %.1f %d", ["118.25", "16", "2.5", "x"]) == "118 10 2.5 0"


@pytest.mark.parametrize(("key", "value"), [("GBps", 1e308), ("MB_efficiency", [[100, 1e-308], [0, 0.3]])])
def test_numbers_of_calculon_stay_where_products_are_finite(tmp_path: Path, key: str, value: Any) -> None:
    app, execution, system = samples.calculon()[0]
    system = json.loads(json.dumps(system))
    system["mem1"][key] = value
    for name, part in (("a.json", app), ("e.json", execution), ("s.json", system)):
        (tmp_path / name).write_text(json.dumps(part))
    assert main(["calculon", "estimate", "a.json", "e.json", "s.json"]) == 2


def test_a_model_of_thousands_of_layers_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    deep = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 6144,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    Path("config.json").write_text(json.dumps(deep))
    assert main(["plan", "config.json", "--gpus", "16xH100"]) == 2
    assert "layers is 6144" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reads", "name", "text"),
    [
        (read_log, "run.log", f"[2026] [INFO] epoch=0/global_step={HUGE}, CurrSamplesPerSec=8.0\n" * 6),
        (read_log, "run.log", f"[titan] step: {HUGE}  loss:  6.1  memory: 49.50GiB(52.28%)  tps: 5,800\n" * 6),
        (read_out_of_memory, "oom.log", f"[rank {HUGE}]: of {HUGE} GiB, {'0' * 60_000}\n"),
    ],
)
def test_logs_with_numbers_of_thousands_of_digits_are_refused(reads: Any, name: str, text: str) -> None:
    Path(name).write_text(text)
    with pytest.raises(InputError):
        reads(name)


def test_a_damaged_gguf_asks_for_no_memory() -> None:
    Path("model.gguf").write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"x" + struct.pack("<I", 2**32 - 1)
    )
    with pytest.raises(InputError):
        config_of_gguf("model.gguf")


@pytest.mark.parametrize("step_s", ["1e-308", "1e308"])
def test_a_measured_step_of_no_time_in_reach_is_not_compared(step_s: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("measured.csv").write_text(samples.measured().replace(",1.42,", f",{step_s},", 1))
    assert main(["validate", "measured.csv", "--json"]) == 0
    overall = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["scores"]["time"][0]
    assert overall["predicted"] == samples.measured().count(",True,\n") - 1


def test_a_link_of_measured_rows_has_a_number_of_interfaces() -> None:
    assert fabric_bytes_per_s(f"{HUGE}x200Gb/s", 8) == fabric_bytes_per_s("200Gb/s", 8)


def test_a_degree_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="cp is 0"):
        parse_row("pp16.cp00", devices=64, global_batch=256, schedules=())


def test_a_storage_longer_than_a_file_name_is_refused() -> None:
    with pytest.raises(InputError, match="names no file"):
        storage_path("a" * 300)


@pytest.mark.parametrize("words", ["getopts", "getopts ab", "getopts ab 1x", "getopts ab ''", "source", "read -d"])
def test_builtins_without_their_words_do_nothing(words: str) -> None:
    found = read_script(f"{words}\nwhile {words}; do break; done\ntorchrun pretrain_gpt.py --num-layers 8")
    assert found.commands[-1].words[-1].text == "8"


def test_a_script_of_billions_of_layers_is_refused() -> None:
    words = ["--num-layers", "17179869184", "--hidden-size", "4096", "--num-attention-heads", "32"]
    assert any("at most 2,048" in one.why for one in read_flags(words).problems)


@pytest.mark.parametrize("beside", [(), ("--deepspeed",)], ids=["megatron", "megatron-deepspeed"])
def test_any_option_of_a_script_may_stand_without_its_value(beside: tuple[str, ...]) -> None:
    for option in known_options():
        read_flags([*beside, option, "--num-layers", "2"])


@pytest.mark.parametrize("name", ["ftpipe", "hanayo"])
def test_a_thousand_chunks_of_a_worker_are_not_listed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", name, "--p", "4", "--m", "5", "--v", "1024"]) == 2
    assert "fewer chunks a worker" in capsys.readouterr().err


def test_forwards_of_hundreds_of_workers_are_ordered_in_a_second() -> None:
    start_s = time.process_time()
    assert SCHEDULES["v-1f1b"].table(600, 4, 2).p == 600
    assert time.process_time() - start_s < 6


def test_a_link_of_no_speed_sets_groups_apart(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cluster").write_text(samples.CLUSTER.replace("gb_s = 1.5", "gb_s = 1e-308"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["clusters", "show", "cluster"]) == 0


def test_activations_of_no_size_have_room() -> None:
    Path("stages.csv").write_text(samples.STAGES.replace("0.1,1e9", "0.1,1e-308", 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["schedule", "best", "--m", "4", "--times", "stages.csv"]) == 0


def test_options_of_no_line_have_no_place(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.sh").write_text("deepspeed --num_nodes 2 --num_gpus 8 finetune.py --bf16 True $USER_ARGS\n")
    main(["check", "llama-3.1-8b", "train.sh", "--gpus", "16xH100", "--json"])
    assert not list(faults(json.loads(capsys.readouterr().out)))


def test_one_micro_batch_through_a_thousand_workers_of_a_v_is_listed_in_a_second() -> None:
    start_s = time.process_time()
    assert SCHEDULES["zb-v"].table(1000, 1, 2).kind.size == 6 * 1000
    assert time.process_time() - start_s < 6, "a third of the budget of an input"


def test_moments_of_an_unknown_format_are_named() -> None:
    words = ["--bf16", "--use-precision-aware-optimizer", "--exp-avg-dtype", "x", "--num-layers", "2"]
    assert any("--exp-avg-dtype" in one.what for one in read_flags(words).problems)


def test_memory_of_a_log_has_a_unit() -> None:
    Path("run.log").write_text(samples.LOGS[0].replace("memory (MB)", "memory (f)"))
    assert read_log("run.log").steps


def test_a_file_to_write_is_a_path() -> None:
    with pytest.raises(InputError, match="must be a path"):
        meshwright.trace("dp2.mbs1", model="gpt2", gpus="2xH100", memory_snapshot={"": {}})


def test_a_first_stage_may_hold_the_embedding_alone() -> None:
    stage = LayerStrategy(tensor=Tensor1D(degree=4))
    plan = plan_of(([Stage(0, stage, 1), Stage(4, stage, 31)], 1, 4))
    [pipeline] = plan.pipelines
    first, last = pipeline.workers
    alone = replace(first, chunks=(replace(first.chunks[0], layers=(), runs=()),))
    whole = replace(last.chunks[0], layers=((0, 31),), runs=(StrategyRun(layers=32, strategy=0),))
    workers = (alone, replace(last, chunks=(whole,)))
    plan = replace(plan, pipelines=(replace(pipeline, workers=workers),))
    workload = Workload(seq_len=4096, global_batch=plan.global_batch)
    job = Job(model=resolve("llama-3-8b"), cluster=resolve_gpus("8xH100"), workload=workload, plan=plan)
    assert not any(line.startswith("experts") for line in identities(job, None))


def test_a_word_that_is_wrong_a_thousand_times_is_looked_up_once() -> None:
    start_s = time.process_time()
    found = read_flags("torchrun pretrain_gpt.py --num-layers 2 " + "--numlayerz 1 " * 12000)
    assert any("--num-layers" in one.fix for one in found.problems)
    assert time.process_time() - start_s < 20, "the budget of an input"


@pytest.mark.parametrize("wild", ["rms_norm_eps", "rope_theta", "rope_scaling.factor"])
@pytest.mark.parametrize("number", [10**400, float("nan")])
def test_a_constant_of_a_model_is_a_number(wild: str, number: float) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    table, _, name = wild.rpartition(".")
    stated = {table: {"rope_type": "linear", name: number}} if table else {name: number}
    config = {"model_type": "llama", "intermediate_size": 128, **sizes, **stated}
    with pytest.raises(InputError) as caught:
        read_config(config, "wild", source="config.json")
    assert any(one.what.startswith(wild) and "must be" in one.why for one in caught.value.problems)


@pytest.mark.parametrize("index", ["9" * 4400, "²", "1" * 19])
def test_an_index_that_bash_does_not_count_with_sets_nothing(index: str) -> None:
    script = f"A=([2]=8 [{index}]=9)\ntorchrun pretrain_gpt.py --num-layers ${{A[2]}} ${{{index}}} $((A[{index}]))"
    assert read_script(script).commands[0].words[3].text == "8"


def test_launches_of_thousands_of_words_are_not_all_read() -> None:
    loop = "for ((i = 0; i < 1099511627776; i++)); do A+=(--x $i); torchrun pretrain_gpt.py ${A[@]}; done"
    found = read_script(loop)
    assert any("without end" in why for why, _ in found.broken)
    assert sum(len(command.words) for command in found.commands) <= MAX_STEPS


def test_durations_that_have_no_reciprocal_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "gpipe", "--p", "2", "--m", "3", "--tf", "1e-308"]) == 0
    assert "0 |" in capsys.readouterr().out


def test_a_log_of_out_of_memory_without_its_capacity_keeps_to_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "oom.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of which "
        "1.25 GiB is free. Of the allocated memory 70.12 GiB is allocated by PyTorch."
    )
    words = ["check", "llama-3.1-8b", "--plan", "tp8.mbs1", "--gpus", "8xH100", "--oom-log", str(log), "--json"]
    main(words)
    answer = json.loads(capsys.readouterr().out)
    assert answer["post_mortem"]["capacity_bytes"] is None
    assert not faults(answer)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("flash_keys_half", 1e308, "must be at most 1e+30"), ("power_exponent", 1000.0, "must be at most 10")],
)
def test_numbers_of_kernels_whose_products_are_none_are_refused(field: str, value: float, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        replace(device("H100").efficiency, **{field: value})


def test_weights_of_doubts_whose_power_is_no_number_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    found = samples.calibration()
    found["ranges"]["weights"]["device"] = 10**18
    file.write_text(json.dumps(found))
    with pytest.raises(InputError, match="device is 1000000000000000000, and must be a number from -100 to 100"):
        read_calibration(file)


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_load_beyond_all_floats_is_refused(digits: int) -> None:
    with pytest.raises(InputError, match="is beyond all floats"):
        expert_load_of(10**digits)


def test_yaml_with_a_control_character_is_one_error() -> None:
    with pytest.raises(InputError, match="is not valid YAML"):
        parsed("a: \x1b[0m", "YAML", "the file")


def test_a_width_in_other_digits_is_no_width_of_printf() -> None:
    assert printf("%\u0661s", ["x"]) == "%\u0661s"


def test_a_link_quicker_than_any_number_of_them_could_add_up_to_is_refused() -> None:
    with pytest.raises(InputError, match=re.escape("must be at most 1e+30")):
        replace(resolve_gpus("8xH100").groups[0].domains[0], bandwidth_bytes_per_s=1e308)


@pytest.mark.parametrize("dims", [(0, 128), (-64, 128), (256, 128), (128, 128), ("64", 128)])
def test_head_dims_of_a_device_are_numbers_that_grow(dims: tuple[Any, ...]) -> None:
    efficiency = resolve_gpus("1xH100").groups[0].device.efficiency
    with pytest.raises(InputError, match="flash_dims"):
        replace(efficiency, flash_dims=tuple((dim, 1.0) for dim in dims))


def test_energy_on_two_kinds_of_devices_keeps_to_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2", "--gpus", "2xH100,2xA100-80", "--gbs", "16", "--objective", "energy", "--json"]) == 0
    assert not faults(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("plans",), None),
        (("plans",), 3),
        (("inputs", "assumptions"), [{"name": 1, "value": "x", "basis": "assumed"}]),
        (("verdict", "why"), "x"),
        (("verdict", "runner_up"), []),
        (("warnings",), [None]),
        (("rank_map", "groups"), [{}]),
    ],
)
@pytest.mark.parametrize("form", ["html", "md", "cell"])
def test_a_report_of_a_plan_set_with_other_parts_is_refused(place: tuple[str, ...], value: object, form: str) -> None:
    found = json.loads(json.dumps(samples.plan_sets()[0]))
    home = found
    for name in place[:-1]:
        home = home[name]
    home[place[-1]] = value
    if value is None:
        del home[place[-1]]
    Path("plans.json").write_text(json.dumps(found))
    assert main(["report", "plans.json", "--format", form, "-o", "out"]) == 2
    assert not Path("out").exists()


def test_a_step_that_no_number_of_devices_makes_is_refused() -> None:
    with pytest.raises(InfeasibleError):
        meshwright.size("gpt2", device="H100", step_time=1e-308, time_limit=3)


@pytest.mark.parametrize(
    "change",
    [
        "--seq-length {}",
        "--max-position-embeddings {}",
        "--num-layers-per-stage {}",
        "--micro-batch-size {}",
    ],
)
def test_numbers_of_thousands_of_digits_in_a_script_are_told(change: str) -> None:
    script = Path("train.sh")
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 {change.format('9' * 4400)}\n")
    assert main(["check", "llama-3.1-8b", str(script), "--gpus", "8xH100"]) in (2, 3, 5)


@pytest.mark.parametrize("field", ["pcie", "nvme", "host_ram"])
def test_hosts_of_less_than_a_byte_are_refused(field: str) -> None:
    """Times of copies over such a link have no number that JSON takes."""
    value = "1e-308GB/s" if field == "nvme" else 1e-308
    with pytest.raises(InputError, match=field.replace("_", "[-_]")):
        meshwright.explain("tp2.mbs1", model="gpt2", gpus="2xH100", global_batch=8, **{field: value})
