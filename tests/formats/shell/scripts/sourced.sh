#!/bin/bash
source ./_config_common.sh
. "$(dirname "$0")/_model_13b.sh" deep
python -u -m torch.distributed.run --nproc_per_node=8 --nnodes=$NODES pretrain_gpt.py "${MODEL[@]}" $COMMON
