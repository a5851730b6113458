#!/bin/bash
# asks: SLURM_NNODES --pipeline-model-parallel-size
PP=$((SLURM_NNODES / 2))
torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --pipeline-model-parallel-size $PP --micro-batch-size 1 \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16
