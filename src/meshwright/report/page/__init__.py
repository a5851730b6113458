"""One page of an answer: modules without a build step, drawn live by `web` and from one file by `report`."""
