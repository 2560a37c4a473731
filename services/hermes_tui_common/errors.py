"""The product's error tree: one class for each kind of person who can put things right.

It is here because every other package imports this one.
"""

from __future__ import annotations


class HermesTuiError(Exception):
    """Root of every error that this product raises on purpose; its text is fit for a person."""


class ConfigError(HermesTuiError):
    """The user's configuration or command line is wrong; the text says which key and what to do."""


class StackError(HermesTuiError):
    """A process of the stack could not be started, or died."""


class ServiceError(HermesTuiError):
    """Another process answered with an error, or did not answer.

    What every HTTP client of ours raises; RefusedError and UnreachableError say which it was.
    """


class UnreachableError(ServiceError):
    """Another process does not answer."""

    @classmethod
    def of(cls, service: str, cause: Exception) -> UnreachableError:
        """Return the error of a service that did not answer because of ``cause``."""
        return cls(f"{service} does not answer: {cause_of(cause)}")


class TrainingError(HermesTuiError):
    """A training step or a model operation could not be done."""


class ApiError(HermesTuiError):
    """The error with which a server answers a request, in OpenAI's shape.

    Args:
        status: HTTP status code.
        message: what happened, to what, and what to do.
        code: machine-readable reason, such as ``context_length_exceeded``; None when there is none.
        param: the request field at fault, or None.
        retry_after_s: sent as ``Retry-After``, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        """OpenAI's coarse error class for this status."""
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else _INVALID)

    def body(self) -> dict[str, dict[str, str | None]]:
        """Return ``{"error": {"message", "type", "code", "param"}}``."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "code": self.code,
                "param": self.param,
            }
        }


class RefusedError(ServiceError):
    """Another process answered a client of ours with an error.

    Args:
        error: the answer; its status, code and param are kept.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.status = error.status
        self.code = error.code
        self.param = error.param


def cause_of(error: Exception) -> str:
    """Return what a failed call died of, in a few words."""
    return str(error) or type(error).__name__


_INVALID = "invalid_request_error"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
