#!/bin/bash
LOG=logs/$(basename "$0" .sh).txt
N=$(echo "0,1,2,3" | tr ',' '\n' | wc -l)
torchrun --nproc_per_node $N pretrain_gpt.py --micro-batch-size 2 --global-batch-size $((N*4)) --log $LOG 2>&1 | tee -a "$LOG"
