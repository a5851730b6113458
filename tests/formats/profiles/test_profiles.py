from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.formats.profiles import LinkFit, Point, read_profiles

TINY = Path(__file__).parents[2] / "data" / "profiles"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(TINY, tmp_path / "profiles")
    return tmp_path / "profiles"


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_folder_is_read_in_seconds_and_elements() -> None:
    profiles = read_profiles(TINY)
    model = profiles.models["tiny"]
    assert model.num_layers == 6
    assert profiles.devices == ("Alpha-32", "Beta-12")
    assert model.tensor_degrees("Alpha-32") == (1, 2)
    assert model.times[Point("Alpha-32", 1, 1)].forward_s[1] == pytest.approx(4.9e-3)
    assert model.sizes[2].parameters[0] == 20e6
    assert profiles.zones == ("z1",)


def test_a_missing_micro_batch_is_interpolated_and_marked() -> None:
    model = read_profiles(TINY).models["tiny"]
    assert model.micro_batches("Beta-12", 1) == (1, 2, 4)
    assert model.interpolated == (Point("Beta-12", 1, 2), Point("Beta-12", 2, 2))
    low, middle, high = (model.times[Point("Beta-12", 1, b)].forward_s[1] for b in (1, 2, 4))
    assert middle == pytest.approx(low + (high - low) / 3)


def test_interpolation_can_be_refused() -> None:
    with pytest.raises(InputError) as error:
        read_profiles(TINY, interpolate=False)
    assert [p.field for p in error.value.problems] == ["mbs", "mbs"]
    assert "Beta-12 tp 1 has no times at mbs 2" in str(error.value)


def test_everything_wrong_is_told_at_once(folder: Path) -> None:
    edit(folder / "layer_times.csv", "fwd_ms", "fwd_msec")
    edit(folder / "layer_memory.csv", "tiny,1,0,40000000", "tiny,1,0,many")
    edit(folder / "network.csv", "inter_node_het,Alpha-32,1", "inter_node,Alpha-32,1")
    with pytest.raises(InputError) as error:
        read_profiles(folder)
    text = str(error.value)
    assert "has no column fwd_ms" in text
    assert "did you mean fwd_msec?" in text
    assert "line 2: param_count_per_gpu is 'many'" in text
    assert "did you mean intra_node?" in text


def test_layers_that_disagree_are_named(folder: Path) -> None:
    lines = (folder / "layer_times.csv").read_text().splitlines()
    dropped = [line for line in lines if not line.startswith("tiny,Alpha-32,2,4,3,")]
    (folder / "layer_times.csv").write_text("\n".join([*dropped, "tiny,Beta-12,1,1,6,1,1,1"]))
    with pytest.raises(InputError) as error:
        read_profiles(folder)
    text = str(error.value)
    assert "tiny: Alpha-32 tp 2 mbs 4 lacks layers 3" in text
    assert "tiny: Beta-12 tp 1 mbs 1 has layers 6 beyond the last" in text


def test_a_layer_that_takes_years_is_named(folder: Path) -> None:
    edit(
        folder / "layer_times.csv",
        "tiny,Alpha-32,2,2,3,5.5,11.55,1.0",
        "tiny,Alpha-32,2,2,3,5.5,18446744073709551616,1.0",
    )
    with pytest.raises(InputError, match=r"layer 3 of Alpha-32 tp 2 mbs 2: 1\.84467e\+19 ms"):
        read_profiles(folder)


def test_a_layer_larger_than_any_memory_is_named(folder: Path) -> None:
    rows = (folder / "layer_memory.csv").read_text().splitlines()
    model, tp, layer, _, *rest = rows[1].split(",")
    (folder / "layer_memory.csv").write_text(
        "\n".join([rows[0], ",".join([model, tp, layer, "1e308", *rest]), *rows[2:]])
    )
    with pytest.raises(InputError) as caught:
        read_profiles(str(folder))
    (problem,) = caught.value.problems
    assert "1e+308 parameters or elements" in problem.what
    assert "at most 1e+15" in problem.why


def test_times_without_sizes_are_an_error(folder: Path) -> None:
    edit(folder / "layer_times.csv", "tiny,", "other,")
    with pytest.raises(InputError, match="other has times and no sizes"):
        read_profiles(folder)


