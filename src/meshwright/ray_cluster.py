"""Joining a Ray cluster, or starting one of this machine; Ray is imported only where a cluster is asked for."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError

ANSWER_S = 15.0
"""An address that has not answered by then is refused."""
PROBE_S = 4.0
"""A port that nobody listens on is refused by then."""
HERE = "local"
"""Address of a cluster of this machine alone, started for the purpose."""
CODE = "MW245"


def ray_module() -> ModuleType:
    """Ray.

    Raises:
        UnsupportedError: it is not installed; says how to install it.
    """
    # Ray asks the network for nothing but the cluster.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        what = "--ray needs Ray, and it is not installed"
        problem = Problem(what=what, why="it is an extra", fix="pip install 'meshwright[ray]'", field="--ray")
        raise UnsupportedError(problem, code="MW409") from None
    return ray


def connect(ray: ModuleType, address: str) -> None:
    """Join a cluster, or start one of this machine.

    Args:
        ray: the module.
        address: `host:port`, `auto` for the cluster that RAY_ADDRESS or this machine has, or `local`.

    Raises:
        InputError: nothing answers there within 15 s.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": None}
    if address == HERE:
        with quiet_stderr():
            start_here(ray, num_cpus=os.cpu_count(), log_to_driver=False, logging_level="ERROR")
        return
    started = time.monotonic()
    found = _bootstrap(address)
    if found is not None:
        _probe(address, found)
        _ask(address, ANSWER_S - (time.monotonic() - started))
    # The probes answered; what is left is local. A thread keeps even that from waiting for ever.
    ended: list[BaseException | None] = []

    def join() -> None:
        try:
            ray.init(address=address, **options)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    if found is not None and threading.current_thread() is threading.main_thread():
        with quiet_stderr():
            join()
    else:
        thread = threading.Thread(target=join, daemon=True)
        with quiet_stderr():
            thread.start()
            thread.join(max(1.0, ANSWER_S - (time.monotonic() - started)))
    if not ended:
        raise _no_answer(address, f"nothing came back within {ANSWER_S:.0f} s")
    if ended[0] is not None:
        raise _no_answer(address, (str(ended[0]).splitlines() or [type(ended[0]).__name__])[0][:200])


def start_here(ray: ModuleType, **options: Any) -> None:
    """Start Ray on this machine, in a second folder if it does not start in its own.

    Sockets of a folder with a long name cannot be made, and a machine under load now and then starts none in time.

    Args:
        ray: the module.
        options: the options of `ray.init`.

    Raises:
        InputError: it does not start there either.
    """
    # Ray starts workers behind everything else that this machine does; these are what it is asked for.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(address="local", include_dashboard=False, **options)
        return
    except Exception:
        ray.shutdown()
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        ray.init(address="local", include_dashboard=False, _temp_dir=folder, **options)
    except Exception as error:
        ray.shutdown()
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        what, fix = "Ray does not start on this machine", "look at the memory and disk that are free, then try again"
        raise InputError(what=what, why=why, fix=fix, field="--ray", code=CODE) from None


def _bootstrap(address: str) -> tuple[str, int] | None:
    """Host and port of an address, None where Ray itself knows where to look.

    Raises:
        InputError: it is not an address.
    """
    text = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if text == "auto":
        return None
    host, colon, port = text.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        what = f"--ray is {address[:80]!r}"
        fix = "give host:port, auto for the cluster of this machine, or local to start one here"
        raise InputError(what=what, why="it is no address", fix=fix, field="--ray", code=CODE)
    return host.strip("[]"), int(port)


def _probe(address: str, place: tuple[str, int]) -> None:
    """Whether anybody listens.

    Raises:
        InputError: nobody does.
    """
    try:
        socket.create_connection(place, timeout=PROBE_S).close()
    except OSError as error:
        raise _no_answer(address, (error.strerror or str(error) or type(error).__name__).lower()[:200]) from None


def _ask(address: str, limit_s: float) -> None:
    """Whether what listens is Ray, asked by another process, which can be ended if it is not.

    Raises:
        InputError: it is not, or it does not say so in time.
    """
    command = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", command, address],  # -P: no ray.py of the working folder is imported
            timeout=max(1.0, limit_s),
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_answer(address, f"something listens there, but no Ray answered within {ANSWER_S:.0f} s") from None
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["it is no Ray"])[-1]
        raise _no_answer(address, f"something listens there, but it is no Ray of this version: {last[:160]}")


def _no_answer(address: str, why: str) -> InputError:
    what = f"the Ray address {address[:80]!r} does not answer"
    fix = "start it with `ray start --head --port=6379`, or give local to start one here"
    return InputError(what=what, why=why, fix=fix, field="--ray", code=CODE)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Nothing of what other libraries print reaches the terminal while the body runs."""
    sys.stderr.flush()
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
