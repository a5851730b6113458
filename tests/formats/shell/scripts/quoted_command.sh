#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
# env: SLURM_NNODES=4 SLURM_GPUS_PER_NODE=4 MASTER=node0
MODEL="--num-layers 80 --hidden-size 8192 --num-attention-heads 64"
PARALLEL="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
BATCH="
   --micro-batch-size 1
   --global-batch-size 64
"
CMD="torchrun --nproc-per-node $SLURM_GPUS_PER_NODE --nnodes $SLURM_NNODES --node-rank \${SLURM_PROCID:-0} \
  --rdzv-endpoint $MASTER:29500 pretrain_gpt.py $MODEL $PARALLEL $BATCH --data-path 'a b' --bf16"
srun --mpi=pmix --environment=x bash -c "$CMD"
