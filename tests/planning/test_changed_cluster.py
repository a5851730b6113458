"""What is lost of clusters whose groups are planned as one of equal ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.changed_cluster import changed_cluster
from meshwright.specs.cluster import ClusterSpec


def joined() -> ClusterSpec:
    cluster = resolve_gpus("32xH100")
    return replace(cluster, groups=(replace(cluster.groups[0], name="H100 + H200"),))


def test_devices_of_a_member_are_any_of_the_equal_ranks() -> None:
    changed = changed_cluster(joined(), lost="8xH200")
    assert (changed.lost, changed.cluster.devices) == (8, 24)


def test_a_whole_member_is_asked_for_by_its_count() -> None:
    with pytest.raises(InputError, match="not how many devices of it are H200") as error:
        changed_cluster(joined(), lost="H200")
    assert "8xH200" in error.value.problems[0].fix
