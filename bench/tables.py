"""Cuts the Markdown tables of docs/benchmarks/README.md from the JSON files of `deepinfer bench cpu` and `bench gpu`.

    python3 bench/tables.py FILE.json...
"""

import json
import sys


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(head, rows):
    return "\n".join([row(head), "|" + "---|" * len(head), *map(row, rows)]) + "\n"


def unique(values):
    return list(dict.fromkeys(values))


def cpu_ceilings(ceilings):
    threads = unique(c["threads"] for c in ceilings)
    at = {(c["name"], c["threads"]): c["p50"] for c in ceilings}
    head = ["ceiling"] + [f"{t} thread{'s' if t > 1 else ''}" for t in threads]
    names = unique((c["name"], c["unit"]) for c in ceilings)
    return table(head, [[f"{name}, {unit}"] + [f"{at[name, t]:.1f}" for t in threads] for name, unit in names])


def cpu_kernels(few, many):
    one = {(r["kernels"], r["format"], r["threads"], r["tokens"]): r for r in few}
    shares = {(r["kernels"], r["format"], r["threads"], r["tokens"]): r["gflops"] / r["peak_gflops"] for r in many}
    lines = []
    for kernels, form, threads in unique(key[:3] for key in one):
        first, four = one[kernels, form, threads, 1], one[kernels, form, threads, 4]
        share = first["gbps_p50"] / first["read_gbps_p50"]
        gemm = " / ".join(f"{shares[kernels, form, threads, n]:.2f}" for n in (64, 256, 512))
        lines.append([kernels, form, threads, f"{first['gbps_p50']:.1f}, {share:.2f}", f"{four['cost']:.2f}", gemm])
    head = ["kernels", "format", "threads", "one token: GB/s, share of a pure read", "four tokens: times the cost of one",
            "64 / 256 / 512 tokens: share of the peak"]
    return table(head, lines)


def cpu_layers(layers):
    head = ["kernels", "threads", "MB read", "read GB/s", "floor ms", "layer ms", "of it attention", "times the floor"]
    return table(head, [[x["kernels"], x["threads"], f"{x['weight_bytes'] / 1e6:.0f}", f"{x['read_gbps_p50']:.1f}",
                         f"{x['floor_ms']:.2f}", f"{x['layer_ms']:.2f}", f"{x['attention_ms']:.2f}",
                         f"{x['floors']:.2f}"] for x in layers])


def gpu_section(rows):
    """Microseconds, and in brackets the floor over that time."""
    sizes = sorted({r["rows"] for r in rows})
    at = {(r["name"], r["rows"]): r for r in rows}

    def cell(name, size):
        r = at.get((name, size))
        if r is None:
            return ""
        return f"{r['us']:.{1 if r['us'] < 100 else 0}f} ({r['floor_us'] / r['us']:.2f})"

    return table(["us (share of the floor reached)", *sizes],
                 [[name] + [cell(name, size) for size in sizes] for name in unique(r["name"] for r in rows)])


def gpu_composed(steps):
    return table(["step", "rows", "context", "ms", "floor ms", "tokens/s"],
                 [[x["name"], x["rows"], x["context"], f"{x['ms']:.2f}", f"{x['floor_ms']:.2f}",
                   f"{x['rows'] / x['ms'] * 1000:.0f}"] for x in steps])


def gpu_goals(goals):
    return table(["stage", "what", "reached", "bronze / silver / gold", "level"],
                 [[g["stage"], g["name"], f"{g['value']:.3g}", f"{g['bronze']:g} / {g['silver']:g} / {g['gold']:g}",
                   g["level"]] for g in goals])


def tables_of(results):
    if "few_tokens" in results:
        yield "ceilings", cpu_ceilings(results["ceilings"])
        yield "kernels", cpu_kernels(results["few_tokens"], results["many_tokens"])
        if results.get("layers"):
            yield "layers", cpu_layers(results["layers"])
        return
    for section in unique(r["section"] for r in results["rows"]):
        yield section, gpu_section([r for r in results["rows"] if r["section"] == section])
    yield "composed", gpu_composed(results["composed"])
    yield "engine", table(["sequences", "step us", "idle us"],
                          [[x["sequences"], f"{x['step_us']:.0f}", f"{x['idle_us']:.1f}"] for x in results["engine"]])
    yield "goals", gpu_goals(results["goals"])


def main(paths):
    if not paths:
        sys.exit(__doc__)
    for path in paths:
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        if "few_tokens" not in results and "composed" not in results:
            sys.exit(f"{path}: neither `bench cpu` nor `bench gpu` wrote this; give a file of their --json")
        for name, text in tables_of(results):
            print(f"### {name}\n\n{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
