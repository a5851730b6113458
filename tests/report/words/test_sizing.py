"""How many devices are enough, in words."""

from __future__ import annotations

from meshwright.report.words.sizing import limiting_batch_text


def test_an_assumed_batch_is_named_where_more_devices_share_it() -> None:
    said = limiting_batch_text(32_768, 1_024, 4_096, usual_devices=4_096)
    assert "4.19M tokens a step" in said
    assert "--gbs" in said
    assert not limiting_batch_text(4_096, 1_024, 4_096, usual_devices=4_096)
