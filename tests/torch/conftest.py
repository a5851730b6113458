"""Tests against PyTorch itself, which `make test-torch` installs and runs; without it they are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
