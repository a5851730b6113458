"""Arguments and environment of a launch script, as `check` and `xray` take them."""

import pytest

import meshwright as mw
from meshwright.errors import InputError

SCRIPT = "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size $MBS\n"


@pytest.mark.parametrize("verb", [mw.check, mw.xray])
@pytest.mark.parametrize("text", ["MBS", "=4", "2=4"])
def test_a_variable_without_a_name_or_a_value_is_refused(verb, text):
    with pytest.raises(InputError, match="NAME=VALUE"):
        verb("llama-3.1-8b", source=SCRIPT, cluster="8xH100", environment=[text])
