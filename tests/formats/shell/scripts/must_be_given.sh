#!/bin/bash
# asks: BACKEND
# Without it the script stops at the first line, whatever the last branch below says.
: "${BACKEND:?one of ds, fsdp}"
if [ "$BACKEND" = ds ]; then
  TP=1
elif [ "$BACKEND" = fsdp ]; then
  TP=2
else
  echo "no such backend" >&2
  exit 2
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size 1 \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16
