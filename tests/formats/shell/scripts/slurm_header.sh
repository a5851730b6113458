#!/bin/bash -l
#SBATCH --job-name=train
#SBATCH -N 8
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --time=24:00:00
# env: SLURM_NNODES=8 SLURM_JOB_NUM_NODES=8 SLURM_GPUS_ON_NODE=8 SLURM_NTASKS_PER_NODE=1 SLURM_JOB_NODELIST=n[1-8]
module load cuda
source ~/venv/bin/activate 2>/dev/null
nodes=$(scontrol show hostnames $SLURM_JOB_NODELIST)
head=($nodes)
export MASTER_ADDR=${head[0]:-localhost}
GPUS_PER_NODE=${SLURM_GPUS_ON_NODE:-4}
WORLD_SIZE=$(($SLURM_JOB_NUM_NODES * $GPUS_PER_NODE))
srun --label torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$GPUS_PER_NODE --rdzv_id=$RANDOM \
  pretrain_gpt.py --global-batch-size $((WORLD_SIZE*2)) --micro-batch-size 1 --distributed-backend nccl
