"""The anthropic package's own helpers."""

import os

from anthropic import Anthropic

url = os.environ["BASE_URL"].removesuffix("/v1")
client = Anthropic(base_url=url, api_key=os.environ["API_KEY"], max_retries=0)
said = [{"role": "user", "content": "Greet Ada."}]
with client.messages.stream(model="m", max_tokens=64, messages=said) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
    print("stream:", text == final.content[0].text, final.stop_reason)
count = client.messages.count_tokens(model="m", messages=said)
print("tokens:", count.input_tokens == final.usage.input_tokens)
schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
tool = {"name": "look", "description": "Look.", "input_schema": schema}
called = client.messages.create(
    model="m",
    max_tokens=64,
    messages=said,
    tools=[tool],
    tool_choice={"type": "tool", "name": "look"},
)
print("call:", [(b.name, b.input) for b in called.content if b.type == "tool_use"])
