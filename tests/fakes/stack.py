"""A plan of fake roles for the supervisor's tests; run directly it serves them, as --serve does.

python fakes/stack.py RUN_DIR NAME=BEHAVIOUR...
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import ensure_keys
from hermes_tui.config.settings import Config, RunConfig
from hermes_tui.supervisor.serve import serve
from hermes_tui.supervisor.specs import ProcessSpec, StackPlan, Urls
from hermes_tui_common.serving import RoleConfig, ServeConfig

ROLE = Path(__file__).with_name("role.py")

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.role import FakeRole  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePlan(StackPlan):
    """A router, the pairs, and an agent gateway, all of them fake roles."""

    behaviours: dict[str, str] = field(default_factory=dict)
    """How each process behaves, by name."""

    def specs(self) -> tuple[ProcessSpec, ...]:
        pairs = [spec for i in range(self.config.services.pairs.count) for spec in self.pair(i)]
        gateway = self.config.services.gateway
        return (
            self._spec("agent-gateway", after=("router",), port=gateway.port),
            self._spec("router"),
            *pairs,
        )

    def pair(self, index: int) -> tuple[ProcessSpec, ProcessSpec]:
        worker = f"worker-{index}"
        return (
            self._spec(worker),
            self._spec(f"data-proxy-{index}", after=("router", worker)),
        )

    def _spec(self, name: str, after: tuple[str, ...] = (), port: int = 0) -> ProcessSpec:
        def resolve(serve: ServeConfig, urls: Urls) -> RoleConfig:
            return FakeRole(
                serve=serve,
                behaviour=self.behaviours.get(name, ""),
                seen={dependency: urls[dependency] for dependency in after},
            )

        return ProcessSpec(
            name=name,
            role=name.rstrip("-0123456789"),
            command=(str(ROLE),),
            resolve=resolve,
            after=after,
            port=port,
            port_key="services.gateway.port" if port else "",
        )


def fake_plan(
    root: Path,
    *,
    stop_timeout_s: float = 5.0,
    pairs: int = 1,
    watch: Mapping[str, float] | None = None,
    **kwargs: str,
) -> FakePlan:
    """Return a plan on a new run directory; keyword arguments are behaviours (worker_0=...).

    ``watch`` are the heartbeat's settings in ``[run]``.
    """
    run = {"dir": str(root), "stop_timeout_s": stop_timeout_s, **(watch or {})}
    config = Config(run=RunConfig.model_validate(run))
    services = config.services.model_copy(
        update={"pairs": config.services.pairs.model_copy(update={"count": pairs})}
    )
    config = config.model_copy(update={"services": services})
    run_dir = RunDir.of(config)
    run_dir.create()
    behaviours = {name.replace("_", "-"): value for name, value in kwargs.items()}
    return FakePlan(
        config=config, run_dir=run_dir, keys=ensure_keys(run_dir, config), behaviours=behaviours
    )


def main() -> int:
    root, *words = sys.argv[1:]
    plan = fake_plan(Path(root), **dict(word.split("=", 1) for word in words))

    def make_plan(**kwargs: object) -> FakePlan:
        return FakePlan(behaviours=plan.behaviours, **kwargs)  # type: ignore[arg-type]

    return serve(plan.config, make_plan)


if __name__ == "__main__":
    sys.exit(main())
