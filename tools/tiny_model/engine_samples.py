"""Samples by the deepinfer program for the model card: fixed prompts, fixed seeds, nothing picked.

    python3 -m tools.tiny_model.engine_samples --program build/release/apps/deepinfer --model models/tiny --out samples.json
"""

import argparse
import json
import subprocess

STORY_TEMPERATURE, CHAT_TEMPERATURE = 0.7, 0.3
STORIES = (
    "Once upon a time, there was a little girl named Lily.",
    "One day, a small dog found a red ball in the garden.",
    "Tom and his mother went to the market.",
    "There was once a king who lived in a big castle.",
    "The old dog sat by the door and waited.",
    "A little bird wanted to learn how to fly.",
    "Ben and Mia were playing in the park.",
    "It was a cold winter day, and the snow was deep.",
    "Once there was a fox who was always hungry.",
    "Sara had a new toy boat.",
)
QUESTIONS = (
    "Hello! How are you?",
    "Who are you?",
    "What is 7 plus 5?",
    "Anna has 3 apples and gets 4 more. How many apples does Anna have now?",
    "Tom went to the kitchen. Mary went to the garden. Where is Tom?",
    "What color is the sky?",
    "What is the capital of France?",
    "What is the smallest number in this list: 7, 45, 40, 9?",
    "I am bored.",
    "Tell me a joke.",
)


def run(program, *arguments, text=""):
    result = subprocess.run([program, *map(str, arguments)], input=text, capture_output=True, text=True, check=True)
    return result.stdout.strip("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    made = {"story_temperature": STORY_TEMPERATURE, "chat_temperature": CHAT_TEMPERATURE, "stories": [], "chats": []}
    for seed, prompt in enumerate(STORIES, start=1):
        text = run(
            arguments.program, "generate", "-m", arguments.model, "-p", prompt, "-n", 160, "-t", STORY_TEMPERATURE,
            "--seed", seed, "--json",
        )  # fmt: skip
        made["stories"].append([seed, prompt, json.loads(text)["text"]])
    for seed, question in enumerate(QUESTIONS, start=1):
        flags = ("-t", CHAT_TEMPERATURE, "--seed", seed, "-n", 120)
        made["chats"].append([seed, question, run(arguments.program, "chat", "-m", arguments.model, *flags, text=question + "\n")])
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1, ensure_ascii=False)
        file.write("\n")
    for kind in ("stories", "chats"):
        for seed, prompt, text in made[kind]:
            print("[%d] %s » %s\n" % (seed, prompt, text))


if __name__ == "__main__":
    main()
