"""The items of a response, and the events of OpenAI's Responses grammar that tell how they grow.

The message is always the first item, since AReaL's clients read it there: it opens before the first
call or thought. Calls and reasoning follow in the order in which they came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MakeEvent = Callable[..., dict[str, Any]]
"""Makes an event of a type and its fields, with the next sequence number."""


@dataclass(slots=True, kw_only=True)
class OutputItems:
    """The items of one response."""

    event: MakeEvent
    run_id: str = ""
    """The turn's; the items' ids are made of it, so all who follow the turn get the same."""
    items: list[dict[str, Any]] = field(default_factory=list)
    """As they are in ``output``."""

    @property
    def text(self) -> str:
        """The message's text so far."""
        return str(self.items[0]["content"][0]["text"]) if self.items else ""

    def add_text(self, text: str) -> Iterator[dict[str, Any]]:
        """Add text to the message."""
        yield from self._end_reasoning()
        yield from self._open_message()
        self.items[0]["content"][0]["text"] += text
        yield self._item_event(0, "output_text.delta", content_index=0, delta=text, logprobs=[])

    def add_reasoning(self, text: str) -> Iterator[dict[str, Any]]:
        """Add reasoning to the last item, or begin an item of it."""
        yield from self._open_message()
        if not self._reasons:
            part = {"type": "reasoning_text", "text": ""}
            yield from self._open(
                {"id": self._new_id("rs"), "type": "reasoning", "summary": []}, part
            )
        self.items[-1]["content"][0]["text"] += text
        index = len(self.items) - 1
        yield self._item_event(index, "reasoning_text.delta", content_index=0, delta=text)

    def add_call(self, call_id: str, name: str, arguments: str) -> Iterator[dict[str, Any]]:
        """Add a whole function call."""
        yield from self._end_reasoning()
        yield from self._open_message()
        call = {"id": self._new_id("fc"), "type": "function_call", "call_id": call_id, "name": name}
        item = {**call, "arguments": "", "status": "in_progress"}
        self.items.append(item)
        index = len(self.items) - 1
        yield self._output_event("added", index)
        item["arguments"] = arguments
        yield self._item_event(index, "function_call_arguments.delta", delta=arguments)
        yield self._item_event(
            index, "function_call_arguments.done", name=name, arguments=arguments
        )
        yield from self._end(index, "completed")

    def finish(self, reply: str, status: str = "completed") -> Iterator[dict[str, Any]]:
        """End the items, after what the reply has beyond the text that was streamed."""
        yield from self._end_reasoning()
        yield from self._open_message()
        if missing := _missing(self.text, reply):
            yield from self.add_text(missing)
        text = self.text
        yield self._item_event(0, "output_text.done", content_index=0, text=text, logprobs=[])
        yield self._item_event(0, "content_part.done", content_index=0, part=_message_part(text))
        yield from self._end(0, status)

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self.run_id.removeprefix('run-')}_{len(self.items)}"

    @property
    def _reasons(self) -> bool:
        last = self.items[-1] if self.items else {}
        return last.get("type") == "reasoning" and last["status"] == "in_progress"

    def _open_message(self) -> Iterator[dict[str, Any]]:
        if not self.items:
            item = {"id": self._new_id("msg"), "type": "message", "role": "assistant"}
            yield from self._open(item, _message_part(""))

    def _open(self, item: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.items.append({**item, "status": "in_progress", "content": []})
        index = len(self.items) - 1
        yield self._output_event("added", index)
        self.items[-1]["content"].append(part)
        yield self._item_event(index, "content_part.added", content_index=0, part=dict(part))

    def _end_reasoning(self) -> Iterator[dict[str, Any]]:
        if self._reasons:
            index, part = len(self.items) - 1, self.items[-1]["content"][0]
            fields = {"content_index": 0, "text": part["text"]}
            yield self._item_event(index, "reasoning_text.done", **fields)
            yield self._item_event(index, "content_part.done", content_index=0, part=dict(part))
            yield from self._end(index, "completed")

    def _end(self, index: int, status: str) -> Iterator[dict[str, Any]]:
        self.items[index]["status"] = status
        yield self._output_event("done", index)

    def _output_event(self, kind: str, index: int) -> dict[str, Any]:
        item = dict(self.items[index])
        if "content" in item:
            item["content"] = [dict(part) for part in item["content"]]
        return self.event(f"response.output_item.{kind}", output_index=index, item=item)

    def _item_event(self, index: int, kind: str, **fields: Any) -> dict[str, Any]:
        item_id = self.items[index]["id"]
        return self.event(f"response.{kind}", item_id=item_id, output_index=index, **fields)


def _message_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _missing(streamed: str, reply: str) -> str:
    """Return what has to be sent so that the text holds the reply: agents may stream less.

    White space and punctuation are not compared: an agent may tidy up its reply.
    """
    if reply.startswith(streamed):
        return reply[len(streamed) :]
    if _words(reply) in _words(streamed):
        return ""
    return f"\n\n{reply}"


def _words(text: str) -> str:
    return re.sub(r"\W+", "", text)
