#!/bin/bash
# Writes what each rank runs to a file, which torchrun starts as a program that is not Python.
OUT=runs
TASK=long
for TASK in long # short
do
  sed -i -e 's/a/b/' tools/train.py
done
worker=$(cat <<- EOM
	if [ "\$RANK" -eq "0" ]; then
	  sleep 0 ;
	fi ;

	numactl --membind=\$((LOCAL_RANK/4)) \
	python tools/train.py --micro-batch-size 2 \
	  --tensorboard-dir ./$OUT/$TASK/ \
	  --save ${PWD}/$JOB_NAME/$TASK --num-layers 4

EOM
)
echo "$worker" > worker_command.sh
torchrun --nproc-per-node="8" --no-python bash worker_command.sh
