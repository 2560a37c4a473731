"""instructor: its modes that go by tools or JSON."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str


openai = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0)
said = [{"role": "user", "content": "Ada is 36."}]
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai, mode=mode)
    found = client.create(model="m", messages=said, response_model=Person, max_retries=0)
    print(mode.value, found)
