#include <algorithm>

#include "backends/cuda/kernels.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

constexpr int64_t kPairs = 8, kBlockShift = 2, kSequences = 3;

// What a task has besides its rows.
struct Case {
  int64_t width = 32;
  bool normalised = true, kept = false, quantised = false, stored = true, rotated = true;
  ops::RowType type = ops::RowType::kBf16;
  int64_t ratio = 1;
  std::optional<ops::FakeQuant> quantise = std::nullopt;
};

// A case on memory of its own, all of it with the same rows: `latents` against the kernels that it stands for.
class CudaLatentsTest : public CudaTest {
 protected:
  struct Run {
    Case c;
    Tensor in, out, quantised, cosine, sine;
    OnCard<float> weight;
    OnCard<int64_t> positions;
    OnCard<uint8_t> memory;
    OnCard<std::byte*> blocks;
    OnCard<std::byte* const*> tables;

    ops::LatentTask task(bool rounds) const {
      ops::LatentTask a{.in = in.view(), .round_to_bf16 = rounds};
      if (c.normalised) a.norm_weight = weight.data(), a.norm_eps = 1e-6f;
      if (c.kept) a.out = out.view();
      if (c.quantised) a.quantised = quantised.view();
      if (!c.stored) return a;
      a.tables = {tables.data(), kBlockShift, c.type, c.width, 64};
      a.positions = positions.data();
      a.ratio = c.ratio;
      a.quantise = c.quantise;
      if (c.rotated) a.cosine = cosine.f32(), a.sine = sine.f32();
      return a;
    }
  };

  Run make(const Case& c, ElementType type, int64_t rows, const Floats& x, const Floats& weight, const Floats& cosine,
           const Floats& sine) {
    Run run;
    run.c = c;
    run.in = tensor(type, rows, c.width, x, c.width + 8);
    run.out = poisoned(type, rows, c.width, c.width + 16), run.quantised = poisoned(type, rows, c.width);
    run.cosine = tensor(ElementType::kF32, rows, kPairs, cosine, kPairs + 4);
    run.sine = tensor(ElementType::kF32, rows, kPairs, sine);
    run.weight = upload(weight);
    // Tokens of three sequences in turn, with padding rows of both kinds.
    const int64_t rows_a_sequence = rows / kSequences + 1;
    const int64_t blocks_a_sequence = (rows_a_sequence >> kBlockShift) + 1;
    const int64_t block_bytes = 64 + (ops::row_bytes(c.type, c.width) << kBlockShift);
    run.memory = upload(std::vector<uint8_t>(kSequences * blocks_a_sequence * block_bytes, 0xA5));
    std::vector<std::byte*> blocks;
    for (int64_t b = 0; b < kSequences * blocks_a_sequence; ++b) {
      blocks.push_back(reinterpret_cast<std::byte*>(run.memory.data()) + b * block_bytes);
    }
    run.blocks = upload(blocks);
    std::vector<int64_t> positions;
    std::vector<std::byte* const*> tables;
    for (int64_t t = 0; t < rows; ++t) {
      positions.push_back(t % 7 == 5 ? -1 : t / kSequences);
      tables.push_back(t % 11 == 9 ? nullptr : run.blocks.data() + t % kSequences * blocks_a_sequence);
    }
    run.positions = upload(positions), run.tables = upload(tables);
    return run;
  }

  void one_after_the_other(const Run& run, ElementType type, bool rounds) {
    ops::LatentTask a = run.task(rounds);
    const Tensor scratch = poisoned(type, a.in.rows, a.in.cols);
    if (a.norm_weight != nullptr) {
      const TensorView normalised = a.out ? a.out : scratch.view();
      cuda::rms_norm(stream(), {normalised, a.in, a.norm_weight, a.norm_eps, rounds, a.quantised});
      a.in = normalised;
    }
    if (a.tables.blocks != nullptr) cuda::write_rows(stream(), a.rows_to_write(a.in));
  }

  void expect_same(const Run& got, const Run& want, const std::string& what) {
    expect_same_bits(got.out.values(), want.out.values(), what + ", rows", got.c.width);
    expect_same_bits(got.quantised.values(), want.quantised.values(), what + ", quantised", got.c.width);
    const std::vector<uint8_t> a = got.memory.values(), b = want.memory.values();
    const auto first = std::mismatch(a.begin(), a.end(), b.begin());
    EXPECT_TRUE(first.first == a.end()) << what << ": stored byte " << first.first - a.begin() << " of " << a.size()
                                        << " is " << int{*first.first} << ", not " << int{*first.second};
  }

  // All cases in one call.
  void check(const std::vector<Case>& cases, int64_t rows) {
    for (ElementType type : kBothTypes) {
      const bool rounds = type == ElementType::kBf16;
      std::vector<Run> runs, wanted;
      std::vector<ops::LatentTask> tasks;
      for (const Case& c : cases) {
        const Floats x = random_values(rows * c.width, 2, type), weight = random_values(c.width);
        Floats cosine, sine;
        for (float a : random_values(rows * kPairs)) cosine.push_back(std::cos(a)), sine.push_back(std::sin(a));
        runs.push_back(make(c, type, rows, x, weight, cosine, sine));
        wanted.push_back(make(c, type, rows, x, weight, cosine, sine));
        one_after_the_other(wanted.back(), type, rounds);
        tasks.push_back(runs.back().task(rounds));
      }
      cuda::latents(stream(), tasks);
      for (size_t i = 0; i < cases.size(); ++i) {
        expect_same(runs[i], wanted[i],
                    fmt::format("{}, {} rows, task {} of width {}", name_of(type), rows, i, cases[i].width));
      }
    }
  }
};

TEST_F(CudaLatentsTest, AreThoseOfTheNormAndTheWriteOneAfterTheOtherForAnyNumberOfRows) {
  for (int64_t rows : {1, 2, 6, 65, 700}) {
    check({{.width = 1280, .kept = true, .quantised = true, .stored = false},
           {.width = 512, .type = ops::RowType::kE4m3Group32, .quantise = ops::FakeQuant::kE4m3Group32},
           {.width = 128, .type = ops::RowType::kE2m1Group32, .ratio = 2, .quantise = ops::FakeQuant::kE2m1Group32},
           {.width = 1024, .normalised = false, .rotated = false, .type = ops::RowType::kF32}},
          rows);
  }
}

TEST_F(CudaLatentsTest, AreStoredInEveryRowTypeThroughEveryQuantiser) {
  for (ops::RowType type : {ops::RowType::kF32, ops::RowType::kBf16, ops::RowType::kE4m3Group32,
                            ops::RowType::kE2m1Group16, ops::RowType::kE2m1Group32}) {
    for (std::optional<ops::FakeQuant> quantise :
         {std::optional<ops::FakeQuant>(), std::optional(ops::FakeQuant::kE4m3Group32),
          std::optional(ops::FakeQuant::kE2m1Group16), std::optional(ops::FakeQuant::kE2m1Group32)}) {
      check({{.width = 96, .type = type, .quantise = quantise},
             {.width = 512, .normalised = false, .type = type, .ratio = 2, .quantise = quantise},
             {.width = 8192, .kept = true, .rotated = false, .type = type, .quantise = quantise}},
            24);
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
