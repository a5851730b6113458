#!/bin/bash
# Devices counted by the text tools that people use for it, and a command handed to a launcher of a cluster.
DEVICES="0,1,2,3"
COUNT=$(echo $DEVICES | awk -F',' '{print NF}')
SECOND_NODES=1
COMMAS=$(echo "$DEVICES" | grep -o "," | wc -l)
FIRST=$(echo "node7 eth0 10.0.0.7" | awk '{print $3}')
SECOND=$(printf 'a b\nc d\n' | awk 'NR==2 {print $NF}')
cat > template.json <<'END'
{"zero": ZERO_STAGE, "batch": "CONFIG_BATCH CONFIG_BATCH"}
END
sed "s/ZERO_STAGE/2/" template.json | sed "s/CONFIG_BATCH/${COUNT}/g" > made.json
MADE=$(cat made.json | tr -d '"{} ')
TOTAL=$[${COUNT} * $[SECOND_NODES + 1]]
if echo "$DEVICES" | grep -o 7; then COUNT=8; fi
CMD="torchrun --nproc_per_node $COUNT train.py --count $COUNT --commas $COMMAS --master $FIRST --second $SECOND --total $TOTAL --made $MADE"
bcprun --nnodes 1 --npernode 1 -c "$CMD"
