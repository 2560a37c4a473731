"""The model calls of one turn: what they used, whether one was cut, how much is left to sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class ModelCalls:
    """Counts a turn's model calls and holds them to one bound.

    Hermes counts tokens itself, but not those of calls whose reply was cut, and it bounds each call
    on its own.

    Args:
        max_tokens: tokens that all calls of the turn may sample together; None: no bound.
    """

    def __init__(self, max_tokens: int | None) -> None:
        self._left = max_tokens
        self._running = False
        self._usage: dict[str, int] | None = {}
        self.cut = False
        """Whether a reply of the turn filled its call's max_tokens."""
        self.exhausted = False
        """Whether the turn has sampled all that it may, and the agent wanted more."""
        self.refusal: str | None = None
        """What the model server said when it refused the last call; None when it did not."""

    def run(self, call: Callable[..., Any], request: dict[str, Any], **options: Any) -> Any:
        """Make a model call and return its response. Raises: InterruptedError: nothing is left."""
        if self._running:  # Hermes goes on without streaming where the server cannot stream
            return call(request, **options)
        if self.exhausted:
            raise InterruptedError("the turn has sampled all that it may")
        if self._left is not None:
            request = {
                **request,
                "max_tokens": min(request.get("max_tokens", self._left), self._left),
            }
        self._running = True
        try:
            response = call(request, **options)
        except BaseException as error:
            if getattr(error, "status_code", None) is None:  # a refused request has sampled nothing
                self._usage = None
            self.refusal = refusal_of(error)
            raise
        finally:
            self._running = False
        self.refusal = None
        self._add(response, request)
        return response

    @property
    def usage(self) -> dict[str, int] | None:
        """The tokens of all calls under OpenAI's names; None when those of one are not known."""
        return self._usage or None

    def unknown(self) -> None:
        """Note a call that was not made by ``run``."""
        self._usage = None

    def _add(self, response: Any, request: dict[str, Any]) -> None:
        read, sampled = (
            getattr(getattr(response, "usage", None), name, None)
            for name in ("prompt_tokens", "completion_tokens")
        )
        if read is None or sampled is None:
            self._usage = None
        elif self._usage is not None:
            added = {"input_tokens": read, "output_tokens": sampled, "total_tokens": read + sampled}
            self._usage = {name: self._usage.get(name, 0) + n for name, n in added.items()}
        choice = next(iter(getattr(response, "choices", None) or ()), None)
        cut = getattr(choice, "finish_reason", None) == "length"
        # Hermes makes such a response of a stream that broke off, and has no usage for it.
        broke = cut and sampled is None
        self.cut = self.cut or (cut and not broke)
        if self._left is not None:
            self._left -= request["max_tokens"] if sampled is None else sampled
            calls = getattr(getattr(choice, "message", None), "tool_calls", None)
            self.exhausted = self._left <= 0 and bool(cut or calls)


def refusal_of(error: BaseException) -> str | None:
    """Return what a server said that refused a call: its status, and an error of OpenAI's shape.

    Nothing else of its answer is passed on: it may be another server than whoever named it says.

    Returns: None when it was no refusal.
    """
    status = getattr(error, "status_code", None)
    if status is None:
        return None
    body = getattr(error, "body", None)  # OpenAI's client has taken it out of "error"
    body = body if isinstance(body, Mapping) and "type" in body else {}
    message = body.get("message")
    if not isinstance(message, str):
        return f"it answered {status}"
    code = f" {body['code']}" if isinstance(body.get("code"), str) else ""
    return f"it answered {status}{code:.100}: {message:.2000}"
