// The tool runner of the Node client, which continues without a thread when refused one.

import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';

function check(what, right) {
  if (right) return;
  console.log(`FAILED: ${what}`);
  process.exit(1);
}

const client = new Anthropic({ baseURL: process.env.KVASIR_URL, apiKey: 'none', maxRetries: 0 });
const cities = [];
const weather = betaTool({
  name: 'get_weather',
  description: 'Get the current weather in a city',
  inputSchema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  run: ({ city }) => {
    cities.push(city);
    return '{"temperature": 21, "sky": "sunny"}';
  },
});
const request = {
  model: process.env.KVASIR_MODEL,
  max_tokens: 80,
  temperature: 0,
  messages: [{ role: 'user', content: 'What is the weather in Paris?' }],
  tools: [weather],
};

const replies = [];
for await (const reply of client.beta.messages.toolRunner(request)) replies.push(reply);
check('called', cities.join() === 'Paris');
check('reasons', replies.map((reply) => reply.stop_reason).join() === 'tool_use,end_turn');
const said = replies.at(-1).content[0].text;
check('answer', said.includes('21') || said.includes('sunny'));

const streamed = [];
for await (const stream of client.beta.messages.toolRunner({ ...request, stream: true })) {
  streamed.push(await stream.finalMessage());
}
check('streamed call', cities.join() === 'Paris,Paris');
check('streamed answer', streamed.at(-1).content[0].text === said);
