#!/bin/bash
# The inner script is written first, then started on every node.
TP=2
MBS=1
cat > inner.sh <<EOF
#!/bin/bash
LAYERS=16
python pretrain_gpt.py --tensor-model-parallel-size ${TP} --micro-batch-size $MBS \\
   --num-layers \$LAYERS --global-batch-size $((MBS * 32)) --bf16
EOF
cat > raw.sh <<'EOF'
echo "$TP is not filled in"
EOF
chmod +x inner.sh
srun -N 2 --ntasks-per-node 8 bash inner.sh
