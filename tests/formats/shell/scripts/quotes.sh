#!/bin/bash
A='single $not "filled"'
B="double \"quoted\" \$not \\ \`no\`"
C=un\ quoted\$
D=$'tab\tnew'
E="mixed"'parts'"$A"
F=""
G="a
b"
H='it'"'"'s'
python pretrain_gpt.py --a "$A" --b "$B" --c "$C" --d "$D" --e "$E" --f "$F" $F --g "$G" --g2 $G --h "$H" \
  --json '{"a": [1, 2]}' --layout "Et*3|(tt|)*2,mL" --eq=$H"z" --glob 'a*' --hash a#b --semi 'x;y' "--x=$A"
