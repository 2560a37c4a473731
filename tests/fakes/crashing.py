"""The screen over the fake stack, with keys on which it crashes.

python fakes/crashing.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import SecretStr
from textual import events
from textual.widget import Widget

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.backend import FakeBackend, FakeClock

from hermes_tui.core.controller import Controller
from hermes_tui.tui import app
from hermes_tui.tui.app import HermesTui, ScreenSettings


class CrashingTui(HermesTui):
    """Raises when ctrl+g is pressed; F11: in a task of its own; shift+F12: while it draws."""

    CSS_PATH = Path(app.__file__).with_name("styles") / "hermes.tcss"

    async def on_key(self, event: events.Key) -> None:
        if event.key == "ctrl+g":
            fall()
        elif event.key == "f11":
            self.run_worker(self._work())
        elif event.key == "shift+f12":
            await self.screen.mount(Broken())

    async def _work(self) -> None:
        fall()


class Broken(Widget):
    """Can't be drawn."""

    def render(self) -> str:
        fall()
        return ""


def fall() -> None:
    """Raise, with a key among the local variables."""
    key = SecretStr("-".join(("sk", "very", "secret")))  # not in the shown source
    raise RuntimeError(f"the sky fell {key!r}")


def main() -> int:
    clock = FakeClock()
    controller = Controller(FakeBackend(clock), clock=clock)
    tui = CrashingTui(controller, ScreenSettings(folder=Path(sys.argv[1])))
    tui.run()
    return tui.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
