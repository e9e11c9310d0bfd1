"""Writes MODEL_CARD.md from the reports of the training rounds; nothing in the card's tables is typed by hand.

    python3 -m tools.tiny_model.card --reports r1/report.json r2/report.json d/report.json --config models/tiny/config.json \
        [--engine engine.json] [--samples samples.json] --out models/tiny/MODEL_CARD.md

engine.json: {"bits_per_byte": {group: value}, ...} measured with the engine; samples.json: [[prompt, text], ...].
Parts without a measurement say so.
"""

import argparse
import json

from .config import byte_table

NOT_MEASURED = "not measured yet"


def _load(path):
    with open(path) as file:
        return json.load(file)


def table(header, rows):
    lines = ["| %s |" % " | ".join(map(str, header)), "|%s|" % "|".join("---" for _ in header)]
    return "\n".join(lines + ["| %s |" % " | ".join(map(str, row)) for row in rows])


def sizes(config):
    rows = [(kind, "%.2f" % (size / 1e6)) for kind, size in byte_table(config).items()]
    return table(("tensors", "MB"), rows + [("all", "%.2f" % (sum(byte_table(config).values()) / 1e6))])


def training(reports):
    last = reports[-1]["counters"]
    rows = [(r["plan"], r["steps"], "%.1f" % (r["tokens"] / 1e6)) for r in last["rounds"]]
    return "%.1f million tokens for the language model in all.\n\n" % (last["tokens"] / 1e6) + table(
        ("round", "steps", "million tokens"), rows
    )


def held_out(reports, engine):
    measured = next((r["held_out"] for r in reversed(reports) if "held_out" in r), None)
    if not measured:
        return NOT_MEASURED
    groups = list(next(iter(measured.values())))
    rows = [[name] + ["%.4f" % values[g]["bits_per_byte"] for g in groups] for name, values in measured.items()]
    if engine:
        known = engine.get("bits_per_byte", {})
        rows.append(["the engine's score"] + ["%.4f" % known[g] if g in known else "-" for g in groups])
    return table(["bits per byte"] + groups, rows)


def drafter(reports):
    measured = next((r["drafter"] for r in reversed(reports) if "drafter" in r), None)
    if not measured:
        return NOT_MEASURED
    parts = ["Temperatures: " + ", ".join("%.3f" % t for t in measured["temperatures"]) + "."]
    for group, values in measured["groups"].items():
        rows = [
            [k + 1] + ["%.3f" % p[n] for n in ("accepted", "auc", "ece_before", "ece_after", "brier_before", "brier_after")]
            for k, p in enumerate(values["positions"])
        ]
        head = "%s: %.2f of %d drafts accepted a round (%d rounds, greedy)." % (
            group, values["mean_accepted_per_round"], len(rows), values["rounds"],
        )
        columns = ("position", "accepted", "AUC", "ECE before", "ECE after", "Brier before", "Brier after")
        parts.append(head + "\n\n" + table(columns, rows))
    return "\n\n".join(parts)


def load(reports):
    records = [x for r in reports for x in r.get("log", []) if "load_peaks" in x]
    if not records:
        return NOT_MEASURED
    peaks = records[-1]["load_peaks"]
    return table(["layer"] + list(range(len(peaks))), [["largest / mean"] + peaks])


def quoted(reports, samples):
    samples = samples or next((r["samples"] for r in reversed(reports) if "samples" in r), None)
    if not samples:
        return NOT_MEASURED
    return "\n\n".join("> %s**%s**" % tuple(t.replace("\n", "\n> ") for t in pair) for pair in samples)


CARD = """# deepinfer tiny

A small language model in the format of DeepSeek-V4.1-Flash, trained from scratch to exercise the engine: every block kind, trained
weights, simple English stories and short answers. It knows little and is often wrong; it is a test object, not an assistant.

## Size

{sizes}

## Training

Trained with `tools/tiny_model` (its README tells how) on the corpus described below.

{training}

## Held-out bits per byte

Over all tokens of held-out documents, prompts and control tokens included, divided by the bytes of their text. The groups are those of
the training mixture; `all stories` and `all dialogue` are the corpus categories that hold two of them.

{held_out}

## Drafter

Greedy continuations of held-out prompts; temperatures fitted on half of the prompts, figures from the other half. ECE and Brier score
are of the cumulative product of confidences.

{drafter}

## Expert load

{load}

## Samples

Unedited.

{samples}

## Data and licences

{attribution}
"""

ATTRIBUTION = """Plain English text that may be redistributed: TinyStories (CDLA-Sharing-1.0); children's books and fairy tales of Project
Gutenberg (public domain in the USA); TinyFabulist (MIT); Pratham Books StoryWeaver, African Storybook, Book Dash (CC-BY-4.0);
OneStopEnglish (CC-BY-SA-4.0); Schema-Guided Dialogue (CC-BY-SA-4.0); GSM8K train (MIT); FairytaleQA (Apache-2.0); OpenTriviaQA
(CC-BY-SA-4.0); Synthetic-Persona-Chat (CC-BY-4.0); SNIPS NLU (CC0-1.0); Dolly 15k (CC-BY-SA-3.0); E2E NLG, cleaned (CC-BY-SA-4.0);
Taskmaster-3 and 4 (CC-BY-4.0); CLINC150 (CC-BY-3.0); WordNet 3.0 (WordNet licence); chatterbot-corpus (BSD-3-Clause); TheAlgorithms and
keon/algorithms (MIT); SchemaStore (Apache-2.0); Corpora (CC0-1.0); documentation of xgrammar, simdjson, leveldb, CTranslate2, mscclpp,
duckdb and llm.c (their licences); templates written for this project (CC0-1.0). Left out although in the corpus: GPTeacher, D-Wikipedia.
Held-out text is a fixed one per cent. Records of the dev and test splits of several of these sets are in the training data: do not
measure this model on them."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", nargs="+", required=True, help="report.json files, oldest first")
    parser.add_argument("--config", default="models/tiny/config.json")
    parser.add_argument("--engine", help="figures measured with the engine")
    parser.add_argument("--samples", help="[[prompt, text], ...] in place of those of the last round")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    reports = [_load(p) for p in arguments.reports]
    engine = _load(arguments.engine) if arguments.engine else None
    samples = _load(arguments.samples) if arguments.samples else None
    text = CARD.format(
        sizes=sizes(_load(arguments.config)),
        training=training(reports),
        held_out=held_out(reports, engine),
        drafter=drafter(reports),
        load=load(reports),
        samples=quoted(reports, samples),
        attribution=ATTRIBUTION,
    )
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(text)
    print("%s: %d lines" % (arguments.out, text.count("\n")))


if __name__ == "__main__":
    main()
