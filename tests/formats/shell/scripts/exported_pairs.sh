#!/bin/bash
# Pairs of words are exported, and files are written by what passes them on.
for pair in LAYERS=12 HIDDEN=768; do export ${pair}; done
line="LENGTH=1024"
export $line
echo "--bf16" > flags.txt
tee -a flags.txt <<< "--micro-batch-size 2" > /dev/null
torchrun pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN --seq-length $LENGTH $(cat flags.txt)
