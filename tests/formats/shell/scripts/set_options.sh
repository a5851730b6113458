#!/bin/bash
# Names of switches behind -o are no arguments.
set -euox pipefail
TP=${1:-${TP:-2}}
set -eo pipefail
PP=${2:-4}
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
