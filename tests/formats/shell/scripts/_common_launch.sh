LAYERS=$1; HIDDEN=$2; shift 2
torchrun --nproc_per_node ${GPUS:-8} pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} --micro-batch-size ${MBS} --global-batch-size ${GBS:-1} "$@"
