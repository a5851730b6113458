#!/bin/bash
# Größe: läuft auf acht Geräten – 8 GPUs
NAME="Größe 70B – Überblick"
torchrun --nproc_per_node 8 pretrain_gpt.py --wandb-exp-name "$NAME" --micro-batch-size 1 # Ende ✓
