"""Turns corpus records into token documents: plain text, and conversations in the prompt format of the model."""

import json
import random
import re
import zlib
from dataclasses import dataclass

import numpy as np

from . import chat
from .corpus import records

_CALL = re.compile(r"^<tool_call>(.*)</tool_call>$", re.S)
_ANSWER = re.compile(r"^(.*?)\s*(The answer is [^\n]*)$", re.S)
_TOOL_HINT = re.compile(r"(To use a tool|Call a tool)\b.*$")

# How often a conversation is rendered with thinking on.
THINKING_SHARE = {"reasoned": 0.6, "other": 0.2}
SNIPS_TOOLS_SHARE = 0.4  # their long tool lists would outweigh the one short turn they teach

# Groups are what training mixes by weight; a category of the corpus is the sum of its groups.
GROUPS = {
    "stories": "stories",
    "storybooks": "stories",
    "prose": "prose",
    "dialogue": "dialogue",
    "tools": "dialogue",
    "code-json": "code-json",
}


def group_of(record, category):
    """Old books are set apart from simple stories, and conversations with tool lists from the short ones."""
    if category == "stories" and record["source"].startswith("Project Gutenberg"):
        return "storybooks"
    if category == "dialogue" and any('{"name": ' in m["content"] for m in record["messages"]):
        return "tools"
    return category


@dataclass
class Document:
    ids: np.ndarray  # uint16
    spans: list  # lengths of alternating stretches, first prompt, then answer, ...; sum is len(ids)


def split_tools(content):
    """(instruction, function objects) of a system message that lists tools one JSON object a line."""
    kept, functions = [], []
    for line in content.split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict) and "name" in value:
            functions.append(value)
        elif not _TOOL_HINT.match(line):
            kept.append(line)
    return "\n".join(kept).strip(), functions


def to_chat(messages, rng):
    """Corpus messages as chat messages: listed tools become `tools`, marked calls become `tool_calls`."""
    result, open_calls = [], 0
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            instruction, functions = split_tools(content)
            if functions:
                plain = "You are a helpful assistant." if rng.random() < 0.5 else ""
                result.append({"role": role, "content": plain, "tools": functions})
            else:
                result.append({"role": role, "content": content})
            continue
        call = _CALL.match(content) if role == "assistant" else None
        if call:
            value = json.loads(call.group(1))
            open_calls += 1
            calls = [{"id": str(open_calls), "name": value["name"], "arguments": value["arguments"]}]
            result.append({"role": role, "content": "", "tool_calls": calls})
        elif role == "tool":
            result.append({"role": role, "content": content, "tool_call_id": str(open_calls)})
        else:
            result.append({"role": role, "content": content})
    return result


def add_reasoning(messages, rng):
    """Moves worked steps before the final answer into the reasoning; elsewhere restates a short request, or nothing."""
    reasoned = False
    request = ""
    for message in messages:
        if message["role"] == "user":
            request = message["content"]
        if message["role"] != "assistant":
            continue
        answer = _ANSWER.match(message["content"])
        if answer and answer.group(1):
            message["reasoning_content"], message["content"] = answer.group(1), answer.group(2)
            reasoned = True
        elif "\n" not in request and 0 < len(request) < 160 and rng.random() < 0.5:
            message["reasoning_content"] = "The user says: %s" % request
    return reasoned


def _has_steps(messages):
    return any(m["role"] == "assistant" and (_ANSWER.match(m["content"]) or [0, ""])[1] for m in messages)


def _keep(record, rng):
    if record["source"] == "SNIPS NLU" and "<tool_call>" in record["messages"][-1]["content"]:
        return rng.random() < SNIPS_TOOLS_SHARE
    return True


def conversation_segments(record, seed):
    """Segments of a conversation, or None if it is thinned out. The choices depend on the record alone, and the seed."""
    key = zlib.crc32(record["messages"][0]["content"].encode() + record["messages"][-1]["content"].encode())
    rng = random.Random(key + (seed << 32))
    if not _keep(record, rng):
        return None
    messages = to_chat(record["messages"], rng)
    share = THINKING_SHARE["reasoned" if _has_steps(messages) else "other"]
    if rng.random() >= share:
        return chat.segments(messages)
    add_reasoning(messages, rng)
    effort = rng.choice((chat.DEFAULT_EFFORT, chat.DEFAULT_EFFORT, 50, 100, rng.randint(1, 100)))
    return chat.segments(messages, thinking=True, effort=effort)


def _from_text(text, encode):
    ids = [0] + encode([text])[0] + [1]
    return Document(np.array(ids, dtype=np.uint16), [1, len(ids) - 1])


def _from_segments(parts, encode):
    ids, spans = [], []
    for (_, is_answer), part in zip(parts, encode([text for text, _ in parts])):
        if is_answer != (len(spans) % 2 == 1):
            spans.append(0)
        ids += part
        spans.append(len(part))
    return Document(np.array(ids, dtype=np.uint16), spans)


def load_encoder(path):
    """encode(list of texts) -> list of id lists, with control tokens recognised."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)

    def encode(texts):
        return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return encode


def documents(directory, category, encode, held_out=False, seed=1):
    """(group, Document) of one category in corpus order."""
    for record in records(directory, category, held_out):
        group = group_of(record, category)
        if "text" in record:
            yield group, _from_text(record["text"], encode)
        else:
            parts = conversation_segments(record, seed)
            if parts is not None:
                yield group, _from_segments(parts, encode)
