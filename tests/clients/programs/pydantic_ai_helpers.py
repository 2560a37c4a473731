"""pydantic-ai: a stream, a tool that is run, structured output."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str


provider = OpenAIProvider(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
model = OpenAIChatModel("m", provider=provider)


async def main() -> None:
    async with Agent(model).run_stream("Greet Ada.") as answer:
        print("stream:", await answer.get_output())
    looking = Agent(model)

    @looking.tool_plain
    def look(b: int, a: str) -> str:
        return f"{a}{b}"

    print("tool:", (await looking.run("Look.")).output)
    print("output:", (await Agent(model, output_type=Person).run("Who?")).output)
    print("native:", (await Agent(model, output_type=NativeOutput(Person)).run("Who?")).output)


asyncio.run(main())
