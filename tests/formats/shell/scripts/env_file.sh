#!/bin/bash
# Settings lie in a file of NAME=VALUE lines, exported while it is read.
set -o allexport
source "${ENV_FILE:-_job.env.sh}"
set +o allexport
python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE train.py --tensor-model-parallel-size $TP \
  --micro-batch-size ${MBS} --name "$RUN_NAME" --global-batch-size $((GPUS_PER_NODE * MBS * ACC))
