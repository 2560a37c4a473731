"""Which processes a configuration asks for, and what each is told. Pure: nothing is started."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from hermes_tui.config.engine_choice import choose_engine, has_cuda, vllm_python
from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import Keys
from hermes_tui.config.settings import Config
from hermes_tui.supervisor.cage import INHERITED, Cage, Confinement
from hermes_tui_common.serving import RoleConfig, ServeConfig
from hermes_tui_services.api.config import DataProxyRole, GatewayRole, RouterRole, WorkerRole
from hermes_tui_training.api.config import LearnerRole, TrainerRole, VllmAddress, VllmRole

AGENT_GATEWAY = "agent-gateway"
ROUTER = "router"
TRAINER = "trainer"
LEARNER = "learner"
VLLM = "vllm"
WORKER = "worker"
DATA_PROXY = "data-proxy"
"""Roles that are run many times; a process's name is the role's and a number from 0."""

RESTART_S = 15.0
"""How long a turn waits for a process that was found dead or hung to be started again."""

Urls = Mapping[str, str]
"""Where each process that is ready answers, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process of the stack."""

    name: str
    """Such as ``worker-0``."""
    role: str
    """Such as ``worker``."""
    command: tuple[str, ...]
    """Arguments of the interpreter, such as ``("-m", MODULE)``; ``--config FILE`` follows."""
    resolve: Callable[[ServeConfig, Urls], RoleConfig]
    """Makes its resolved configuration once the processes it comes after are ready."""
    after: tuple[str, ...] = ()
    """Names of the processes whose addresses it needs."""
    environment: tuple[str, ...] | None = None
    """Names that it inherits; None: all that are not ours."""
    cage: Cage | None = None
    """What it is run in; None: nothing."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""
    port_key: str = ""
    """Configuration key of the port, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """What decides which processes there are."""

    config: Config
    """The configuration."""
    run_dir: RunDir
    """Where the files go."""
    keys: Keys
    """The admin keys."""
    confinement: Confinement = field(default_factory=Confinement)
    """Whether workers run in a cage."""
    worker_secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """What the workers' own keys are made of."""

    def specs(self) -> tuple[ProcessSpec, ...]:
        """Return every process, in the order in which they are shown."""
        services = self._services() if self.config.services.enabled else ()
        return (*services, *self._training()) if self.config.training.enabled else services

    def pair(self, index: int) -> tuple[ProcessSpec, ProcessSpec]:
        """Return the worker and the data proxy of one pair, counted from 0."""
        return self._worker(index), self._data_proxy(index)

    def _services(self) -> tuple[ProcessSpec, ...]:
        pairs = [spec for i in range(self.config.services.pairs.count) for spec in self.pair(i)]
        return (self._agent_gateway(), self._router(), *pairs)

    def _agent_gateway(self) -> ProcessSpec:
        gateway = self.config.services.gateway
        return ProcessSpec(
            name=AGENT_GATEWAY,
            role="agent-gateway",
            command=("-m", "hermes_tui_services.gateway"),
            resolve=lambda serve, urls: GatewayRole(
                serve=serve,
                admin_key=self._services_key,
                router_url=urls[ROUTER],
                retry_s=self.config.run.hung_after_s + RESTART_S,
            ),
            after=(ROUTER,),
            host=gateway.host,
            port=gateway.port,
            port_key="services.gateway.port",
        )

    def _router(self) -> ProcessSpec:
        router = self.config.services.router
        return ProcessSpec(
            name=ROUTER,
            role="router",
            command=("-m", "hermes_tui_services.router"),
            resolve=lambda serve, _: RouterRole(
                serve=serve, admin_key=self._services_key, poll_s=router.poll_s
            ),
            port=router.port,
            port_key="services.router.port",
        )

    def _worker(self, index: int) -> ProcessSpec:
        name = f"worker-{index}"
        agent = self.config.services.agent
        home, workdir = self.run_dir.hermes / name, self.run_dir.workdir(self.config)
        return ProcessSpec(
            name=name,
            role=WORKER,
            command=("-m", "hermes_tui_services.worker"),
            resolve=lambda serve, _: WorkerRole(
                serve=serve,
                admin_key=self._worker_key(name),
                agent=agent,
                home=home,
                workdir=workdir,
                cage=self.confinement.kind,
                uncaged_because=self.confinement.reason,
                relay_socket=self._relay_socket(index),
            ),
            environment=(*INHERITED, *agent.environment),
            cage=self.confinement.cage(
                agent, self.run_dir.root, home, workdir, self._relay_socket(index)
            ),
        )

    def _data_proxy(self, index: int) -> ProcessSpec:
        worker = f"worker-{index}"
        trainer = self.run_dir.run_file(TRAINER) if self.config.training.enabled else None
        return ProcessSpec(
            name=f"data-proxy-{index}",
            role=DATA_PROXY,
            command=("-m", "hermes_tui_services.data_proxy"),
            resolve=lambda serve, urls: DataProxyRole(
                serve=serve.model_copy(update={"unix_socket": self._relay_socket(index)}),
                admin_key=self._services_key,
                router_url=urls[ROUTER],
                worker_url=urls[worker],
                worker_key=self._worker_key(worker),
                relay_socket=self._relay_socket(index),
                upstream=self.config.upstream,
                gateway_run_file=trainer,
                database=self.run_dir.conversations,
                store=self.config.services.store,
                session_timeout_s=self.config.services.session_timeout_s,
                inference_hosts=self._inference_hosts,
            ),
            after=(ROUTER, worker),
        )

    def _training(self) -> tuple[ProcessSpec, ...]:
        if choose_engine(self.config) == "torch":
            return (self._trainer(None), self._learner())
        engine = self.config.training.engine
        if engine.base_url:
            address = VllmAddress(url=engine.base_url, api_key=engine.api_key)
            return (self._trainer(address), self._learner())
        address = VllmAddress(socket=self.run_dir.vllm_socket)
        return (self._vllm(), self._trainer(address, after=(VLLM,)), self._learner())

    def _vllm(self) -> ProcessSpec:
        python = vllm_python(self.config)
        assert python is not None  # else it would not have been chosen
        model = self.config.model
        if model.dtype == "auto":  # vLLM's own choice differs from the learner's
            model = model.model_copy(update={"dtype": "bfloat16" if has_cuda() else "float32"})
        return ProcessSpec(
            name=VLLM,
            role=VLLM,
            command=("-m", "hermes_tui_training.vllm_server"),
            resolve=lambda serve, _: VllmRole(
                serve=serve,
                model=model,
                training=self.config.training,
                python=python,
                socket=self.run_dir.vllm_socket,
            ),
        )

    def _trainer(self, vllm: VllmAddress | None, after: tuple[str, ...] = ()) -> ProcessSpec:
        gateway = self.config.training.gateway
        return ProcessSpec(
            name=TRAINER,
            role="trainer",
            command=("-m", "hermes_tui_training.inference_gateway"),
            resolve=lambda serve, _: TrainerRole(
                serve=serve,
                admin_key=self._training_key,
                model=self.config.model,
                training=self.config.training,
                database=self.run_dir.trajectories,
                checkpoints=self.run_dir.checkpoints,
                learner_run_file=self.run_dir.run_file(LEARNER),
                vllm=vllm,
            ),
            after=after,
            host=gateway.host,
            port=gateway.port,
            port_key="training.gateway.port",
        )

    def _learner(self) -> ProcessSpec:
        return ProcessSpec(
            name=LEARNER,
            role="learner",
            command=("-m", "hermes_tui_training.learner"),
            resolve=lambda serve, _: LearnerRole(
                serve=serve,
                admin_key=self._training_key,
                model=self.config.model,
                training=self.config.training,
                checkpoints=self.run_dir.checkpoints,
            ),
        )

    def _relay_socket(self, index: int) -> Path | None:
        """Return where a worker with a network of its own finds its data proxy."""
        if self.confinement.network == "host":
            return None
        return self.run_dir.run / f"relay-{index}" / "socket"

    def _worker_key(self, name: str) -> SecretStr:
        """Return a worker's own key: the same for as long as the plan is, and of no other use."""
        key = hmac.new(self.worker_secret, name.encode(), hashlib.sha256).hexdigest()
        return SecretStr(f"sk-worker-{key}")

    @property
    def _inference_hosts(self) -> tuple[str, ...]:
        """Hosts that the configuration names as model servers, in one place or another."""
        upstream = urlsplit(self.config.upstream.base_url).netloc.rpartition("@")[2]
        own = self.config.training.gateway.host
        return (*self.config.services.inference_hosts, *filter(None, (upstream, own)))

    @property
    def _services_key(self) -> SecretStr:
        return SecretStr(self.keys.agent_admin_key)

    @property
    def _training_key(self) -> SecretStr:
        return SecretStr(self.keys.inference_admin_key)
