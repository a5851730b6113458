#!/bin/bash
# env: NNODES=4
if [ -z "$GPUS_PER_NODE" ]; then GPUS_PER_NODE=8; fi
if [ "x$NNODES" = "x" ]; then NNODES=1; fi
test -n "$MASTER_PORT" || MASTER_PORT=6000
[ ! -z ${CKPT_FORMAT} ] || CKPT_FORMAT=torch_dist
if [[ -z "${TOKENIZER:-}" ]]; then TOKENIZER=NullTokenizer; fi
if [[ ! -v SEED ]]; then SEED=1234; fi
[[ -n ${WANDB_PROJECT} ]] && WANDB="--wandb-project $WANDB_PROJECT"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_port $MASTER_PORT pretrain_gpt.py \
  --ckpt-format $CKPT_FORMAT --tokenizer-type $TOKENIZER --seed $SEED $WANDB --micro-batch-size 1
