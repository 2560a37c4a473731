"""The openai package's own helpers: streams that add up, and parsed replies."""

import os

from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str


client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0)
said = [{"role": "user", "content": "Greet Ada."}]
with client.chat.completions.stream(model="m", messages=said) as stream:
    deltas = [event.delta for event in stream if event.type == "content.delta"]
    print("chat:", "".join(deltas) == stream.get_final_completion().choices[0].message.content)
with client.responses.stream(model="m", input="Greet Ada.") as stream:
    deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
    print("responses:", "".join(deltas) == stream.get_final_response().output_text)
print("models:", client.models.list().data[0].object)
chat = client.chat.completions.parse(model="m", messages=said, response_format=Person)
print("parsed:", chat.choices[0].message.parsed)
answer = client.responses.parse(model="m", input="Who?", text_format=Person)
print("parsed:", answer.output_parsed)
