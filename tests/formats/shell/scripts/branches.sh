#!/bin/bash
# args: 800M data vocab
MODEL_SCALE=$1
case "${MODEL_SCALE}" in
    "800M") TENSOR_MODEL_PARALLEL_SIZE=1; NUM_LAYERS=48; HIDDEN_SIZE=1024; NUM_ATTENTION_HEADS=16; GLOBAL_BATCH_SIZE=32 ;;
    "8B") TENSOR_MODEL_PARALLEL_SIZE=4; NUM_LAYERS=56; HIDDEN_SIZE=4096; NUM_ATTENTION_HEADS=32; GLOBAL_BATCH_SIZE=8 ;;
    *) echo "Invalid scale"; exit 1 ;;
esac
if [ "$2" != "" ] && [ ! -z "$3" ]; then DATA="--data-path $2"; else DATA=--mock-data; fi
if ! [[ $NUM_LAYERS -lt 50 ]]; then DEEP=1; fi
if [ -n "$DEEP" ] || [ $HIDDEN_SIZE -ge 4096 -a $NUM_ATTENTION_HEADS -eq 32 ]; then
  RECOMPUTE="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
else
  RECOMPUTE=
fi
options=" $DATA --vocab $3 \
  --tensor-model-parallel-size ${TENSOR_MODEL_PARALLEL_SIZE} --num-layers ${NUM_LAYERS} \
  --hidden-size ${HIDDEN_SIZE} --num-attention-heads ${NUM_ATTENTION_HEADS} \
  --global-batch-size ${GLOBAL_BATCH_SIZE} --micro-batch-size 4 $RECOMPUTE"
torchrun --nproc_per_node 8 pretrain_mamba.py ${options}
