#!/bin/bash
# args: --tp 4 --pp=2 --recompute --name "my run" -- --lr 1e-4 --min-lr 1e-5
TP=1 PP=1 RECOMPUTE=() NAME=x
while [[ $# -gt 0 ]]; do
  case "$1" in
    --tp) TP="$2"; shift 2 ;;
    --pp=*) PP="${1#*=}"; shift ;;
    --name) NAME=$2; shift; shift ;;
    --recompute) RECOMPUTE=(--recompute-granularity selective); shift ;;
    --) shift; break ;;
    *) echo "what is $1"; exit 2 ;;
  esac
done
MIN=$(( TP < 4 ? 1 : 2 ))
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
  --micro-batch-size $MIN "${RECOMPUTE[@]}" --wandb-exp-name "$NAME" "$@"
