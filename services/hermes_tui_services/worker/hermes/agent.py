"""The Hermes agent in the worker's process: one ``AIAgent`` per session, one thread per turn.

The only file that imports Hermes. ``load`` changes what hermes-agent 0.19.0 does for a person at a
terminal and a service must not do; each change says why. It uses private names, so the version is
pinned, and the worker does not start with a version that lacks one.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import importlib.metadata
import json
import logging
import secrets
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx

from hermes_tui_common.errors import ApiError, ConfigError, StackError
from hermes_tui_common.serving import report_notices
from hermes_tui_services.api.agent import AgentRequest, AgentResponse, EventEmitter, TurnInterrupted
from hermes_tui_services.api.config import WorkerRole
from hermes_tui_services.api.events import (
    ReasoningArrived,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnError,
    TurnEvent,
)
from hermes_tui_services.api.protocol import Upstream
from hermes_tui_services.api.workdirs import digest, session_dir
from hermes_tui_services.worker.approvals import COMMAND_CHOICES, Questions
from hermes_tui_services.worker.hermes import guards
from hermes_tui_services.worker.hermes import home as hermes_home
from hermes_tui_services.worker.hermes.model_calls import ModelCalls
from hermes_tui_services.worker.hermes.results import MAX_TURNS_USED, response_of

logger = logging.getLogger(__name__)

CHECKED_VERSION = "0.19.0"
"""The version of hermes-agent whose private names are used here."""

MAX_TURN_THREADS = 256
"""Turns at once in one worker; more wait. A turn mostly waits for the model."""

FALLBACK_MODEL = "policy"
"""Model name sent when neither the turn nor the configuration has one; Hermes needs some."""

_MODULES = (
    "run_agent", "toolsets", "hermes_logging",
    "agent.agent_init", "agent.conversation_loop", "agent.runtime_cwd", "agent.ssl_guard",
    "agent.ssl_verify", "gateway.session_context", "tools.approval", "tools.file_tools",
    "tools.process_registry", "tools.terminal_tool",
)  # fmt: skip

_LOG_LEVELS = dict.fromkeys(
    ("agent", "gateway", "hermes_cli", "model_tools", "plugins", "run_agent", "tools"), "WARNING"
) | {"agent.tool_executor": "ERROR", "tools.registry": "ERROR"}
"""Hermes' loggers. At INFO they write several lines per turn, with what the user said; the last two
warn of each tool that fails, with its output."""

_MODEL_CALLS = ("_interruptible_api_call", "_interruptible_streaming_api_call")
"""The methods with which Hermes calls the model."""

_PRIVATE_NAMES = {
    "run_agent": ("AIAgent", "_get_proxy_for_base_url"),
    "run_agent.AIAgent": (
        "_build_keepalive_http_client", "_cleanup_task_resources", "_dump_api_request_debug",
        *_MODEL_CALLS, "_openai_client_lock", "clear_interrupt", "close", "interrupt",
        "run_conversation",
    ),
    "hermes_logging": ("setup_logging",),
    "agent.agent_init": ("query_ollama_num_ctx",),
    "agent.conversation_loop": ("estimate_usage_cost",),
    "agent.runtime_cwd": ("set_session_cwd",),
    "agent.ssl_guard": ("verify_ca_bundle_with_fallback",),
    "agent.ssl_verify": ("resolve_httpx_verify",),
    "gateway.session_context": ("set_session_vars",),
    "toolsets": ("get_toolset_names", "validate_toolset"),
    "tools.approval": (
        "_command_matches_permanent_allowlist", "_gateway_queues", "_get_approval_config",
        "check_all_command_guards", "clear_session", "detect_dangerous_command",
        "register_gateway_notify", "save_permanent_allowlist", "set_current_session_key",
        "unregister_gateway_notify",
    ),
    "tools.file_tools": (
        "_check_sensitive_path", "_registered_task_cwd_override", "_resolve_path_for_task",
        "read_file_tool", "search_tool",
    ),
    "tools.process_registry": ("process_registry",),
    "tools.terminal_tool": (
        "cleanup_vm", "clear_task_env_overrides", "register_task_env_overrides",
    ),
}  # fmt: skip

_INSTANCE_NAMES = ("_client_kwargs", "_primary_runtime", "client", "request_overrides")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hermes:
    """The parts of Hermes that a session uses."""

    AIAgent: Any
    approval: Any
    runtime_cwd: Any
    session_context: Any
    terminal: Any
    toolsets: Any


@functools.cache
def load(role: WorkerRole) -> Hermes:
    """Import Hermes and correct it; ``hermes_home.prepare`` must have run before. Once a process.

    Raises: ConfigError: hermes-agent is not installed. StackError: it is another version than the
    one that was checked, and a name is missing.
    """
    factory, root = logging.getLogRecordFactory(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for name, quiet in _LOG_LEVELS.items():
        logging.getLogger(name).setLevel(quiet)
    try:
        modules = {name: importlib.import_module(name) for name in _MODULES}
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the Hermes agent needs hermes-agent=={CHECKED_VERSION}: {error}; "
            "pip install 'hermes-tui[agent]'"
        ) from error
    finally:
        # Hermes makes the process's logging its own.
        logging.setLogRecordFactory(factory)
        root.handlers[:], root.level = handlers, level
    _check_names(modules)
    _correct(modules)
    guards.install(modules, role)
    return Hermes(
        AIAgent=modules["run_agent"].AIAgent,
        approval=modules["tools.approval"],
        runtime_cwd=modules["agent.runtime_cwd"],
        session_context=modules["gateway.session_context"],
        terminal=modules["tools.terminal_tool"],
        toolsets=modules["toolsets"],
    )


def _check_names(modules: dict[str, Any]) -> None:
    missing = [
        f"{place}.{name}"
        for place, names in _PRIVATE_NAMES.items()
        for name in names
        if not hasattr(modules.get(place) or modules["run_agent"].AIAgent, name)
    ]
    if missing:
        raise StackError(_unknown_version(missing))


def _unknown_version(missing: list[str]) -> str:
    version = importlib.metadata.version("hermes-agent")
    return (
        f"hermes-agent {version} has no {', '.join(missing)}; the worker was checked with "
        f"{CHECKED_VERSION}: pip install 'hermes-agent=={CHECKED_VERSION}'"
    )


def _correct(modules: dict[str, Any]) -> None:
    run_agent = modules["run_agent"]
    agent = run_agent.AIAgent
    # Hermes' interrupt closes only sockets of the client's own transport. Behind a proxy httpx puts
    # them into mounts, and the request would run on (NousResearch/hermes-agent#72975).
    agent._build_keepalive_http_client = staticmethod(
        functools.partial(_http_client, run_agent._get_proxy_for_base_url)
    )
    # Hermes writes the whole text of each failed request to a file, without a limit.
    agent._dump_api_request_debug = lambda self, *args, **kwargs: None
    # Hermes ends the shell after each turn; here it lives as long as the session.
    agent._cleanup_task_resources = lambda self, task_id: None
    modules["hermes_logging"].setup_logging = lambda *args, **kwargs: None
    # Hermes asks the upstream for Ollama's context size and for prices: calls beside the turn's.
    modules["agent.agent_init"].query_ollama_num_ctx = lambda *args, **kwargs: None
    unknown_cost = SimpleNamespace(amount_usd=None, status="unknown", source="none")
    modules["agent.conversation_loop"].estimate_usage_cost = lambda *args, **kwargs: unknown_cost
    # Reading the CA bundle takes 25 ms each time, six times for a new agent.
    ssl_verify = modules["agent.ssl_verify"]
    original = ssl_verify.resolve_httpx_verify
    ssl_verify.resolve_httpx_verify = functools.cache(
        lambda **kwargs: _ssl_context(original(**kwargs))
    )
    modules["agent.ssl_guard"].verify_ca_bundle_with_fallback = functools.cache(
        modules["agent.ssl_guard"].verify_ca_bundle_with_fallback
    )


def _ssl_context(verify: bool | ssl.SSLContext) -> bool | ssl.SSLContext:
    return httpx.create_ssl_context() if verify is True else verify


def _http_client(
    proxy_of: Callable[[str], str | None], base_url: str = "", *, verify: Any = True
) -> httpx.Client:
    limits = httpx.Limits(max_keepalive_connections=4, max_connections=16, keepalive_expiry=20.0)
    return httpx.Client(
        transport=httpx.HTTPTransport(verify=verify, limits=limits, proxy=proxy_of(base_url)),
        timeout=httpx.Timeout(connect=15.0, read=None, write=15.0, pool=10.0),
    )


class HermesSession:
    """One conversation's ``AIAgent``, shell and directory."""

    def __init__(self, key: str, hermes: Hermes, config: WorkerRole, questions: Questions) -> None:
        self.session_id = f"s-{digest(key)}"
        """What Hermes knows the session by: its tools make names and paths of it."""
        self.workdir = session_dir(config.workdir, key)
        self._key = key
        self._hermes = hermes
        self._config = config
        self._questions = questions
        self._agent: Any = None
        self._push: Callable[[TurnEvent], None] = lambda event: None
        self._interrupted = threading.Event()
        self._calls = ModelCalls(None)
        self._said: list[str] = []

    def turn(self, request: AgentRequest, upstream: Upstream, emitter: EventEmitter) -> Any:
        """Answer one message; blocks its thread. Raises: TurnInterrupted, ApiError."""
        self._push = emitter.push
        agent = self._agent = self._agent or self._create(upstream)
        # An interrupt that came while nothing ran would end this turn before it began.
        agent.clear_interrupt()
        if self._interrupted.is_set():
            raise TurnInterrupted
        self._point_at(agent, upstream)
        self._configure(agent, request.metadata)
        self._bind_thread()
        result = agent.run_conversation(
            request.message,
            conversation_history=[dict(row) for row in request.history],
            task_id=self.session_id,
        )
        calls = self._calls
        if calls.exhausted and not self._interrupted.is_set():
            return self._stopped_at_bound(result)
        if str(result.get("turn_exit_reason") or "").startswith(MAX_TURNS_USED):
            calls.unknown()  # Hermes asked for a summary, by a way of its own
        try:
            return response_of(
                result,
                history=request.history,
                message=request.message,
                usage=calls.usage,
                cut=calls.cut,
                upstream=upstream.shown,
                refusal=calls.refusal,
            )
        except ApiError as error:
            raise TurnError(error, calls.usage) from error

    def _stopped_at_bound(self, result: dict[str, Any]) -> AgentResponse:
        """Return the response of a turn that sampled all that it may; its text is what was said."""
        metadata = {
            "api_calls": int(result.get("api_calls") or 0),
            "usage": self._calls.usage,
            "incomplete_details": {"reason": "max_output_tokens"},
        }
        return AgentResponse(summary="".join(self._said), metadata=metadata)

    def _model_call(self, call: Callable[..., Any], request: dict[str, Any], **options: Any) -> Any:
        response = self._calls.run(call, request, **options)
        if self._calls.exhausted:
            self._agent.interrupt()  # Hermes would go on: with the rest of a reply, or with a tool
        return response

    def begin(self) -> None:
        """Clear earlier interrupts; call it before the turn's thread starts."""
        self._interrupted.clear()

    def interrupt(self) -> None:
        """Stop the turn that runs; its request is closed. From any thread."""
        self._interrupted.set()
        if self._agent is not None:
            self._agent.interrupt("interrupted by the user")

    def finish(self) -> None:
        """Expire the open questions: the turn is over."""
        self._questions.close(self._key)

    def close(self) -> None:
        """Free the agent and its shell; the directory stays. Blocks for up to a second."""
        hermes, session_id = self._hermes, self.session_id
        hermes.approval.unregister_gateway_notify(session_id)
        hermes.approval.clear_session(session_id)
        hermes.terminal.cleanup_vm(session_id)
        hermes.terminal.clear_task_env_overrides(session_id)
        if self._agent is not None:
            self._agent.close()

    def _create(self, upstream: Upstream) -> Any:
        settings = self._config.agent
        self.workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
        agent = self._hermes.AIAgent(
            base_url=upstream.base_url,
            api_key=upstream.api_key,
            model=upstream.model,
            provider=None,  # "custom" would add max_tokens=65536 and calls of its own
            api_mode="chat_completions",
            max_iterations=settings.max_turns,
            tool_delay=0,  # seconds of sleep between two tool calls
            enabled_toolsets=list(settings.enabled_toolsets),
            disabled_toolsets=list(settings.disabled_toolsets) or None,
            quiet_mode=True,
            session_id=self.session_id,
            skip_memory=True,
            skip_context_files=True,
            session_db=None,
            stream_delta_callback=self._on_delta,
            reasoning_callback=lambda text: self._push(ReasoningArrived(text=text)),
            tool_start_callback=self._on_tool_start,
            tool_complete_callback=self._on_tool_complete,
            clarify_callback=self._on_clarify,
        )
        if missing := [name for name in _INSTANCE_NAMES if not hasattr(agent, name)]:
            raise StackError(_unknown_version([f"AIAgent.{name}" for name in missing]))
        for name in _MODEL_CALLS:
            setattr(agent, name, functools.partial(self._model_call, getattr(agent, name)))
        agent.suppress_status_output = True
        agent._print_fn = lambda *args, **kwargs: None
        agent._cached_system_prompt = ""  # only ephemeral_system_prompt is sent: it is all ours
        overrides = {"cwd": str(self.workdir), "env_type": "local"}  # its own shell
        self._hermes.terminal.register_task_env_overrides(self.session_id, overrides)
        self._hermes.approval.register_gateway_notify(self.session_id, self._on_command)
        return agent

    def _point_at(self, agent: Any, upstream: Upstream) -> None:
        """Send the turn's calls to its upstream.

        Each call makes its client from these, but the summary at the last allowed call, which goes
        through the agent's first client.
        """
        url, key = upstream.base_url, upstream.api_key
        with agent._openai_client_lock():
            agent.api_key, agent.base_url, agent.model = key, url, upstream.model
            agent._client_kwargs.update(api_key=key, base_url=url)
            agent.client.api_key, agent.client.base_url = key, url
        agent._primary_runtime.update(
            model=upstream.model,
            base_url=url,
            api_key=key,
            client_kwargs=dict(agent._client_kwargs),
        )

    def _configure(self, agent: Any, metadata: dict[str, Any]) -> None:
        settings = self._config.agent
        prompts = (settings.system_prompt, str(metadata.get("instructions") or ""))
        agent.ephemeral_system_prompt = "\n\n".join(filter(None, prompts)) or None
        sampling = metadata.get("sampling") or {}
        self._calls, self._said = ModelCalls(sampling.get("max_tokens")), []
        # Given here and not as an argument, Hermes does not raise it when a reply is cut.
        agent.request_overrides = {
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            **sampling,
        }

    def _bind_thread(self) -> None:
        """Tell Hermes' tools which session the current thread works for."""
        self._hermes.approval.set_current_session_key(self.session_id)
        self._hermes.runtime_cwd.set_session_cwd(str(self.workdir))
        self._hermes.session_context.set_session_vars(
            session_id=self.session_id,
            session_key=self.session_id,
            cwd=str(self.workdir),
            async_delivery=False,
        )

    def _on_delta(self, text: str | None) -> None:
        if text:
            self._said.append(text)
            self._push(TextArrived(text=text))

    def _on_tool_start(self, call_id: str, name: str, args: object) -> None:
        text = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
        self._said = []  # the reply is what is said after the last call
        self._push(ToolCalled(call_id=call_id, name=name, arguments=text))

    def _on_tool_complete(self, call_id: str, name: str, args: object, result: object) -> None:
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        self._push(ToolReturned(call_id=call_id, name=name, output=text))

    def _on_command(self, data: dict[str, Any]) -> None:
        """Ask whether a dangerous command may run; Hermes waits until its entry is set."""
        entries = self._hermes.approval._gateway_queues.get(self.session_id, ())
        entry = next(entry for entry in entries if entry.data is data)

        def decide(choice: str, reason: str | None) -> None:
            entry.result, entry.reason = choice, reason
            entry.event.set()

        if self._config.agent.approvals == "deny":
            decide("deny", "dangerous commands are switched off here")
            return
        self._questions.ask(
            self._key,
            self._push,
            kind="command",
            command=str(data.get("command", "")),
            description=str(data.get("description", "")),
            choices=COMMAND_CHOICES,
            on_answer=decide,
        )

    def _on_clarify(self, question: str, choices: list[str] | None) -> str:
        asked = self._questions.ask(
            self._key,
            self._push,
            kind="clarify",
            description=question,
            choices=(),  # the model's choices are suggestions: any text is an answer
            suggestions=tuple(map(str, choices or ())),
        )
        return asked.wait(self._interrupted.is_set) or "The user did not answer."


