"""One completion from request to record: rendered, recorded, sampled, recorded again, answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hermes_tui_common.errors import ApiError, TrainingError
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import (
    NAMED_REASONS,
    CompletionKind,
    CompletionOutcome,
    PrefixRef,
    Session,
    UntrainableReason,
    trained_where,
)
from hermes_tui_training.api.wire import SampledTokens
from hermes_tui_training.chat_template.prefix_match import (
    Recorded,
    canonical,
    completion_kind,
    retried,
)
from hermes_tui_training.engine.base import EngineOutput, SamplingParams
from hermes_tui_training.inference_gateway.context import Services
from hermes_tui_training.inference_gateway.sampling_plan import SamplingPlan
from hermes_tui_training.store.store import ConflictError, new_id

if TYPE_CHECKING:
    from hermes_tui_training.chat_template.prompt import Prompt
    from hermes_tui_training.chat_template.renderer import Chat
    from hermes_tui_training.chat_template.reply_stream import ReplyStream

logger = logging.getLogger(__name__)

MAX_WAITING = 256
"""Requests that may wait for a slot of the engine; more are refused for now with a 429."""

_BUSY_RETRY_S = 1.0
_REFRESHED_RETRY_S = 1.0
"""The new session is there already; the header has whole seconds."""

_BY_OUTCOME: tuple[UntrainableReason | None, ...] = (None, *NAMED_REASONS)
"""Outcomes after which a completion is or may be trained, if the grammar left it a choice."""

_TOKEN_EVENTS_S = 0.1
"""Least time between two ``completion.tokens`` events of a completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionDelta:
    """What a completion gained since the delta before."""

    message_delta: dict[str, Any]
    """OpenAI's delta of the message; empty while a tag or a character is not complete."""
    token_ids: tuple[int, ...]
    """The sampled tokens."""
    logprobs: tuple[float, ...]
    """Their log-probabilities, as many."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]
    """Their alternatives; empty when the client asked for none."""

    def joined(self, following: CompletionDelta) -> CompletionDelta | None:
        """Return this delta and the one after it as one, or None when they are better sent apart.

        Only texts of one kind are joined: clients add up the parts of a call by their chunks.
        """
        names = {*self.message_delta, *following.message_delta}
        if len(names) > 1 or not names <= {"content", "reasoning_content"}:
            return None
        deltas = (self.message_delta, following.message_delta)
        texts = {name: "".join(delta.get(name, "") for delta in deltas) for name in names}
        return CompletionDelta(
            message_delta=texts,
            token_ids=self.token_ids + following.token_ids,
            logprobs=self.logprobs + following.logprobs,
            top_logprobs=self.top_logprobs + following.top_logprobs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionResult:
    """How a completion ended; it has been recorded."""

    message_delta: dict[str, Any]
    """OpenAI's delta of the message, with what no ``CompletionDelta`` had yet."""
    message: dict[str, Any]
    """OpenAI's assistant message."""
    finish_reason: str
    """stop, length or tool_calls."""
    stop_text: str | None
    """The stop string that ended it; None when another reason did."""


def rendered_prompt(
    services: Services, session_id: str, plan: SamplingPlan
) -> tuple[Prompt, list[Recorded]]:
    """Return a request's prompt, and the session's newest completions, which it may continue.

    Raises: ApiError: 400: it cannot be rendered.
    """
    known = services.parents
    parents = known.of(session_id)
    prompt = _rendered(services.chat, plan, parents)
    if not prompt.continues_parent and (older := known.older(session_id)):
        prompt = _rendered(services.chat, plan, [*older, *parents])  # a fork from further back
    return prompt, parents


def _rendered(chat: Chat, plan: SamplingPlan, parents: list[Recorded]) -> Prompt:
    if plan.raw_prompt is not None:
        return chat.raw_prompt(plan.raw_prompt, parents=parents)
    return chat.prompt(plan.messages, tools=plan.tools, template=plan.template, parents=parents)


