"""Writes MODEL_CARD.md from the reports of the training rounds; nothing in the card's tables is typed by hand.

    python3 -m tools.tiny_model.card --reports r1/report.json r2/report.json d/report.json --config models/tiny/config.json \
        --engine engine.json --samples samples.json --figures figures.json --logits logits.txt --out models/tiny/MODEL_CARD.md

engine.json, samples.json and figures.json come from measure_engine, engine_samples and plots; logits.txt holds the lines that
tests/tiny_model/test_engine_logits.py prints. Parts without a measurement say so.
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


GROUP_ORDER = ("stories", "storybooks", "prose", "dialogue", "tools", "code-json")


def training(reports):
    last = reports[-1]["counters"]
    rows = [(r["plan"], r["steps"], "%.1f" % (r["tokens"] / 1e6)) for r in last["rounds"]]
    text = "%.1f million tokens for the language model in all.\n\n" % (last["tokens"] / 1e6) + table(
        ("round", "steps", "million tokens"), rows
    )
    spent = [r["million_tokens_by_group"] for r in last["rounds"] if "million_tokens_by_group" in r]
    if spent:
        rows = [["million tokens that differ"] + [UNIQUE[g] for g in GROUP_ORDER]]
        rows += [["read in round `%s`" % r["plan"]] + ["%.1f" % r["million_tokens_by_group"][g] for g in GROUP_ORDER]
                 for r in last["rounds"] if "million_tokens_by_group" in r]  # fmt: skip
        text += "\n\n" + table(("", *GROUP_ORDER), rows)
    return text


# Million tokens of the packed training files.
UNIQUE = {"stories": 2.9, "storybooks": 5.3, "prose": 7.5, "dialogue": 8.8, "tools": 9.6, "code-json": 2.1}


def held_out(reports, engine):
    measured = next((r["held_out"] for r in reversed(reports) if "held_out" in r), None)
    if not measured:
        return NOT_MEASURED
    groups = list(next(iter(measured.values())))
    rows = [[name] + ["%.4f" % values[g]["bits_per_byte"] for g in groups] for name, values in measured.items()]
    for name, known in (engine or {}).items():
        rows.append(["`deepinfer score`, " + name] + ["%.4f" % known[g]["bits_per_byte"] if g in known else "-" for g in groups])
    text = table(["bits per byte"] + groups, rows)
    shared = [(n, g) for n in engine or {} for g in engine[n] if not g.startswith("all")]
    if shared:
        worst = max(abs(engine[n][g]["bits_per_byte"] / measured[n][g]["bits_per_byte"] - 1) for n, g in shared)
        text += "\n\nLargest difference of `deepinfer score` from PyTorch on the same documents: %.2f %%." % (100 * worst)
    return text


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
        head = "%s: %.2f of %d drafts accepted a round (%d rounds, greedy); mean ECE over the positions %.3f." % (
            group, values["mean_accepted_per_round"], len(rows), values["rounds"],
            sum(p["ece_after"] for p in values["positions"]) / len(rows),
        )  # fmt: skip
        columns = ("position", "accepted", "AUC", "ECE before", "ECE after", "Brier before", "Brier after")
        parts.append(head + "\n\n" + table(columns, rows))
    return "\n\n".join(parts)


def load(reports, figures):
    records = [x for r in reports for x in r.get("log", []) if "load_peaks" in x]
    if not records:
        return NOT_MEASURED
    peaks = records[-1]["load_peaks"]
    text = table(["layer"] + list(range(len(peaks))), [["largest / mean, end of training"] + peaks])
    return text + ("\n\n![Largest over mean load of each layer over the training](expert-load.png)" if figures else "")


def rows_read(figures):
    if not figures:
        return NOT_MEASURED
    rows = [
        (layer, r["rows"], r["read"], "%.1f %%" % (100 * r["top_1_percent"]), "%.1f %%" % (100 * r["top_10_percent"]))
        for layer, r in figures["rows"].items()
    ]
    head = ("layer", "rows", "read at least once", "reads of the top 1 %", "reads of the top 10 %")
    return table(head, rows) + "\n\n![Share of all reads by rank](engram-rows.png)"


def quoted(samples):
    if not samples:
        return NOT_MEASURED

    def block(seed, prompt, text):
        return "> %d. **%s**%s" % (seed, prompt, text.replace("\n", "\n> "))

    parts = ["`deepinfer generate -n 160 -t %s --seed N`; N is the number of the sample, the prompt is bold." % samples["story_temperature"]]
    parts += [block(*s) for s in samples["stories"]]
    parts += ["`deepinfer chat -n 120 -t %s --seed N`; the question is bold." % samples["chat_temperature"]]
    parts += [block(seed, prompt, "\n\n" + text) for seed, prompt, text in samples["chats"]]
    return "\n\n".join(parts)


CARD = """# deepinfer tiny

