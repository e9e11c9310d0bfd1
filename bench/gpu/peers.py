#!/usr/bin/env python3
"""Times what PyTorch offers for the shapes of `bench gpu`, and writes JSON that the program merges into its tables:

    python3 bench/gpu/peers.py peers.json && bench_gpu --peers peers.json --json results.json

Times are medians over CUDA graph replays, on random data, rotating over inputs that no cache holds together.
"""
import json
import sys

import torch

HIDDEN, QUERY_RANK, HEADS_WIDTH, VOCABULARY = 5120, 1280, 32768, 129280


def time_us(body, sets, replays=20):
    """Median microseconds of body(i), recorded for all sets in one graph; without a graph if it cannot be recorded."""
    for i in range(min(sets, 2)):
        body(i)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(sets):
                body(i)
        launch = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()

        def launch():
            for i in range(sets):
                body(i)

    times = []
    for i in range(-2, replays):
        begin.record()
        launch()
        end.record()
        end.synchronize()
        if i >= 0:
            times.append(begin.elapsed_time(end) * 1e3 / sets)
    return sorted(times)[len(times) // 2]


def sample_by_sorting(logits, noise, top_k, top_p):
    """Temperature 1, top-k, top-p, Gumbel-max: the usual way with a sort of every row."""
    values, ids = logits.sort(dim=-1, descending=True)
    values[:, top_k:] = -float("inf")
    probabilities = values.softmax(dim=-1)
    values[probabilities.cumsum(dim=-1) - probabilities >= top_p] = -float("inf")
    return ids.gather(1, (values + noise).argmax(dim=-1, keepdim=True))


def sampling(rows):
    for batch in (1, 64, 256):
        sets = 1 if batch > 1 else 8
        logits = torch.randn(sets * batch, VOCABULARY, device="cuda") * 2.5
        noise = -torch.log(torch.empty(batch, VOCABULARY, device="cuda").exponential_())
        us = time_us(lambda i: sample_by_sorting(logits[i * batch : (i + 1) * batch], noise, 50, 0.95), sets, 8)
        rows.append(dict(section="head", name="sample, top-k 50, top-p", rows=batch, peer="torch.sort path", us=us))


def selection(rows):
    for context, name in ((8192, "8k"), (65536, "64k"), (131072, "128k")):
        for batch in (1, 8, 64, 256):
            sets = max(1, min(16, (256 << 20) // (batch * context * 2)))
            scores = torch.randn(sets * batch, context, device="cuda", dtype=torch.bfloat16)
            us = time_us(lambda i: scores[i * batch : (i + 1) * batch].topk(512, dim=-1), sets, 10)
            rows.append(dict(section="top_k", name=f"top-k 512 of {name}", rows=batch, peer="torch.topk", us=us))


def products(rows):
    shapes = (("wq_a, wkv", QUERY_RANK + 512, HIDDEN), ("wq_b", HEADS_WIDTH, QUERY_RANK), ("wo_b", HIDDEN, 8192))
    for name, outputs, columns in shapes:
        sets = max(2, min(24, (512 << 20) // (outputs * columns * 2)))
        weights = torch.randn(sets, outputs, columns, device="cuda", dtype=torch.bfloat16)
        narrow = weights.to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        for batch in (1, 8, 64, 256, 4096):
            x = torch.randn(batch, columns, device="cuda", dtype=torch.bfloat16)
            us = time_us(lambda i: torch.matmul(x, weights[i].t()), sets)
            rows.append(dict(section="linear", name=name, rows=batch, peer="torch.matmul BF16", us=us))
            if batch < 16:
                continue  # the scaled product wants 16 rows
            x8 = x.to(torch.float8_e4m3fn)

            def scaled(i):
                torch._scaled_mm(x8, narrow[i].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

            try:
                rows.append(
                    dict(section="linear fp8", name=name, rows=batch, peer="torch._scaled_mm", us=time_us(scaled, sets))
                )
            except RuntimeError as error:
                print(f"torch._scaled_mm of {name}: {error}", file=sys.stderr)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(1)
    rows = []
    products(rows)
    selection(rows)
    sampling(rows)
    with open(sys.argv[1], "w") as file:
        json.dump(dict(torch=torch.__version__, card=torch.cuda.get_device_name(), rows=rows), file, indent=1)
    for row in rows:
        print(f"{row['peer']:<20}{row['name']:<26}{row['rows']:>6}{row['us']:>12.1f} us")


if __name__ == "__main__":
    main()