class CompletionRun:
    """One completion of a session: a reply to a request, or one of several."""

    def __init__(
        self,
        services: Services,
        session: Session,
        plan: SamplingPlan,
        *,
        choice: int = 0,
        first: CompletionRun | None = None,
    ) -> None:
        """
        Args:
            choice: number of the reply, from 0.
            first: the run of reply 0, for the others; it begins before them.
        """
        if plan.seed is not None:  # with the same one all choices would be the same
            plan = replace(plan, seed=plan.seed + choice)
        self.plan = plan
        self.choice = choice
        self._first = first
        self.completion_id: str = (
            f"{first.completion_id}:{choice}" if first else new_id(plan.id_prefix)
        )
        self.created_at = time.time()
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.prompt: Prompt
        self.episode_id = ""
        self.client_left = False
        """Set before the run's task is cancelled because nobody listens any more."""
        self.stopped_because = "the trainer was stopped"
        """Why the run's task is cancelled otherwise."""
        self._services = services
        self._session = session
        self._policy_versions: list[int] = []
        self._top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self._removed_probs: list[float] = []
        self._kind: CompletionKind = "turn"
        self._reply: ReplyStream
        self._sampling: SamplingParams
        self._started = time.monotonic()
        self._first_token_s: float | None = None
        self._recorded_top = services.config.training.gateway.top_logprobs
        self._unpublished = _TokenBuffer(self)

    # -- before sampling --------------------------------------------------------------------

    async def begin(self) -> None:
        """Render the prompt and record the request.

        Raises: ApiError: 400: it cannot be rendered or is too long. 401: the session was ended
            meanwhile. 409: its key was refreshed meanwhile. 429: too many requests wait.
        """
        waiting = self._services.engine.stats().num_waiting
        if waiting >= MAX_WAITING:
            raise ApiError(
                429,
                f"{waiting} completions wait for a slot; try again a little later.",
                retry_after_s=_BUSY_RETRY_S,
            )
        try:
            await asyncio.to_thread(self._begin)
        except ConflictError as error:
            sessions = self._services.store.sessions
            if await asyncio.to_thread(sessions.is_refreshed, self._session.session_id):
                raise ApiError(
                    409,
                    "A new session was started under this key meanwhile; send the request again.",
                    code="session_refreshed",
                    retry_after_s=_REFRESHED_RETRY_S,
                ) from error
            raise ApiError(401, f"{error}: its key works no longer.") from error
        except RecursionError as error:
            raise ApiError(400, "The request is nested too deeply.") from error

    def _begin(self) -> None:
        plan, chat = self.plan, self._services.chat
        parents: list[Recorded] = []
        if self._first is None:
            self.prompt, parents = rendered_prompt(self._services, self._session.session_id, plan)
        else:
            self.prompt = self._first.prompt
        max_tokens = self._max_tokens(len(self.prompt.token_ids))
        self._sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=plan.temperature,
            top_p=plan.top_p,
            top_k=plan.top_k,
            seed=plan.seed,
            stop=plan.stop,
            stop_token_ids=chat.stop_token_ids,
            top_logprobs=max(plan.top_logprobs, self._recorded_top),
            grammar=self._grammar(),
        )
        self._reply = chat.reply_stream(
            self.prompt,
            tools=plan.tools if plan.may_call else (),
            template=plan.template,
            stop=plan.stop,
            raw=plan.raw_prompt is not None,
        )
        self._kind = completion_kind(plan.messages)
        if self._first is not None and self._kind == "turn":
            self._kind = "choice"
        self.episode_id, _ = self._services.store.completions.begin(
            completion_id=self.completion_id,
            session_id=self._session.session_id,
            prompt_token_ids=self.prompt.token_ids,
            sampling=plan.sampling_record(max_tokens),
            request_messages=plan.messages,
            tools=plan.tools,
            prefix=self.prompt.prefix,
            kind=self._kind,
            retry_of=retried(plan.messages, parents),
            prefix_ref=self._prefix_ref(),
            continues=self.prompt.prefix["parent_completion_id"]
            if self.prompt.continues_parent
            else None,
            topics=self._services.config.training.topics,
        )

    def _grammar(self) -> str | None:
        plan = self.plan
        if plan.rules is None:
            return None
        if self.prompt.is_begun:
            text = "A reply that has begun cannot be held to a form; end with another's message."
            raise ApiError(400, text, param=plan.prompt_field)
        return self._services.chat.grammar(plan.rules, self.prompt, template=plan.template)

    def _prefix_ref(self) -> PrefixRef | None:
        """Return the recorded completion that this one begins with, if any."""
        prefix = self.prompt.prefix
        if prefix["parent_completion_id"] is None:
            return None
        return PrefixRef(
            completion_id=prefix["parent_completion_id"],
            num_tokens=prefix["shared_token_count"],
            num_messages=self.prompt.num_shared_messages,
        )

    def _max_tokens(self, num_prompt_tokens: int) -> int:
        limit = self._services.engine.max_model_len
        if num_prompt_tokens >= limit:
            raise ApiError(
                400,
                f"This model's maximum context length is {limit} tokens, but the prompt is "
                f"{num_prompt_tokens} tokens long. Shorten it, or start a new conversation.",
                code="context_length_exceeded",
                param=self.plan.prompt_field,
            )
        room = limit - num_prompt_tokens
        return min(self.plan.max_tokens or room, room)

    @contextlib.asynccontextmanager
    async def registered(self) -> AsyncIterator[None]:
        """Count as running, so that the process waits for the record before it ends."""
        self._services.running.add(self.completion_id)
        try:
            yield
        finally:
            self._services.running.discard(self.completion_id)

    # -- sampling ---------------------------------------------------------------------------

    async def run(self, emit: Callable[[CompletionDelta], None]) -> CompletionResult:
        """Sample; hand each piece to ``emit`` and return the outcome once it is recorded.

        Cancelling the task aborts the engine's request; what there is gets recorded.
        Raises: ApiError: 502: the engine failed. 500: the outcome could not be recorded.
        """
        try:
            engine_reason, stop_text = await self._sample(emit)
        except asyncio.CancelledError:
            await asyncio.shield(self.cancelled())
            raise
        except Exception as error:
            # Request boundary: whatever the engine raised belongs to this completion alone.
            logger.warning("completion failed id=%s: %s", self.completion_id, error)
            await self._record(None, None, "engine_error", str(error) or type(error).__name__)
            raise ApiError(
                502, f"The engine failed: {error}. The completion was recorded as it broke off."
            ) from error
        try:
            return await asyncio.shield(self._finish(engine_reason, stop_text))
        except ApiError:  # a full disk, in its own words
            raise
        except Exception as error:
            # Request boundary: an answer that is not recorded must not be given.
            logger.exception("completion not recorded id=%s", self.completion_id)
            raise ApiError(500, f"The completion could not be recorded: {error}.") from error

    async def _sample(self, emit: Callable[[CompletionDelta], None]) -> tuple[str, str | None]:
        """Return the engine's finish reason and the stop string that ended the completion."""
        outputs = self._services.engine.generate(self.prompt.token_ids, self._sampling)
        reason: str | None = None
        stop_text: str | None = None
        try:
            async for output in outputs:
                emit(self._take(output))
                reason, stop_text = output.finish_reason, output.stop_text
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]
        if reason is None:
            raise TrainingError("the engine ended a completion without a reason")
        return reason, stop_text

    def _take(self, output: EngineOutput) -> CompletionDelta:
        _check(output)
        if self._first_token_s is None:
            self._first_token_s = time.monotonic() - self._started
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self._policy_versions += output.policy_versions
        self._top_logprobs += output.top_logprobs
        self._removed_probs += output.removed_probs
        delta, texts = self._reply.push(output.token_ids)
        self._unpublished.add(output, texts)
        asked = self.plan.top_logprobs
        tops = tuple(top[:asked] for top in output.top_logprobs) if asked else ()
        return CompletionDelta(
            message_delta=delta,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            top_logprobs=tops,
        )

    # -- after sampling ---------------------------------------------------------------------

    async def _finish(self, engine_reason: str, stop_text: str | None) -> CompletionResult:
        final = self._reply.finish(stop_text)
        calls = final.message.get("tool_calls") and engine_reason == "stop"
        finish_reason = "tool_calls" if calls else engine_reason
        await self._record(finish_reason, final.message, self._obstacle(engine_reason), None)
        if self.token_ids:
            self._services.parents.add(self._session.session_id, self._recorded(final.message))
        return CompletionResult(
            message_delta=final.delta,
            message=final.message,
            finish_reason=finish_reason,
            stop_text=stop_text,
        )

    def _obstacle(self, engine_reason: str) -> UntrainableReason | None:
        """Return why a completion that ended well may not be trained, or None."""
        if self._kind == "aux":
            return "aux_call"
        if not self.token_ids:
            return "no_token_ids"
        if not self.plan.is_recomputable:
            return "sampling_mismatch"
        if engine_reason == "length" and not self._services.config.training.train_truncated:
            return "truncated"
        if self._kind == "choice":
            return "other_choice"
        return None

    def _recorded(self, message: dict[str, Any]) -> Recorded:
        return Recorded(
            completion_id=self.completion_id,
            token_ids=self.prompt.token_ids + tuple(self.token_ids),
            num_prompt_tokens=len(self.prompt.token_ids),
            request=self.prompt.request,
            answer=canonical([message]),
            context=self.prompt.context,
            messages=self.prompt.messages,
        )

    async def cancelled(self) -> None:
        """Record that it was cancelled, with what there is.

        A partial reply can be continued, since the client may have it.
        """
        message = self._reply.finish().message if self.token_ids else None
        if self.client_left:
            await self._record(None, message, "client_left", "the client left")
        else:
            await self._record(None, message, "engine_error", self.stopped_because)
        if message is not None:
            self._services.parents.add(self._session.session_id, self._recorded(message))

    async def _record(
        self,
        finish_reason: str | None,
        message: dict[str, Any] | None,
        untrainable_reason: UntrainableReason | None,
        error: str | None,
    ) -> None:
        self._unpublished.flush(self._reply.rest)
        trained = trained_where(self._removed_probs, len(self.token_ids))
        if self.token_ids and not any(trained) and untrainable_reason in _BY_OUTCOME:
            untrainable_reason = "constrained"
        latency = {"total_s": time.monotonic() - self._started}
        if self._first_token_s is not None:
            latency["ttft_s"] = self._first_token_s
        await self._services.outcomes.record(
            CompletionOutcome(
                completion_id=self.completion_id,
                token_ids=self.token_ids,
                logprobs=self.logprobs,
                policy_versions=self._policy_versions,
                top_logprobs=tuple(self._top_logprobs),
                removed_probs=self._removed_probs,
                finish_reason=finish_reason,
                message=message,
                latency=latency,
                trainable=untrainable_reason is None,
                untrainable_reason=untrainable_reason,
                error=error,
            )
        )
        logger.info(
            "completion recorded id=%s episode=%s tokens=%s seconds=%.2f untrainable=%s",
            self.completion_id,
            self.episode_id,
            len(self.token_ids),
            latency["total_s"],
            untrainable_reason,
        )

    def publish_tokens(
        self,
        *,
        start: int,
        token_ids: Sequence[int],
        texts: Sequence[str],
        logprobs: Sequence[float],
        policy_versions: Sequence[int],
    ) -> None:
        """Send sampled tokens to the views; ``start`` is the position of the first."""
        payload = SampledTokens(
            completion_id=self.completion_id,
            session_id=self._session.session_id,
            episode_id=self.episode_id,
            start=start,
            token_ids=tuple(token_ids),
            texts=tuple(texts),
            logprobs=tuple(logprobs),
            policy_versions=tuple(policy_versions),
        )
        self._services.store.events.publish_transient(
            EventKind.COMPLETION_TOKENS, payload.model_dump()
        )


