"""`pydantic-ai`: an agent with a tool and native output, over both of OpenAI's APIs, streamed or not.

Every request has the tools and the output's schema: the first answer calls, the second is the output."""

import asyncio
import json
import pathlib
import tempfile

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from coding_agents import serving
from scripted_model import forced_call
from served import check

SCRIPT = [forced_call("get_weather", city="Paris"), json.dumps({"city": "Paris", "degrees": 21})]
called = []


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    called.append(city)
    return f"It is 21 degrees in {city}."


async def run(model):
    agent = Agent(model, tools=[get_weather], output_type=NativeOutput(Weather), model_settings={"temperature": 0})
    name, want = type(model).__name__, Weather(city="Paris", degrees=21)
    result = await agent.run("What is the weather in Paris?")
    check(f"{name} calls the tool once: {called}", called == ["Paris"])
    check(f"{name} ends in the form: {result.output}", result.output == want)
    called.clear()
    async with agent.run_stream("What is the weather in Paris?") as stream:
        check(f"{name} streams the form", await stream.get_output() == want)
    check(f"{name} calls the tool once: {called}", called == ["Paris"])
    called.clear()


async def main():
    with tempfile.TemporaryDirectory() as folder, serving(pathlib.Path(folder), "scripted", SCRIPT) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
        for model in (OpenAIChatModel, OpenAIResponsesModel):
            await run(model("scripted", provider=provider))


asyncio.run(main())
