"""litellm: a stream that adds up."""

import os

from litellm import completion

where = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "max_retries": 0}
said = [{"role": "user", "content": "Greet Ada."}]
chunks = completion("openai/m", said, stream=True, **where)
print("stream:", "".join(chunk.choices[0].delta.content or "" for chunk in chunks))
