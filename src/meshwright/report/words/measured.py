"""Whether the folder of profiles of a plan of measured layers still says what the plan was made with."""

from __future__ import annotations

from meshwright.errors import MeshwrightError
from meshwright.formats.profiles import read_profiles
from meshwright.planning.compose.sources.profiles.job import same_numbers
from meshwright.specs.measured import MeasuredJob


def folder_notes(job: MeasuredJob) -> tuple[str, ...]:
    """Whether the profiles changed since the plan was made; the plan keeps its own numbers."""
    profile = job.profile
    own = "the plan is priced with the numbers that its file carries"
    interpolated = sum(point.basis == "interpolated" for point in profile.points)
    notes = (f"{interpolated} of its {len(profile.points)} points are interpolated",) if interpolated else ()
    try:
        found = read_profiles(profile.source)
    except MeshwrightError:
        return (*notes, f"the profiles in {profile.source} are gone or cannot be read; {own}")
    if same_numbers(job, found):
        return notes
    return (*notes, f"the profiles in {profile.source} changed since; {own}: plan again with --profiles to use them")
