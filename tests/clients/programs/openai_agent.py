"""The openai package's streams against the agent gateway."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0)
said = [{"role": "user", "content": "hello tool:look world"}]
with client.chat.completions.stream(model="m", messages=said) as stream:
    stream.until_done()
    print("chat:", stream.get_final_completion().choices[0].message.content)
with client.responses.stream(model="m", input="hello tool:look world", user="ada") as stream:
    deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
    answer = stream.get_final_response()
    print("responses:", "".join(deltas) == answer.output_text, answer.output_text)
    print("calls:", [item.name for item in answer.output if item.type == "function_call"])
