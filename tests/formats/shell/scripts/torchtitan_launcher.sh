#!/usr/bin/bash
# args: --parallelism.tensor_parallel_degree 4 --training.local_batch_size=2
set -ex
NGPU=${NGPU:-"8"}
export LOG_RANK=${LOG_RANK:-0}
CONFIG_FILE=${CONFIG_FILE:-"./train_configs/llama3_8b.toml"}
overrides=""
if [ $# -ne 0 ]; then
    overrides="$*"
fi
PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True" \
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --local-ranks-filter ${LOG_RANK} --role rank --tee 3 \
  train.py --job.config_file ${CONFIG_FILE} $overrides
