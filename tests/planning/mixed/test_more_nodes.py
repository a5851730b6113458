"""Nodes more are never slower: pairs of clusters that once differed, each by a cause of its own."""

from __future__ import annotations

import pytest

from tests.planning.mixed.test_more_devices import step_s


@pytest.mark.parametrize(
    ("few", "many"),
    [
        # 51 nodes are cut into stages of 1, 3, 17 or 51 nodes; 48 or 50 of them fit the batch better.
        ("50x8xB200,55x8xH800", "51x8xB200,55x8xH800"),
        # Twenty nodes are divided between pipelines of sixteen and of four, which 23 have to leave room for.
        ("32x8xH200,20x8xH100", "32x8xH200,23x8xH100"),
    ],
)
def test_an_odd_node_more_is_never_slower(few: str, many: str) -> None:
    assert step_s("llama-3.1-8b", many, 1024) <= step_s("llama-3.1-8b", few, 1024) * (1 + 1e-9)


def test_nodes_that_leave_an_uneven_rest_are_never_slower() -> None:
    """Eleven nodes beside sixteen share 256 sequences unevenly: eight of them end together."""
    fewer_s, more_s = (step_s("llama-3.1-8b", f"16x8xL40S,{nodes}x8xA100-80", 256, None) for nodes in (8, 11))
    assert more_s <= fewer_s * (1 + 1e-9)


def test_a_node_that_leaves_an_odd_number_is_never_slower() -> None:
    """Twenty-six nodes are divided into sixteen-device stages of two pipelines, which twenty-seven have room for."""
    fewer_s, more_s = (step_s("mixtral-8x22b", f"32x8xH100,{nodes}x8xH800", 1024) for nodes in (26, 27))
    assert more_s <= fewer_s * (1 + 1e-9)


def test_nodes_of_which_a_sixth_stays_idle_are_never_slower() -> None:
    """Twenty-four nodes are divided into stages of eight, which twenty-nine have room for as twenty-seven have."""
    fewer_s, more_s = (step_s("llama-3.1-8b", f"64x8xA100-80,{nodes}x8xH200", 512) for nodes in (27, 29))
    assert more_s <= fewer_s * (1 + 1e-9)


def test_one_strategy_over_fewer_nodes_is_looked_at_where_more_of_them_stay_idle() -> None:
    """Ten of eleven nodes take the least; with all eleven no framework's plan comes near."""
    fewer_s, more_s = (step_s("llama-3.1-70b", f"16x8xH100,{nodes}x8xL40S", 1024) for nodes in (10, 11))
    assert more_s <= fewer_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("few", "many"),
    [
        # Sixteen stages beside eleven: their gradients meet over slow links, most of them beside the last backwards.
        ("64x8xL40S,20x8xH200", "64x8xL40S,22x8xH200"),
        # Twelve nodes make three stages of four beside eight of two; sixteen of them make a slower fourth.
        ("16x8xH100,14x8xL40S", "16x8xH100,16x8xL40S"),
        # Twelve nodes are quicker by six chunks a stage, which more nodes looked at for all thirteen alone.
        ("16x8xH200,12x8xH800", "16x8xH200,13x8xH800"),
    ],
)
def test_nodes_more_of_experts_are_never_slower(few: str, many: str) -> None:
    assert step_s("mixtral-8x22b", many, 512) <= step_s("mixtral-8x22b", few, 512) * (1 + 1e-9)
