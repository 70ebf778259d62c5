"""Chat and Responses with the official `openai` package: openai_chat.py [http://HOST:PORT/v1]."""
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8480/v1", api_key="none")
model = client.models.list().data[0].id

stream = client.chat.completions.create(model=model, max_tokens=60, temperature=0, stream=True,
                                        messages=[{"role": "user", "content": "Name three rivers."}])
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

print(client.responses.create(model=model, input="Say hello.", max_output_tokens=20, temperature=0).output_text)
