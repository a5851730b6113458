#!/bin/bash
# Words go on behind the file of a redirect.
WIDTH=2048
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 > train.log --hidden-size $WIDTH 2>&1 \
  --num-attention-heads 16 --micro-batch-size 1
options="--seq-length 512 < /dev/null --fp16 >> more.log --seed 7"
bash -c "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 ${options}"
