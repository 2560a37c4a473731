"""The trainer's process: store, engine, orchestrator, and the inference gateway in front."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from hermes_tui_common.serving import report_notices, report_stage, run_role
from hermes_tui_training.api.config import TrainerRole
from hermes_tui_training.inference_gateway.app import create_app
from hermes_tui_training.models.prepare import prepare_model
from hermes_tui_training.store.idle_sessions import end_idle
from hermes_tui_training.store.retention import keep_within
from hermes_tui_training.store.store import Store


class _Late:
    """Passes requests on to an app that is made during start-up."""

    app: Starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def build(config: TrainerRole) -> Starlette:
    """Return the trainer's app; its lifespan loads the model and starts the training loop."""
    late = _Late()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with _started(config) as app:
            late.app = app
            yield

    return Starlette(routes=[Mount("/", app=late)], lifespan=lifespan)


@contextlib.asynccontextmanager
async def _started(config: TrainerRole) -> AsyncIterator[Starlette]:
    """Start everything in order; stop it in the opposite order."""
    async with contextlib.AsyncExitStack() as stack:

        def progress(line: str) -> None:
            report_stage(config.serve, line)

        unscored = config.training.reward.unscored
        store = await asyncio.to_thread(
            Store, config.database, unscored_reward=None if unscored == "skip" else unscored
        )
        stack.callback(store.close)
        report_notices(config.serve, [store.notice] if store.notice else [])
        model_dir = await asyncio.to_thread(prepare_model, config.model.path, progress)
        report_stage(config.serve, "loading libraries")
        # Late and in a thread: torch and transformers take seconds, and the process must answer
        # its lifeline meanwhile.
        await asyncio.to_thread(_import_heavy)
        from hermes_tui_training.chat_template.renderer import Chat
        from hermes_tui_training.engine import create_engine
        from hermes_tui_training.trainer.canary import Canary
        from hermes_tui_training.trainer.orchestrator import Orchestrator

        report_stage(config.serve, "loading the tokenizer")
        chat = await asyncio.to_thread(Chat.load, model_dir, config.model)
        report_stage(config.serve, "asking vLLM" if config.vllm else "loading weights")
        engine = await asyncio.to_thread(
            create_engine, config.training, config.model, model_dir, config.vllm
        )
        stack.push_async_callback(engine.stop)
        await engine.start()
        orchestrator = Orchestrator(store=store, engine=engine, config=config)
        stack.push_async_callback(orchestrator.stop)
        report_stage(config.serve, "starting the trainer")
        await orchestrator.start()
        canary = Canary(store=store, engine=engine, chat=chat, config=config.training.canary)
        canary.start()
        stack.push_async_callback(canary.stop)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        timeout_s = config.training.gateway.session_timeout_s
        for chore in (keep_within(store, config.training.store), end_idle(store, timeout_s)):
            stack.callback(tasks.create_task(chore).cancel)
        app = create_app(config, store=store, engine=engine, chat=chat, orchestrator=orchestrator)
        stack.push_async_callback(app.state.services.drain)
        yield app


def _import_heavy() -> None:
    import hermes_tui_training.chat_template.renderer
    import hermes_tui_training.engine
    import hermes_tui_training.trainer.orchestrator  # noqa: F401


if __name__ == "__main__":
    run_role(TrainerRole, build, secrets_of=lambda config: [config.admin_key.get_secret_value()])