def test_a_link_without_bandwidth_is_an_error(folder: Path) -> None:
    edit(folder / "network.csv", ",4.0\n", ",0\n")
    with pytest.raises(InputError, match="max_GBps 0"):
        read_profiles(folder)


def test_a_link_given_twice_must_agree(folder: Path) -> None:
    file = folder / "network.csv"
    file.write_text(file.read_text() + "inter_node_het,Alpha-32,1,Beta-12,1,z1,z1,0,0,9,9\n")
    with pytest.raises(InputError, match="twice"):
        read_profiles(folder)


@pytest.mark.parametrize("name", ["layer_times.csv", "layer_memory.csv", "network.csv"])
def test_an_absent_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"has no {name}"):
        read_profiles(folder)


def test_a_path_that_is_no_folder() -> None:
    with pytest.raises(InputError, match="are no folder"):
        read_profiles(TINY / "layer_times.csv")


def test_the_other_names_of_the_files_are_read_too(folder: Path) -> None:
    (folder / "layer_times.csv").rename(folder / "layer_times_full.csv")
    (folder / "network.csv").rename(folder / "network_bandwidth_fits.csv")
    assert read_profiles(folder).models.keys() == {"tiny"}


def test_a_fit_stays_above_its_floor() -> None:
    falling = LinkFit(c2=-0.2, c1=0.1, c0=1.0, max_gb_s=2.0)
    assert falling.seconds(1e6) == pytest.approx(1e-3)
    assert falling.seconds(4e3) == pytest.approx(4e3 / (0.02 * 1e9))


def sailor_folder(root: Path) -> Path:
    """The first point and the first link of the invented profiles, as Sailor's tools write them."""
    tiny = read_profiles(TINY)
    model = tiny.models["tiny"]
    times = model.times[Point("Alpha-32", 1, 2)]
    layers = {
        str(i): [float(times.forward_s[i]), float(times.backward_s[i]), float(times.update_s[i])] for i in range(6)
    }
    file = root / "profiles" / "tiny" / "Alpha-32" / "profile.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"2": {"1": layers}}))
    size = model.sizes[1]
    names = ("params_floats", "act_input_floats", "act_output_floats", "act_mem_floats")
    columns = (size.parameters, size.input_elements, size.output_elements, size.saved_elements)
    rows = {str(i): dict(zip(names, (float(c[i]) for c in columns), strict=True)) for i in range(6)}
    (root / "llm_info.json").write_text(json.dumps({"tiny": {"1": rows}}))
    fit = {"Alpha-32": {"1": [[-0.002, 0.2, 2.0], 4.0e9]}}
    (root / "multizone_bandwidths_het.json").write_text(json.dumps({"z1": {"Alpha-32": {"1": {"z1": fit}}}}))
    (root / "intra_node_bandwidths.json").write_text(json.dumps({"Alpha-32": {"4": [[0.8, 16.0, 30.0], 240e9]}}))
    return root


def test_sailors_own_folder_gives_the_same_numbers(tmp_path: Path) -> None:
    ours, theirs = read_profiles(TINY), read_profiles(sailor_folder(tmp_path))
    point = Point("Alpha-32", 1, 2)
    assert theirs.models["tiny"].times[point].backward_s == pytest.approx(ours.models["tiny"].times[point].backward_s)
    assert (theirs.models["tiny"].sizes[1].saved_elements == ours.models["tiny"].sizes[1].saved_elements).all()
    between = next(route for route in theirs.links if route.kind == "inter_node_het")
    assert theirs.links[between] == ours.links[between]
    assert len(theirs.links) == 2


def test_faults_in_sailors_files_come_together(tmp_path: Path) -> None:
    root = sailor_folder(tmp_path)
    edit(root / "llm_info.json", '"params_floats": 40000000.0', '"params": 40000000.0')
    (root / "intra_node_bandwidths.json").write_text("{")
    with pytest.raises(InputError) as error:
        read_profiles(root)
    assert "tiny tp 1 layer 0" in str(error.value)
    assert "is not JSON" in str(error.value)
