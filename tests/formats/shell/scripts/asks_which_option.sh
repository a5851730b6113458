#!/bin/bash
# asks: USE_TE
# The name of an option itself is in a variable that is set by what nobody said.
DTYPE=fp16
if [[ $USE_TE -eq 1 ]]; then
  DTYPE=bf16
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 --num-layers 24 --hidden-size 1024 \
  --num-attention-heads 16 --pipeline-model-parallel-size 2 --${DTYPE}