class HermesAgent:
    """The Hermes agent, as a worker's agent class."""

    takes_instructions = True

    def __init__(self, config: WorkerRole) -> None:
        hermes_home.prepare(config)
        self._hermes = load(config)
        self._config = config
        self._questions = Questions(config.agent.approval_timeout_s)
        self._sessions: dict[str, HermesSession] = {}
        self._threads = ThreadPoolExecutor(MAX_TURN_THREADS, thread_name_prefix="turn")
        self._check_toolsets()
        self._warm_up()
        self._say_if_uncaged()

    @classmethod
    def from_role(cls, config: WorkerRole) -> HermesAgent:
        """Return the agent of a worker. Raises: ConfigError, StackError."""
        return cls(config)

    async def run(self, request: AgentRequest, *, emitter: EventEmitter) -> AgentResponse:
        """Answer one message. Raises: TurnInterrupted; ApiError with the cause."""
        upstream = self._upstream(request)
        if request.metadata.get("tools"):
            raise ApiError(
                400,
                "Hermes runs its own tools: set services.agent.enabled_toolsets.",
                param="tools",
            )
        session = self._sessions.get(request.session_key)
        if session is None:
            session = self._new_session(request.session_key)
            self._sessions[request.session_key] = session
        session.begin()
        # A context of its own: Hermes keeps the session's identity in context variables.
        run = functools.partial(contextvars.Context().run, session.turn, request, upstream, emitter)
        try:
            loop = asyncio.get_running_loop()
            response: AgentResponse = await loop.run_in_executor(self._threads, run)
        finally:
            session.finish()
        return response

    def interrupt(self, session_key: str) -> None:
        """Stop the session's turn."""
        if session := self._sessions.get(session_key):
            session.interrupt()

    def answer(self, session_key: str, approval_id: str, choice: str, reason: str | None) -> None:
        """Answer an approval request. Raises: ApiError: 400, 404 or 410."""
        self._questions.answer(session_key, approval_id, choice, reason)

    async def close_session(self, session_key: str) -> None:
        """Free the session's agent and shell."""
        if session := self._sessions.pop(session_key, None):
            await asyncio.get_running_loop().run_in_executor(self._threads, session.close)

    async def close_all_sessions(self) -> None:
        """Free every session's agent and shell."""
        await asyncio.gather(*map(self.close_session, list(self._sessions)))
        self._threads.shutdown(wait=False)

    def _upstream(self, request: AgentRequest) -> Upstream:
        upstream = request.upstream
        if upstream is None:
            raise ApiError(
                400,
                "No model to ask: send inf_base_url and session_api_key with the turn, or set "
                "[upstream] base_url (HERMES_UPSTREAM_BASE_URL) and start again.",
                code="no_upstream",
                param="inf_base_url",
            )
        return upstream.model_copy(update={"model": upstream.model or FALLBACK_MODEL})

    def _new_session(self, key: str) -> HermesSession:
        return HermesSession(key, self._hermes, self._config, self._questions)

    def _check_toolsets(self) -> None:
        settings, toolsets = self._config.agent, self._hermes.toolsets
        for key in ("enabled_toolsets", "disabled_toolsets"):
            unknown = [n for n in getattr(settings, key) if not toolsets.validate_toolset(n)]
            if unknown:
                names = ", ".join(sorted(toolsets.get_toolset_names()))
                raise ConfigError(
                    f"services.agent.{key}: Hermes has no toolset {', '.join(unknown)}; "
                    f"it has {names}"
                )

    def _say_if_uncaged(self) -> None:
        """Let the person know, before the first tool call, that nothing keeps the tools in."""
        config = self._config
        if config.cage == "none" and config.agent.enabled_toolsets:
            because = f" ({config.uncaged_because})" if config.uncaged_because else ""
            notice = (
                "no cage: the agent's tools can read and change whatever you can, your keys too"
                f"{because}; every command asks first"
            )
            logger.warning("%s", notice)
            report_notices(config.serve, [notice])

    def _warm_up(self) -> None:
        """Create an agent and drop it: the first one imports for a second."""
        session = self._new_session(f"warm-up-{secrets.token_hex(8)}")  # in a cage pids repeat
        nowhere = Upstream(base_url="http://127.0.0.1:9/v1", api_key="none", model="none")
        agent = session._create(nowhere)
        session._agent = agent
        session.close()
        session.workdir.rmdir()
