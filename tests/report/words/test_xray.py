"""What an X-ray says of collectives: those that it cannot see are no difference."""

from __future__ import annotations

from dataclasses import replace

from meshwright.report.words.xray import differences
from meshwright.xray.compare import CollectiveRow

ROW = CollectiveRow(
    kind="send_recv", group="cp", ranks=2, phase="forward", payload_bytes=4 << 20, seen=0, ours=2, ours_bytes=4 << 20
)


def test_an_exchange_of_keys_inside_attention_is_said_to_be_unseen() -> None:
    (told,) = differences((), (ROW,), ())
    assert told == "send-recv over cp 2, forward: 2 of 4 MiB in the estimate, inside attention and not seen"


def test_an_exchange_that_is_seen_or_of_another_group_is_compared() -> None:
    for row in (replace(ROW, seen=1), replace(ROW, group="tp")):
        assert differences((), (row,), ())[0].endswith("seen, 2 in the estimate")
        assert not row.hidden
