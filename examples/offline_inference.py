"""Batch inference: prompts in, answers out. Without arguments the small model of the sources tells stories."""

import argparse
import pathlib

from deepinfer import LLM, SamplingParams

PROMPTS = [
    "Once upon a time, there was a little fox who lived in the woods.",
    "The robot said",
    "One rainy day, a girl found a key.",
]
TINY = pathlib.Path(__file__).resolve().parent.parent / "models" / "tiny"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=TINY, help="folder of a checkpoint (default: the small model)")
    parser.add_argument("--ep", type=int, default=1, help="ranks that share the experts")
    parser.add_argument("--dp", type=int, default=1, help="ranks with requests of their own")
    parser.add_argument("--cp", type=int, default=1, help="ranks that share one request")
    parser.add_argument("--max-tokens", type=int, default=60)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    try:
        params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seq_seed=args.seed)
        llm = LLM(
            model=args.model,
            expert_parallel_size=args.ep,
            data_parallel_size=args.dp,
            context_parallel_size=args.cp,
        )
    except ValueError as refusal:
        parser.error(str(refusal))
    with llm:
        for output in llm.generate(PROMPTS, params):
            answer = output.outputs[0]
            print(f"Prompt: {output.prompt!r}\nAnswer: {answer.text!r} ({answer.finish_reason})\n")


if __name__ == "__main__":
    main()
