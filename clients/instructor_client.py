"""`instructor`: structured output by JSON schema, JSON mode and a forced tool, over both APIs.

Also streamed output, errors, truncated answers and timeouts."""

import logging

import anthropic
import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel

from served import MODEL, URL, check, complete

logging.getLogger("instructor").setLevel(logging.CRITICAL)  # what is refused below is refused on purpose
plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
ask = [{"role": "user", "content": "Give me France with the keys country and capital as JSON."}]
common = {"model": MODEL, "temperature": 0, "max_tokens": 120, "max_retries": 0}


class Place(BaseModel):
    """A country and its capital."""

    country: str
    capital: str


class Found(BaseModel):
    """What was found."""

    place: Place


def client(mode):
    return instructor.from_openai(plain, mode=mode)


# A schema binds the answer: the model knows this place.
by_schema = client(instructor.Mode.JSON_SCHEMA)
paris = {"country": "France", "capital": "Paris"}
check("by schema", by_schema.create(messages=ask, response_model=Place, **common).model_dump() == paris)
parts = list(by_schema.create_partial(messages=ask, response_model=Place, **common))
check("streamed", bool(parts) and parts[-1].model_dump() == paris)  # tokens that pile up share a piece
got, raw = by_schema.create_with_completion(messages=ask, response_model=Place, **common)
check("with the completion", got.model_dump() == paris and raw.usage.completion_tokens > 0)
check("by JSON mode", client(instructor.Mode.JSON).create(messages=ask, response_model=Place, **common).model_dump() == paris)

# A named tool is called whatever the model would like: its arguments have the form.
by_tool = client(instructor.Mode.TOOLS)
check("by tool", isinstance(by_tool.create(messages=ask, response_model=Place, **common), Place))
check("one inside another", isinstance(by_tool.create(messages=ask, response_model=Found, **common).place, Place))
claude = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0), mode=instructor.Mode.TOOLS)
check("by Anthropic's API", claude.create(messages=ask, response_model=Place, model=MODEL, max_tokens=120, extra_body={"temperature": 0}).capital)

# A named tool and the same schema as `text.format` in one request.
by_response = client(instructor.Mode.RESPONSES_TOOLS)
check("by a response", isinstance(by_response.create(messages=ask, response_model=Place, model=MODEL, temperature=0, max_output_tokens=120, max_retries=0), Place))

# Log-probabilities pass through.
probed = by_schema.create_with_completion(messages=ask, response_model=Place, logprobs=True, top_logprobs=2, **common)[1]
check("logprobs", all(len(entry.top_logprobs) == 2 for entry in probed.choices[0].logprobs.content))

# What the server refuses, and an answer that is cut off before it is whole, are errors.
try:
    by_schema.create(messages=ask, response_model=Place, **{**common, "temperature": -1})
    check("an error", False)
except (openai.BadRequestError, InstructorRetryException) as error:
    check("the error names the parameter", "temperature" in str(error))
try:
    by_schema.create(messages=ask, response_model=Place, **{**common, "max_tokens": 2})
    check("a cut answer", False)
except instructor.core.InstructorError as error:
    check("the cut is told", type(error).__name__ in ("IncompleteOutputException", "InstructorRetryException"))

# A client timeout aborts the requests: none of them completes.
before = complete()
try:
    by_tool.create(messages=ask, response_model=None, timeout=0.1, n=16, extra_body={"ignore_eos": True}, **{**common, "max_tokens": 3000})
    check("a timeout", False)
except (openai.APITimeoutError, InstructorRetryException):
    check("cancellation", complete() == before)
