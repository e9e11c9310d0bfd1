"""Renders conversations to the prompt format, as segments that say which text the model itself has to write.

A message is a dictionary: role (system, user, assistant, tool, latest_reminder), content (text), and optionally
  assistant: reasoning_content, tool_calls [{"id", "name", "arguments"}], wo_eos
  tool: tool_call_id        system: tools [function objects], response_format        user and others: task
"""

import json

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
REMINDER, DSML = "<｜latest_reminder｜>", "｜DSML｜"
THINK, END_THINK = "<think>", "</think>"
TASKS = ("action", "query", "authority", "domain", "title", "read_url")
DEFAULT_EFFORT = 75

_EFFORT = (
    "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
_KEPT_BEFORE_LAST_TURN = ("user", "system", "tool", "latest_reminder", "direct_search_results", "assistant")

_TOOLS_BLOCK = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{D} calls>" block like the following:

<{D} calls>
<{D} invoke name="$TOOL_NAME">
<{D} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{D} parameter>
...
</{D} invoke>
<{D} invoke name="$TOOL_NAME2">
...
</{D} invoke>
</{D} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def tools_block(functions):
    return _TOOLS_BLOCK.replace("{D}", DSML).replace("{schemas}", "\n".join(map(dump, functions)))


def _arguments(call):
    arguments = call["arguments"]
    for _ in range(2):
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                break
    return arguments if isinstance(arguments, dict) else {"arguments": call["arguments"]}


def calls_block(calls):
    lines = ["<%s calls>" % DSML]
    for call in calls:
        lines.append('<%s invoke name="%s">' % (DSML, call["name"]))
        parameters = []
        for key, value in _arguments(call).items():
            is_text = isinstance(value, str)
            text = value if is_text else dump(value)
            flag = "true" if is_text else "false"
            parameters.append('<%s parameter name="%s" string="%s">%s</%s parameter>' % (DSML, key, flag, text, DSML))
        lines.append("\n".join(parameters))
        lines.append("</%s invoke>" % DSML)
    return "\n".join(lines + ["</%s calls>" % DSML])


def _merged(messages):
    """User and tool messages in a row become one user message of blocks; tool results follow the order of the calls."""
    merged, calls = [], []
    for message in messages:
        message = dict(message)
        if message["role"] == "tool":
            block = ("result", message["content"], message.get("tool_call_id"))
            if not (merged and merged[-1]["role"] == "user"):
                merged.append({"role": "user", "blocks": []})
            merged[-1]["blocks"].append(block)
        elif message["role"] == "user":
            block = ("text", message["content"], None)
            if merged and merged[-1]["role"] == "user" and not merged[-1].get("task"):
                merged[-1]["blocks"].append(block)
            else:
                merged.append({**message, "blocks": [block]})
        else:
            merged.append(message)
    for message in merged:
        if message["role"] == "assistant":
            calls = [call.get("id") for call in message.get("tool_calls") or []]
        elif message["role"] == "user":
            message["blocks"] = _in_call_order(message["blocks"], calls)
    return merged


def _in_call_order(blocks, calls):
    slots = [i for i, block in enumerate(blocks) if block[0] == "result"]
    if len(slots) < 2:
        return blocks
    ordered = sorted((blocks[i] for i in slots), key=lambda b: calls.index(b[2]) if b[2] in calls else 0)
    blocks = list(blocks)
    for slot, block in zip(slots, ordered):
        blocks[slot] = block
    return blocks


def _last_turn(messages):
    """Index of the last user message or system message that is not the first; -1 without any."""
    turns = [i for i, m in enumerate(messages) if m["role"] == "user" or (m["role"] == "system" and i > 0)]
    return turns[-1] if turns else -1


def _without_old_reasoning(messages):
    last = _last_turn(messages)
    kept = []
    for i, message in enumerate(messages):
        if i < last:
            if message["role"] not in _KEPT_BEFORE_LAST_TURN:
                continue
            if message["role"] == "assistant":
                message = {k: v for k, v in message.items() if k != "reasoning_content"}
        kept.append(message)
    return kept


def _body(message, index):
    """Text of a system, user or latest_reminder message, with its role token."""
    if message["role"] == "system":
        text = (SYSTEM if index > 0 else "") + message["content"]
        if message.get("tools"):
            text += "\n\n" + tools_block(message["tools"])
        if message.get("response_format"):
            text += "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
            text += dump(message["response_format"])
        return text
    if message["role"] == "user":
        blocks = [t if kind == "text" else "<tool_result>%s</tool_result>" % t for kind, t, _ in message["blocks"]]
        return USER + "\n\n".join(blocks)
    if message["role"] == "latest_reminder":
        return REMINDER + message["content"]
    raise ValueError("no rendering for a message of role %r" % message["role"])


def _header(message, index, thinking):
    """What follows a message that the assistant answers."""
    opening = THINK if thinking else END_THINK
    task = message.get("task")
    if task is not None:
        if task not in TASKS:
            raise ValueError("unknown task %r" % task)
        return (ASSISTANT + opening if task == "action" else "") + "<｜%s｜>" % task
    if message["role"] == "user" or (message["role"] == "system" and index > 0):
        return ASSISTANT + opening
    return ""


def segments(messages, thinking=False, effort=DEFAULT_EFFORT, drop_thinking=True):
    """[(text, written by the model)]: the conversation cut at the ends of prompts and answers."""
    messages = _merged(messages)
    drop = drop_thinking and not any(m.get("tools") for m in messages)
    if thinking and drop:
        messages = _without_old_reasoning(messages)
    last = _last_turn(messages)
    parts, prompt = [], BOS
    for i, message in enumerate(messages):
        role = message["role"]
        if i == 0 and (thinking or role == "system"):
            prompt += SYSTEM
        if i == 0 and thinking:
            prompt += _EFFORT % effort
        if role == "assistant":
            answer = ""
            if thinking and (not drop or i > last) and not (i and messages[i - 1].get("task")):
                answer += (message.get("reasoning_content") or "") + END_THINK
            answer += message["content"] or ""
            if message.get("tool_calls"):
                answer += "\n\n" + calls_block(message["tool_calls"])
            answer += "" if message.get("wo_eos") else EOS
            parts += [(prompt, False), (answer, True)]
            prompt = ""
        else:
            prompt += _body(message, i)
        if i + 1 < len(messages) and messages[i + 1]["role"] not in ("assistant", "latest_reminder"):
            continue
        if role != "assistant":
            prompt += _header(message, i, thinking and (not drop or i >= last))
    return parts + [(prompt, False)] if prompt else parts


def render(messages, **options):
    return "".join(text for text, _ in segments(messages, **options))
