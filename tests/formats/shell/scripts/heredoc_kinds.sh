#!/bin/bash
L=12
cat > a.sh <<-EOF
	LAYERS=$L
	export HIDDEN=\$((LAYERS * 64))
	EOF
cat << 'END' >> a.sh
HEADS=$((HIDDEN / 64))
END
echo "FFN=\$((HIDDEN * 4))" >> a.sh
source a.sh
TEXT=$(cat <<EOF
--num-layers $LAYERS
--hidden-size $HIDDEN
EOF
)
bash <<EOF
python pretrain_gpt.py $TEXT --num-attention-heads $HEADS --ffn-hidden-size $FFN --micro-batch-size 1
EOF