class _TokenBuffer:
    """Gathers a completion's tokens; sends them to the views a few times a second."""

    def __init__(self, run: CompletionRun) -> None:
        self._run = run
        self._published_at = -math.inf
        self._start = 0
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[float] = []
        self._policy_versions: list[int] = []

    def add(self, output: EngineOutput, texts: list[str]) -> None:
        """Take sampled tokens; send what is there, unless something was sent just before.

        A character that is not complete waits: how its last token shows is not known yet.
        """
        self._token_ids += output.token_ids
        self._texts += texts
        self._logprobs += output.logprobs
        self._policy_versions += output.policy_versions
        if texts[-1] and time.monotonic() - self._published_at >= _TOKEN_EVENTS_S:
            self.flush()

    def flush(self, rest: str = "") -> None:
        """Send what has not been sent.

        Args:
            rest: text of a character that is incomplete at the completion's end.
        """
        if not self._token_ids:
            return
        self._texts[-1] += rest
        self._run.publish_tokens(
            start=self._start,
            token_ids=self._token_ids,
            texts=self._texts,
            logprobs=self._logprobs,
            policy_versions=self._policy_versions,
        )
        self._start += len(self._token_ids)
        self._published_at = time.monotonic()
        for column in (self._token_ids, self._texts, self._logprobs, self._policy_versions):
            column.clear()


def _check(output: EngineOutput) -> None:
    """Raise TrainingError unless an output can be recorded and trained."""
    lengths = {len(output.token_ids), len(output.logprobs), len(output.policy_versions)}
    if output.top_logprobs:
        lengths.add(len(output.top_logprobs))
    if output.removed_probs:
        lengths.add(len(output.removed_probs))
    if len(lengths) != 1:
        raise TrainingError(
            f"the engine returned {len(output.token_ids)} tokens, {len(output.logprobs)} logprobs "
            f"and {len(output.policy_versions)} versions"
        )
    values = [*output.logprobs, *(p for top in output.top_logprobs for _, p in top)]
    if not all(isinstance(value, float | int) and math.isfinite(value) for value in values):
        raise TrainingError("the engine returned a logprob that is no number")
