"""Steps of every framework's log are read with their lines; what cannot be is named by line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.logs import RunLog, read_log, steady
from meshwright.units import GIB


def megatron(seconds: list[float], batch: int = 256) -> str:
    return "\n".join(
        [
            "  num_layers ...................................... 32",
            "  hidden_size ..................................... 4096",
            "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100.0 | max allocated: 20480.0 | reserved: 30000.0",
            *(
                f" iteration {n:8d}/  500 | consumed samples: {n * batch:8d} | elapsed time per iteration (ms): "
                f"{1000 * s:.1f} | learning rate: 1.5E-05 | global batch size: {batch:5d} | lm loss: 1.0E+01 |"
                for n, s in enumerate(seconds, start=1)
            ),
        ]
    )


TITAN = "\n".join(
    f"[rank{rank}]:[titan] 2026-03-01 10:00:{n:02d},000 - root - INFO - \x1b[31mstep: {n:2d}  \x1b[32mloss:  6.1  "
    f"\x1b[33mmemory: 49.50GiB(52.28%)  \x1b[34mtps: {5800 + n:,}  tflops: 339.16  mfu: 34.29%\x1b[39m"
    for n in range(1, 11)
    for rank in (0, 1)
)
NEMO = "\n".join(
    f"Training epoch 0, iteration {n}/49 | lr: 1e-06 | global_batch_size: 128 | global_step: {n} | "
    f"peak_memory_usage: 66571993088 | reduced_train_loss: 11.0 | train_step_timing in s: {5 + 1 / (n + 1):.3f}"
    for n in range(10)
)
BAR = "Epoch 0: : 100%|####| 50/50 [31:51<00:00, global_step={n}.0, train_step_timing in s={s}, val_loss=6.2]"
DEEPSPEED = "\n".join(
    [
        "[2026-01-01] [INFO] [config.py:957:print]   train_batch_size ............. 64",
        *(
            f"[2026-01-01] [INFO] [timer.py:258:stop] epoch=0/micro_step={4 * n}/global_step={n}, "
            f"RunningAvgSamplesPerSec=1.5, CurrSamplesPerSec=8.0, MemAllocated=5.02GB, MaxMemAllocated=60.5GB"
            for n in range(1, 9)
        ),
    ]
)
TRAINER = (
    "Total train batch size (w. parallel, distributed & accumulation) = 64\n"
    " 1%|  | 1/100 [00:09<15:00,  9.10s/it]\r 10%|# | 10/100 [00:50<07:30,  5.00s/it]\r"
    " 11%|# | 11/100 [00:55<07:25,  5.00s/it]\n"
)
SUMMARY = "{'train_runtime': 500.0, 'train_samples_per_second': 12.8, 'train_steps_per_second': 0.2, 'epoch': 1.0}\n"
TABLE = "step,step_time_s,memory_gib\n1,9.0,40\n2,5.0,41\n3,5.5,41\n"


def written(tmp_path: Path, text: str, framework: str | None = None) -> RunLog:
    path = tmp_path / "run.log"
    path.write_text(text)
    return read_log(path, framework)


def seconds(log: RunLog, tokens: int = 64 * 4096, devices: int = 8) -> list[float | None]:
    return [step.seconds(tokens, 4096, devices) for step in log.steps]


def test_megatron_steps_arguments_and_memory(tmp_path: Path) -> None:
    log = written(tmp_path, megatron([20.0, 7.5, 7.25]))
    assert log.framework == "megatron"
    assert seconds(log) == [20.0, 7.5, 7.25]
    assert [step.line for step in log.steps] == [4, 5, 6]
    assert {step.global_batch for step in log.steps} == {256}
    assert log.steps[0].memory_bytes == 20 * GIB
    assert {name: found.value for name, found in log.stated} == {"num_layers": 32, "hidden": 4096}


def test_numbers_with_separators_and_commas_after_them(tmp_path: Path) -> None:
    log = written(tmp_path, BAR.format(n=3, s="5.0, global_batch_size=1,024"))
    assert [(step.iteration, step.global_batch, step.step_time_s) for step in log.steps] == [(3, 1024, 5.0)]
    assert not written(tmp_path, TITAN + "\nglobal batch size 1e999, sequence length nan\n").stated
    assert written(tmp_path, megatron([7.5]).replace("size:   256", "size: 1e999")).steps[0].step_time_s == 7.5


def test_every_rank_prints_and_a_step_counts_once(tmp_path: Path) -> None:
    log = written(tmp_path, TITAN)
    assert (log.framework, len(log.steps)) == ("torchtitan", 10)
    assert seconds(log)[0] == pytest.approx(64 * 4096 / (5801 * 8))
    assert log.steps[0].memory_bytes == 49.5 * GIB


@pytest.mark.parametrize("text", [NEMO, "\n".join(BAR.format(n=n, s=5.0) for n in (48, 49, 50))])
def test_nemo_lines_and_its_progress_bar(tmp_path: Path, text: str) -> None:
    log = written(tmp_path, text)
    assert log.framework == "nemo"
    assert log.steps[-1].step_time_s == pytest.approx(5.05, abs=0.06)


def test_a_bridge_log_reads_as_megatrons_lines(tmp_path: Path) -> None:
    log = written(tmp_path, "Step Time : 7.30s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n" + megatron([7.5]))
    assert (log.framework, seconds(log)) == ("nemo", [7.5])
    alone = written(tmp_path, "Step Time : 7.30s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n")
    assert seconds(alone) == [7.3]


def test_deepspeeds_current_rate_is_taken_not_its_average(tmp_path: Path) -> None:
    log = written(tmp_path, DEEPSPEED)
    assert (log.framework, seconds(log)[0]) == ("deepspeed", 8.0)
    assert dict(log.stated)["global_batch"].value == 64


def test_the_trainers_bar_goes_before_its_summary(tmp_path: Path) -> None:
    both = written(tmp_path, TRAINER + SUMMARY)
    assert (both.framework, seconds(both)) == ("transformers", [9.1, 5.0, 5.0])
    assert seconds(written(tmp_path, SUMMARY)) == [5.0]


def test_a_table_of_steps(tmp_path: Path) -> None:
    log = written(tmp_path, TABLE)
    assert (log.framework, seconds(log)) == ("csv", [9.0, 5.0, 5.5])
    assert seconds(written(tmp_path, TABLE.replace("_s,", "_ms,"))) == pytest.approx([0.009, 0.005, 0.0055])


def test_warm_up_is_left_out(tmp_path: Path) -> None:
    assert [step.iteration for step in steady(written(tmp_path, megatron([9.0] * 5 + [7.0] * 3)).steps)] == [6, 7, 8]
    assert [step.iteration for step in steady(written(tmp_path, megatron([9.0, 7.0])).steps)] == [2]
    assert [step.iteration for step in steady(written(tmp_path, megatron([9.0])).steps)] == [1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing here\n", "none of its lines (1) reports a step"),
        (megatron([7.5, 7.5, 0.0075, 7.5]), "line 6: a step of 0.0075 s among steps of 7.5 s"),
        (megatron([7.5, 7.5]) + "\n" + megatron([7.5] * 4, 512), "a global batch of 512, elsewhere 256"),
        (megatron([7.5]).replace("7500.0", "nan"), "line 4: elapsed time per iteration is 'nan'"),
        ("step,step_time_s,step_time_ms\n1,5,5000\n", "both step_time_s and step_time_ms"),
        (TABLE.replace("5.5", "-5.5"), "line 4: step_time_s is '-5.5'"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        written(tmp_path, text)
    assert said in caught.value.render()
    assert caught.value.problems[0].field


def test_a_named_framework_is_kept_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no step is found"):
        written(tmp_path, TITAN, "megatron-lm")
    with pytest.raises(UnsupportedError, match="torchtitan"):
        written(tmp_path, TITAN, "torchtitam")
