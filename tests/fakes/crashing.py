"""The screen over the fake stack, with a key on which it crashes.

python fakes/crashing.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import SecretStr
from textual import events

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.backend import FakeBackend, FakeClock

from hermes_tui import app
from hermes_tui.app import HermesTui, ScreenSettings
from hermes_tui.core.controller import Controller


class CrashingTui(HermesTui):
    """Raises when F12 is pressed."""

    CSS_PATH = Path(app.__file__).with_name("styles") / "hermes.tcss"

    async def on_key(self, event: events.Key) -> None:
        key = SecretStr("-".join(("sk", "very", "secret")))  # not in the shown source
        if event.key == "f12":
            raise RuntimeError(f"the sky fell {key!r}")


def main() -> int:
    clock = FakeClock()
    controller = Controller(FakeBackend(clock), clock=clock)
    tui = CrashingTui(controller, ScreenSettings(folder=Path(sys.argv[1])))
    tui.run()
    return tui.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
