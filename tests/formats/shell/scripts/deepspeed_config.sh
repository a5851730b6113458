#!/bin/bash
# The JSON file of DeepSpeed is written by the script.
ZERO_STAGE=1
MBS=2
GBS=512
TP=4
PP=8
config_json="./ds_config.json"
cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $MBS,
  "train_batch_size": $GBS,
  "zero_optimization": {"stage": $ZERO_STAGE},
  "bf16": {"enabled": true}
}
EOT
DEEPSPEED_ARGS=" \
    --deepspeed \
    --deepspeed_config ${config_json} \
    --zero-stage ${ZERO_STAGE} \
    --deepspeed-activation-checkpointing \
    "
export LAUNCHER="python -u -m torch.distributed.launch --nproc_per_node 8 --nnodes 32"
export CMD=" \
    pretrain_gpt.py \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --num-layers 64 --hidden-size 8192 --num-attention-heads 64 \
    --micro-batch-size $MBS --global-batch-size $GBS --seq-length 2048 --max-position-embeddings 2048 \
    --checkpoint-activations \
    $DEEPSPEED_ARGS \
"
echo $CMD
clear; srun --jobid 7 bash -c "$LAUNCHER --node_rank 0 $CMD" 2>&1 | tee -a main_log.txt
