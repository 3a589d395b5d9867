"""The chat format of the built-in model, as a template and as text; both give the same string.

All text of the template is inside expressions, so the renderer's `trim_blocks` setting has no effect."""

import json

TEMPLATE = r"""
{%- if tools is defined and tools -%}
  {{- '<|im_start|>system' -}}
  {%- if messages[0].role == 'system' -%}{{- '\n' + messages[0].content + '\n' -}}{%- endif -%}
  {{- '\n# Tools\n\nYou may call one or more functions. Their signatures stand between <tools></tools>:\n<tools>' -}}
  {%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
  {{- '\n</tools>\n\nFor each call answer with a JSON object between <tool_call></tool_call>:\n<tool_call>\n' -}}
  {{- '{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call><|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
  {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant' -}}
    {%- if message.content or not message.tool_calls -%}{{- '\n' + (message.content or '') -}}{%- endif -%}
    {%- for tool_call in message.tool_calls or [] -%}
      {%- set call = tool_call.function or tool_call -%}
      {%- set arguments = call.arguments if call.arguments is string else call.arguments | tojson -%}
      {{- '\n<tool_call>\n{"name": ' + (call.name | tojson) + ', "arguments": ' + arguments + '}\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif message.role == 'tool' -%}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


def call_text(name, arguments):
    """One tool call as the assistant writes it."""
    call = '{"name": %s, "arguments": %s}' % (json.dumps(name, ensure_ascii=False), json.dumps(arguments, ensure_ascii=False))
    return f"<tool_call>\n{call}\n</tool_call>"


def segments(messages, tools=None):
    """The conversation as [(text, learn)]: `learn` marks what the assistant must produce."""
    out = []
    messages = list(messages)
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else None
    if tools:
        head = f"\n{system}\n" if system is not None else ""
        lines = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        out.append((
            f"<|im_start|>system{head}\n# Tools\n\nYou may call one or more functions. Their signatures stand between "
            f"<tools></tools>:\n<tools>{lines}\n</tools>\n\nFor each call answer with a JSON object between "
            '<tool_call></tool_call>:\n<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n'
            "</tool_call><|im_end|>\n", False))
    elif system is not None:
        out.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            parts = [message["content"]] if message.get("content") else []
            parts += [call_text(name, arguments) for name, arguments in message.get("calls", [])]
            out.append(("<|im_start|>assistant\n", False))
            out.append(("\n".join(parts) + "<|im_end|>", True))
            out.append(("\n", False))
        elif role == "tool":
            first = i == 0 or messages[i - 1]["role"] != "tool"
            last = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
            text = ("<|im_start|>user" if first else "") + f"\n<tool_response>\n{message['content']}\n</tool_response>"
            out.append((text + ("<|im_end|>\n" if last else ""), False))
        else:
            out.append((f"<|im_start|>{role}\n{message['content']}<|im_end|>\n", False))
    return out
