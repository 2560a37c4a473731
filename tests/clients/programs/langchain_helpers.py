"""langchain: streams, tools, structured output, the Responses API."""

import os

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str


where = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "max_retries": 0}
model = ChatOpenAI(model="m", **where)
parts = list(model.stream("Greet Ada.", stream_usage=True))
print("stream:", "".join(part.content for part in parts))
print("usage:", any(part.usage_metadata for part in parts))
print(
    "call:", model.bind_tools([Person], tool_choice="Person").invoke("Who?").tool_calls[0]["args"]
)
for method in ("json_schema", "function_calling"):
    print(method, model.with_structured_output(Person, method=method).invoke("Who?"))
print("responses:", ChatOpenAI(model="m", use_responses_api=True, **where).invoke("Hi.").text)
