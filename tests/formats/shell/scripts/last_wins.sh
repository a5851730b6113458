#!/bin/bash
# args: --micro-batch-size 4
COMMON="--micro-batch-size 1 --global-batch-size 64"
torchrun --nproc_per_node=8 pretrain_gpt.py $COMMON --micro-batch-size 2 "$@"
