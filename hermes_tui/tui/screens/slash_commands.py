"""What a slash in the prompt does: the commands of ``--plain``, as the screen's own actions."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable

from hermes_tui.core.actions import BY_ID
from hermes_tui.core.commands import BY_WORD
from hermes_tui.core.controller import Controller
from hermes_tui.core.reward_text import parse_reward
from hermes_tui.core.sanitize import clean

Doing = Awaitable[object] | None


def is_command(text: str) -> bool:
    """Return whether a message is a command; two slashes begin a message with one."""
    return text.startswith("/") and not text.startswith("//")


class SlashCommands:
    """Runs commands.

    Args:
        controller: the use cases.
        press: does an action of the screen, which asks for what it needs.
    """

    def __init__(self, controller: Controller, press: Callable[[str], Doing]) -> None:
        self._controller = controller
        self._press = press
        self._with_words: dict[str, Callable[[str], Doing]] = {
            "score": self._score,
            "why": controller.rewards.explain,
            "w": controller.rewards.explain,
            "answer": self._answer,
            "rollback": self._roll_back,
            "rename": self._rename,
        }
        """Commands that need no question when something follows them."""

    def run(self, text: str) -> Doing:
        """Do a command; return what is left to await.

        Raises: ValueError: there is no such command, or it cannot be used like this; says why.
        """
        word, _, rest = text.removeprefix("/").partition(" ")
        if word not in BY_WORD:
            near = difflib.get_close_matches(word, BY_WORD, n=1)
            hint = f"did you mean /{near[0]}?" if near else "two slashes begin a message with one"
            raise ValueError(f"there is no command /{clean(word)}; {hint}")
        if rest.strip() and (do := self._with_words.get(word)):
            return do(rest.strip())
        if word in ("pause", "resume"):
            return self._controller.hold_training(word == "pause")
        if word in ("why", "w"):
            return self._press("score_why")
        if word == "unqueue":
            raise ValueError("↑ in the empty prompt takes the newest queued message back")
        if BY_ID[BY_WORD[word].action].scope == "compare":
            raise ValueError(f"/{word} is a key of Compare; /compare opens it")
        return self._press(BY_WORD[word].action)

    def _score(self, text: str) -> Doing:
        try:
            reward = parse_reward(text)
        except ValueError:
            raise ValueError(
                f"/score takes a number, such as /score 0.3, not “{clean(text)}”"
            ) from None
        return self._controller.rewards.score(reward)

    def _answer(self, text: str) -> Doing:
        asked = next(iter(self._controller.state.approval_queue), None)
        if asked is None:
            raise ValueError("the agent asks nothing now")
        if not asked.free and text not in asked.choices:
            raise ValueError(f"answer with one of: {', '.join(map(clean, asked.choices))}")
        return self._controller.approvals.answer(asked, text)

    def _rename(self, text: str) -> Doing:
        state = self._controller.state
        if not state.selected or not state.info.training:
            raise ValueError("/rename needs an open session, and a trainer that keeps its name")
        return self._controller.rename_session(state.selected, text)

    def _roll_back(self, text: str) -> Doing:
        version = text.removeprefix("v")
        if not version.isdecimal():
            raise ValueError(f"/rollback takes a version, such as /rollback 3, not “{clean(text)}”")
        return self._controller.roll_back(int(version))
