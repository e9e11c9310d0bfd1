"""Typed use of the whole public surface; checked strictly, not run."""

from __future__ import annotations

from deepinfer import LLM, AsyncLLM, FinishReason, RequestOutput, SamplingParams


def batch() -> dict[str, str]:
    params = SamplingParams(n=2, temperature=0.7, stop=["\n"], logit_bias={5: -1.0}, seed=1, logprobs=1)
    with LLM("model", expert_parallel_size=1, max_num_seqs=8, enable_prefix_caching=True) as llm:
        outputs: list[RequestOutput] = llm.generate(["a", "b"], [params, params], priority=[0, 1])
        outputs += llm.generate("a") + llm.generate([[1, 2], [3]]) + llm.generate([1, 2])
        outputs += llm.generate({"prompt_token_ids": [1], "cache_salt": "tenant"})
        outputs += llm.chat([{"role": "user", "content": "a"}], params, thinking=False)
        outputs += llm.chat([[{"role": "user", "content": "a"}]], tools=[{"type": "function"}])
        for update in llm.stream("a", params):
            print(update.outputs[0].text, update.finished)
        print(llm.detokenize(llm.tokenize("a")), llm.stats().running + 1, llm.max_model_len - 1)
    for output in outputs:
        first = output.outputs[0]
        if first.finish_reason is FinishReason.STOP and first.logprobs is not None:
            print([{token: p.logprob for token, p in entry.items()} for entry in first.logprobs])
    return {output.prompt or "": output.outputs[0].text for output in outputs}


async def one() -> str:
    text = ""
    async with AsyncLLM("model", threads=2) as llm:
        async for update in llm.generate("a", SamplingParams(max_tokens=None)):
            text += update.outputs[0].text
    return text
