#!/bin/bash
# A comment inside a continued command ends it: bash passes what stands before.
torchrun --nproc_per_node 8 pretrain_gpt.py \
   --num-layers 12 \
   --micro-batch-size 4 \
#  --hidden-size 768 \
   --num-attention-heads 12 || true
