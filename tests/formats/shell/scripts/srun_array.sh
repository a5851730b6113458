#!/bin/bash
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 8
# env: SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=8 SLURM_NTASKS=16
CMD=(python -u pretrain_gpt.py)
CMD+=(--tensor-model-parallel-size 8 --micro-batch-size 1)
CMD+=(--global-batch-size "$((SLURM_NTASKS * 4))")
srun --container-image=img --no-container-mount-home "${CMD[@]}"
