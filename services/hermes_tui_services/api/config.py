"""Settings of the agent service: the ``[services.*]`` sections, and what each role gets."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from hermes_tui_common.serving import RoleConfig
from hermes_tui_common.settings import OptionalKey, RoleKey, Secret, Section


class GatewayConfig(Section):
    """``[services.gateway]``: the public entrance of the agent service."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback a strong admin_api_key is required."""
    port: int = Field(0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one, kept for the life of the stack."""
    admin_api_key: OptionalKey = SecretStr("")
    """Key that clients send; empty mints one into keys.json of the run directory."""


class RouterConfig(Section):
    """``[services.router]``: which pair serves which session."""

    port: int = Field(0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    poll_s: float = Field(1.0, gt=0)
    """Seconds between two looks at each pair's health."""


class PairsConfig(Section):
    """``[services.pairs]``: pairs of a data proxy and a worker."""

    count: int = Field(1, ge=1, le=64)
    """How many pairs to run."""
    drain_timeout_s: float = Field(60.0, ge=0)
    """Seconds that a pair which is taken away may go on with the turns that run."""


class AgentConfig(Section):
    """``[services.agent]``: the agent that answers."""

    class_: str = Field("hermes_tui_services.worker.hermes.HermesAgent", alias="class")
    """Dotted path of the agent class that each worker loads."""
    max_turns: int = Field(12, ge=1)
    """Model calls that the agent may make for one message."""
    max_tokens: int = Field(512, ge=1)
    """Tokens that one model call may sample."""
    temperature: float = Field(0.7, ge=0, le=2)
    """Sampling temperature of the agent's model calls; small models ramble at 1."""
    system_prompt: str = "You are a helpful assistant."
    """The whole system prompt; empty sends none."""
    enabled_toolsets: tuple[str, ...] = ()
    """Hermes toolsets the agent may use, such as "file", "todo", "terminal"; empty is none."""
    disabled_toolsets: tuple[str, ...] = ()
    """Toolsets taken away from the enabled ones."""
    workdir: str = ""
    """Directory under which each session gets its own; empty is the run directory's work/."""
    approvals: Literal["ask", "deny"] = "ask"
    """What happens when the agent wants to run a dangerous command."""
    approval_timeout_s: float = Field(60.0, gt=0)
    """Seconds until an unanswered approval request counts as a no."""
    cage: Literal["auto", "bubblewrap", "off"] = "auto"
    """What keeps the agent and its tools from your files and keys: "bubblewrap" (Linux), "auto"
    takes it where it is installed, "off" is nothing. Without one every command asks first."""
    network: Literal["host", "peers"] = "host"
    """What a caged agent reaches: "host" is all that you reach, "peers" the model server alone, by
    way of the data proxy; needs a cage."""
    read_paths: tuple[str, ...] = ()
    """More files and directories that the agent may read, in the cage and with its file tools."""
    write_paths: tuple[str, ...] = ()
    """The same to read and to change; then every command asks first, in a cage too."""
    environment: tuple[str, ...] = ()
    """More environment variables that the agent's commands get, beside PATH, HOME, LANG and such.
    The agent can read their values."""


class StoreConfig(Section):
    """``[services.store]``: what was said, in ``conversations.db``."""

    max_bytes: int = Field(1_000_000_000, ge=0)
    """Beyond this the conversations that were used the longest ago are deleted; never one with a
    score that waits to be trained. 0 keeps everything."""
    keep_s: float = Field(86_400.0, ge=0)
    """Conversations in use within this time are kept, even where that is too much; in any case
    those of the last hour."""


class ServicesConfig(Section):
    """``[services]``: the agent service."""

    enabled: bool = True
    """Whether to run the agent service; without it the trainer runs alone."""
    gateway: GatewayConfig = GatewayConfig()
    router: RouterConfig = RouterConfig()
    pairs: PairsConfig = PairsConfig()
    agent: AgentConfig = AgentConfig()
    store: StoreConfig = StoreConfig()
    session_timeout_s: float = Field(86400.0, gt=0)
    """Seconds without a turn after which a session's agent is released; its history stays."""
    inference_hosts: tuple[str, ...] = ()
    """Hosts, or "host:port", that turns may name in inf_base_url beside loopback and the hosts of
    upstream.base_url and training.gateway.host: this machine calls them. Link-local and metadata
    addresses are never called."""


class UpstreamConfig(Section):
    """``[upstream]``: an LLM server for plain chat, when training is off or a turn names none."""

    base_url: str = ""
    """OpenAI-compatible base URL; empty is none."""
    api_key: Secret = SecretStr("")
    """Key sent to the upstream."""
    model: str = ""
    """Model name sent to the upstream."""


class ServicesRole(RoleConfig):
    """What every role of the agent service is started with."""

    admin_key: RoleKey
    """Key of every route but /health."""


class RouterRole(ServicesRole):
    """What the router is started with."""

    poll_s: float = 1.0
    """Seconds between two looks at each pair's health."""


class GatewayRole(ServicesRole):
    """What the agent gateway is started with."""

    router_url: str
    """Where the router answers."""
    retry_s: float = 35.0
    """Seconds that a turn which has not begun waits for a role that is down or hung: the time in
    which a hung one is found, and some for its start."""


class DataProxyRole(ServicesRole):
    """What a data proxy is started with."""

    router_url: str
    """Where to register."""
    worker_url: str
    """The worker of this pair."""
    database: Path
    """``conversations.db`` of the run directory, shared by the data proxies."""
    worker_key: Secret
    """The worker's own key, which opens nothing else."""
    upstream: UpstreamConfig = UpstreamConfig()
    """Where turns go that name no upstream of their own."""
    gateway_run_file: Path | None = None
    """Run file of the stack's own inference gateway; None: it has none."""
    relay_socket: Path | None = None
    """Where the worker finds the relay when it has a network of its own; None: it has not."""
    store: StoreConfig = StoreConfig()
    """How much is kept in the database."""
    session_timeout_s: float = 86400.0
    """Seconds without a turn after which the worker is told to release a session."""
    inference_hosts: tuple[str, ...] = ()
    """Hosts, or "host:port", beside loopback, that turns may name as their upstream."""


class WorkerRole(ServicesRole):
    """What a worker is started with: nothing that is worth stealing, since its tools may read it.

    ``admin_key`` is a key of its own, which opens no other role.
    """

    agent: AgentConfig
    """The agent to load."""
    home: Path
    """Directory for the agent's own files (Hermes' HERMES_HOME)."""
    workdir: Path
    """Directory under which each session gets its own."""
    cage: Literal["bubblewrap", "none"] = "none"
    """What the worker runs in."""
    uncaged_because: str = ""
    """Why it runs in nothing; empty when nobody says."""
    relay_socket: Path | None = None
    """Where the data proxy's relay is when it has a network of its own; None: it has not."""
