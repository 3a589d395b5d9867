"""`openai-agents`: an agent with a tool and an `output_type`, over both APIs, streamed or not.

Every request has the tools and the output's schema: the first answer calls, the second is the output."""

import asyncio
import json
import pathlib
import tempfile

from agents import (
    Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled)
from openai import AsyncOpenAI
from pydantic import BaseModel

from coding_agents import serving
from scripted_model import forced_call
from served import check

set_tracing_disabled(True)
SCRIPT = [forced_call("get_weather", city="Paris"), json.dumps({"city": "Paris", "degrees": 21})]
called = []


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


@function_tool
def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    called.append(city)
    return f"It is 21 degrees in {city}."


async def run(model):
    settings = ModelSettings(temperature=0)
    agent = Agent(name="Reporter", model=model, model_settings=settings, tools=[get_weather], output_type=Weather)
    name = type(model).__name__
    for streamed in (False, True):
        called.clear()
        if streamed:
            result = Runner.run_streamed(agent, "What is the weather in Paris?")
            kinds = [event.type async for event in result.stream_events()]
            check(f"{name} streams", kinds.count("raw_response_event") > 2)
        else:
            result = await Runner.run(agent, "What is the weather in Paris?")
        check(f"{name} calls the tool once: {called}", called == ["Paris"])
        check(f"{name} ends in the form: {result.final_output}", result.final_output == Weather(city="Paris", degrees=21))


async def main():
    with tempfile.TemporaryDirectory() as folder, serving(pathlib.Path(folder), "scripted", SCRIPT) as server:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        for model in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            await run(model(model="scripted", openai_client=client))


asyncio.run(main())
