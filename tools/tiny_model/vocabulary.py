"""What a tokenizer.json says beyond encoding: the byte alphabet, token bytes, and the compressed ids of Engram."""

import json
import re
import unicodedata

_DIRECT = [*range(33, 127), *range(161, 173), *range(174, 256)]
_MOVED = [b for b in range(256) if b not in set(_DIRECT)]

# Bytes in the order of their token ids, and the character that spells each of them.
BYTE_ORDER = _DIRECT + _MOVED
BYTE_TO_CHAR = {b: chr(b) for b in _DIRECT} | {b: chr(256 + i) for i, b in enumerate(_MOVED)}
CHAR_TO_BYTE = {c: b for b, c in BYTE_TO_CHAR.items()}

_WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_GUARD = "\ue000"


def read_tokenizer(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def spellings(tokenizer):
    """Spelling of every id in order: byte-alphabet characters for regular tokens, the literal text for added ones."""
    spelled = {i: s for s, i in tokenizer["model"]["vocab"].items()}
    spelled.update({token["id"]: token["content"] for token in tokenizer["added_tokens"]})
    if sorted(spelled) != list(range(len(spelled))):
        raise ValueError("token ids are not 0..%d without gaps" % (len(spelled) - 1))
    return [spelled[i] for i in range(len(spelled))]


def token_bytes(tokenizer):
    """The bytes each id decodes to."""
    added = {token["id"] for token in tokenizer["added_tokens"]}
    return [
        text.encode() if i in added else bytes(CHAR_TO_BYTE[c] for c in text)
        for i, text in enumerate(spellings(tokenizer))
    ]


def normalise(text):
    """Case, accents and white space removed, so that spellings of one word share a compressed id."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if not unicodedata.category(c).startswith("M"))
    text = "".join(c.lower() for c in text)
    text = re.sub("[ \t\r\n]+", " ", text)
    text = _GUARD if text == " " else text
    return text.strip(_WHITE_SPACE).replace(_GUARD, " ")


def compressed_ids(tokenizer):
    """Compressed id of every token id: tokens with one key share the number of that key's first appearance."""
    keys, result = {}, []
    for spelling, data in zip(spellings(tokenizer), token_bytes(tokenizer)):
        text = data.decode("utf-8", errors="replace")
        key = spelling if "\ufffd" in text else normalise(text) or text
        result.append(keys.setdefault(key, len(keys)))
    return result
