#!/bin/bash
# args: llama31_70b 64
RECIPE=${1:?name a recipe}
GPUS=${2:-8}
OVERRIDES=(
  "model.tensor_model_parallel_size=4"
  model.pipeline_model_parallel_size=$((GPUS / 16))
  'train.global_batch_size=128'
)
if (( GPUS >= 64 )); then OVERRIDES+=(model.virtual_pipeline_model_parallel_size=5); fi
torchrun --nproc-per-node=8 --nnodes=$((GPUS/8)) run_recipe.py --recipe ${RECIPE}_pretrain_config "${OVERRIDES[@]}"
