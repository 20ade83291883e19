"""The exceptions of ``pipeline``. Messages name URLs and settings; credentials in them are masked."""

from __future__ import annotations

import logging

from pipeline.codec import CoreConfigError, redact


class PipelineError(Exception):
    """Root of every error this package raises on purpose."""

    def __init__(self, *message: object) -> None:
        super().__init__(*(redact(part) if isinstance(part, str) else part for part in message))


class ConfigError(PipelineError, CoreConfigError):
    """A configuration value is unknown, out of range, or contradicts another; also a ``wedlm_core.ConfigError``."""


class SourceError(PipelineError, ValueError):
    """The input cannot be read, lacks a column, or differs from the input of an earlier run of this output."""


class OutputError(PipelineError):
    """The output folder cannot be used: it exists, is not ours, or is not finished."""


class FingerprintError(OutputError, ValueError):
    """The output was begun with other settings than these; the message lists each difference."""


class DamagedError(OutputError):
    """A file of the output is missing, cut or altered, and is not replaced unless the user asks for it.

    Attributes:
        fault: the damaged object and its damage; the message without the remedy.
    """

    def __init__(self, fault: str, remedy: str = "") -> None:
        """``remedy``: sentences that are appended to the message."""
        super().__init__(f"{fault}. {remedy}" if remedy else fault)
        self.fault = redact(fault)


class LeaseError(OutputError):
    """Another live run is writing to this output."""


class LeaseLostError(PipelineError):
    """Another run took this output over while this one was writing; committed rows stay, a re-run continues."""


class SinkError(PipelineError):
    """A result could not be written, also after retries."""


class StoppedError(PipelineError):
    """The run was asked to stop, and did; committed rows stay, a re-run continues."""


class ResourceError(PipelineError):
    """The cluster lacks resources that the actors ask for."""


class ClusterLostError(PipelineError):
    """The head of the Ray cluster is gone; committed rows stay, a re-run on a new head continues."""


class EngineDiedError(PipelineError):
    """Generate actors died more often than allowed; committed rows stay, a re-run continues."""


class TooManyFailuresError(PipelineError):
    """More rows failed than ``max_failed_fraction`` allows; committed rows stay, a re-run continues."""


def log_failure(log: logging.Logger, what: str, error: Exception) -> None:
    """Log a failure that ends no run; with a traceback only where the cause is not outside, such as a full disk."""
    log.warning("%s: %s", what, redact(str(error)), exc_info=not isinstance(error, (PipelineError, OSError)))
