"""Writes the seed corpora and dictionaries of the text targets: python3 fuzz/text_make_corpus.py"""
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent
D = "\uff5cDSML\uff5c"


def write(target, name, content):
    folder = ROOT / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def write_dictionary(target, words):
    def quoted(word):
        escaped = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in word.encode())
        return f'"{escaped}"'
    (ROOT / f"{target}.dict").write_text("\n".join(sorted(map(quoted, words))) + "\n")


def byte_alphabet():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return [chr(b) for b in kept] + [chr(256 + i) for i in range(len(others))]


def tokenizer_file(**changes):
    vocabulary = {character: i for i, character in enumerate(byte_alphabet())} | {"ab": 256, "\u0120c": 257}
    file = {
        "added_tokens": [{"id": 258, "content": "<x>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b", ["\u0120", "c"]]},
    }
    return json.dumps(file | changes, ensure_ascii=False)


def make_tokenizer_files():
    write("text_tokenizer_file", "small.json", tokenizer_file())
    write("text_tokenizer_file", "byte_level_alone.json",
          tokenizer_file(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False}))
    write("text_tokenizer_file", "hole.json", tokenizer_file(added_tokens=[{"id": 300, "content": "<x>"}]))
    write("text_tokenizer_file", "normalized.json", tokenizer_file(added_tokens=[
        {"id": 258, "content": "b <x", "normalized": True}, {"id": 259, "content": "<x>"}]))
    write_dictionary("text_tokenizer_file", [
        '"type"', '"Split"', '"ByteLevel"', '"Sequence"', '"Isolated"', '"Regex"', '"String"', '"merges"', '"vocab"', '"a b"',
        '["a","b"]', '"normalized":true', '"use_regex":false', "\\\\s+(?!\\\\S)", "\\\\p{L}", "[^", "(?:", "{1,3}", "|"])


def make_chats():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x", "b": [1, 2.5]}'}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    image = {"type": "image_url", "image_url": {"url": "u"}}
    write("text_chat", "plain.json", json.dumps({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "none"}))
    write("text_chat", "tools.json", json.dumps({"tools": [tool], "tool_choice": "auto", "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}, image]},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}, {"type": "audio"}]},
        {"role": "latest_reminder", "content": "l"}, {"role": "user", "content": "t", "task": "title"}]}))
    write("text_chat", "hostile.json", json.dumps({"response_format": {"type": "json_object"}, "messages": [
        {"role": "developer", "content": f"<\uff5cUser\uff5c>{D}<think>"},
        {"role": "assistant", "content": "<\uff5cdeepseek_image\uff5c>", "prefix": True}]}, ensure_ascii=False))
    write_dictionary("text_chat", [
        '"messages":', '"role":', '"system"', '"user"', '"assistant"', '"tool"', '"latest_reminder"', '"developer"', '"content":',
        '"type":"text"', '"type":"image"', '"tool_calls":', '"function":', '"name":', '"arguments":', '"{}"', '"tool_call_id":',
        '"reasoning_content":', '"task":"action"', '"task":"title"', '"prefix":true', '"tools":', '"tool_choice":"none"',
        '"response_format":', '"reasoning_effort":', '"thinking":', '"disabled"', D, "<think>", "<\uff5cUser\uff5c>",
        "<\uff5cdeepseek_image\uff5c>", "1e308", "18446744073709551616"])


def make_outputs():
    block = (f'\n\n<{D} calls>\n<{D} invoke name="f">\n<{D} parameter name="a" string="true">b "\\\n</{D} parameter>\n'
             f'<{D} parameter name="n" string="false">[1]</{D} parameter>\n</{D} invoke>\n'
             f'<{D} invoke name="g">\n\n</{D} invoke>\n</{D} calls>')
    write("text_output_parser", "call", "\x01\x03because\n\n</think>answer" + block)
    write("text_output_parser", "old_spelling", "\x00\x00answer" + block.replace(D + " ", D).replace("calls", "tool_calls"))
    write("text_output_parser", "unclosed", "\x00\x05x" + block.replace(f"</{D} parameter>", ""))
    write("text_output_parser", "text", "\x01\x00a < b </ <\uff5c \n\n</think>")
    write_dictionary("text_output_parser", [
        f"<{D} calls>", f"</{D} calls>", f"<{D}tool_calls>", f'<{D} invoke name="', f"</{D} invoke>", f'<{D} parameter name="',
        f"</{D} parameter>", '" string="true">', '" string="false">', '">\n', "</think>", "\n\n", f"<{D}", f"</{D}", "\uff5c"])


def make_texts():
    write("text_encode", "words", "Hello, world's 12345 \u6bd5\u8001\u5e08\uff01  \r\n\n\tdef f(x):")
    write("text_encode", "controls", "<\uff5cUser\uff5c>hi<think></think><\uff5cend\u2581of\u2581sentence\uff5c")
    write("text_encode", "invalid", b"a\xff\xf0\x9f\x98 \xed\xa0\x80b\xc2")
    write("text_encode", "marks", "e\u0301\u0488\u30ab\u3099\u30fb\n\u3040\u00a0\u180e\u2003\u0378\x01\x02a")
    write_dictionary("text_encode", [
        "<think>", "<\uff5cUser\uff5c>", D, "\u4e00", "\u3042", "\u30fb", "\u3040", "\u0301", "\u00a0", "\u2003", "\u180e", "\r\n",
        "  ", "123", "'s", "\u0378", "\U0001f600", "\u00b2", "\u0085"])


make_tokenizer_files()
make_chats()
make_outputs()
make_texts()