A small language model in the format of DeepSeek-V4.1-Flash, trained from scratch to exercise the engine: every block kind, trained
weights, simple English stories and short answers. It knows little and is often wrong; it is a test object, not an assistant.

## Size

{sizes}

## Training

Trained with `tools/tiny_model` (its README tells how) on the corpus described below.

{training}

Round `start` drew the six groups as 28, 22, 16, 22, 7 and 5 per cent. The rounds named `drafter` train the draft stages alone.

## Held-out bits per byte

Over all tokens of held-out documents, prompts and control tokens included, divided by the bytes of their text. The groups are those of
the training mixture; `all stories` and `all dialogue` are the corpus categories that hold two of them.

{held_out}

Drafts never change a text, and `score` drafts nothing: with drafts off the figures are the same ones. The last row of PyTorch has all
weights in BF16 in place of FP8 and FP4. Half of these documents were looked at during training, to keep the best state; it was the last one.

## Agreement with the reference

Largest difference over the largest logit of a row, the program against `reference/` on the files of this folder
(`python3 -m unittest tests.tiny_model.test_engine_logits`):

{logits}

The order of sums decides roundings to 8 bits, and those decide experts and rows here and there: under `official` numerics the reference
differs from itself as much when it computes in double precision. The median is above the 1.5 % of the golden models, whose weights are random.

## Drafter

Greedy continuations of held-out prompts; temperatures fitted on half of the prompts, figures from the other half. ECE and Brier score
are of the cumulative product of confidences, AUC is of a position's own confidence where all drafts before were accepted. The temperatures
are in `config.json`, `text_config.dspark_confidence_head_temperature`, a divisor of the confidence logit for each of the {block} positions.

{drafter}

Temperatures alone do not make all groups agree: one temperature serves old books, where the head is too sure, and tool calls, where it is
not sure enough.

## Expert load

{load}

## Engram rows

{rows}

## Samples

By the program, unedited, each prompt sampled once.

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
    parser.add_argument("--samples", help="samples by the program")
    parser.add_argument("--figures", help="expert load and Engram rows")
    parser.add_argument("--logits", help="lines about the agreement of logits")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    reports = [_load(p) for p in arguments.reports]
    engine = _load(arguments.engine) if arguments.engine else None
    samples = _load(arguments.samples) if arguments.samples else None
    figures = _load(arguments.figures) if arguments.figures else None
    logits = NOT_MEASURED
    if arguments.logits:
        with open(arguments.logits) as file:
            logits = "\n".join("- " + line.strip().lstrip(".") for line in file if "largest" in line)
    text = CARD.format(
        sizes=sizes(_load(arguments.config)),
        training=training(reports),
        held_out=held_out(reports, engine),
        drafter=drafter(reports),
        block=_load(arguments.config)["text_config"]["dspark_block_size"],
        logits=logits,
        load=load(reports, figures),
        rows=rows_read(figures),
        samples=quoted(samples),
        attribution=ATTRIBUTION,
    )
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(text)
    print("%s: %d lines" % (arguments.out, text.count("\n")))


if __name__ == "__main__":
    main()
