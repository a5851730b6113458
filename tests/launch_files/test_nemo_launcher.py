"""Scripts of NeMo's launcher, with the configs that lie where its own do."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.errors import InputError

CONFIG = """\
trainer:
  num_nodes: 16
  devices: 8
  precision: bf16
model:
  micro_batch_size: 4
  global_batch_size: 2048
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  max_position_embeddings: 2048
  num_layers: 24
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  megatron_amp_O2: True
  fp8: False
  ub_tp_comm_overlap: False
  tokenizer:
    type: GPT2BPETokenizer
  optim:
    name: distributed_fused_adam
    grad_sync_dtype: bf16
"""
SCRIPT = """\
DIR=${DIR:-/opt/launcher}
python3 ${DIR}/launcher_scripts/main.py \\
training=gpt3/5b \\
stages=[training] \\
training.trainer.num_nodes=1 \\
training.model.global_batch_size=256 \\
training.model.micro_batch_size=2 \\
training.model.fp8=true \\
~training.model.optim.grad_sync_dtype \\
+training.model.sequence_parallel=false
"""


def script(folder: Path, text: str = SCRIPT) -> Path:
    conf = folder / "launcher_scripts" / "conf" / "training" / "gpt3"
    conf.mkdir(parents=True)
    (conf / "5b.yaml").write_text(CONFIG)
    file = folder / "examples" / "training" / "5b.sh"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_words_of_the_command_stand_over_the_config_of_their_stage(tmp_path: Path) -> None:
    report = check(script(tmp_path), cluster="8xH100", search=False)
    assert report.legal
    assert report.name == "dp8.z1.mbs2.gbs256.nodpov"
    assert report.launch is not None
    said = {one.option: one.value for one in report.launch.said}
    assert said["--fp8-format"] == "hybrid"
    assert "--grad-reduce-in-bf16" not in said  # ~ takes a key away


@pytest.mark.parametrize(
    ("change", "why"),
    [(("gpt3/5b", "gpt3/175b"), "175b.yaml is not here"), (("[training]", "[conversion]"), "none of it trains")],
)
def test_what_it_does_not_train_with_is_told(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        check(script(tmp_path, SCRIPT.replace(*change)), cluster="8xH100", search=False)
