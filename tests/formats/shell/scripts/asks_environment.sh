#!/bin/bash
# asks: TP_SIZE MICRO_BATCH
# A launcher of a platform sets these.
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP_SIZE \
  --micro-batch-size ${MICRO_BATCH} --num-layers 24 --hidden-size 1024 --num-attention-heads 16
