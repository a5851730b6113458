"""Training logs as measured steps: one file per framework, one record for all."""

from meshwright.formats.logs.read import FRAMEWORKS, read_log
from meshwright.formats.logs.record import Logged, LoggedStep, RunLog, steady

__all__ = ["FRAMEWORKS", "Logged", "LoggedStep", "RunLog", "read_log", "steady"]
