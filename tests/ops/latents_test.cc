// `latents` does in one call what `rms_norm` and `write_rows`, which have tests of their own, do one after the other.
#include "ops/latents.h"

#include <cmath>
#include <deque>

#include <gtest/gtest.h>

#include "ops/quantisers.h"
#include "ops/rigs.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;
constexpr int64_t kRows = 7, kPairs = 8;

struct Case {
  int64_t width = 32;
  bool normalised = true, in_place = false, kept = false, quantised = false, stored = true, rotated = true;
  RowType type = RowType::kBf16;
  int64_t ratio = 1;
  std::optional<FakeQuant> quantise = std::nullopt;
  bool round = true;
};

struct Inputs {
  Values x, weight, cosine, sine;
};

Inputs inputs_for(const Case& c, Random& random) {
  Inputs in{random.normals(kRows * c.width, 2), random.normals(c.width), {}, {}};
  for (const float angle : random.normals(kRows * kPairs)) {
    in.cosine.push_back(std::cos(angle)), in.sine.push_back(std::sin(angle));
  }
  return in;
}

// A case on one rig, on its own memory.
class OneRun {
 public:
  OneRun(const Rig& rig, const Case& c, const Inputs& inputs)
      : case_(c),
        inputs_(inputs),
        in_(rig, c.width, inputs.x),
        out_(rig, kRows, c.width),
        quantised_(rig, kRows, c.width),
        cosine_(rig, kPairs, inputs.cosine),
        sine_(rig, kPairs, inputs.sine),
        memory_(kRows * row_bytes(c.type, c.width), std::byte{0x5A}),
        block_(memory_.data()) {
    // Token t is at position t, but every third one is a padding row.
    for (int64_t t = 0; t < kRows; ++t) {
      positions_.push_back(t % 3 == 2 ? -1 : t);
      tables_.push_back(t % 3 == 2 ? nullptr : &block_);
    }
  }

  LatentTask task() {
    LatentTask a{.in = in_.view(), .round_to_bf16 = case_.round};
    if (case_.normalised) a.norm_weight = inputs_.weight.data(), a.norm_eps = 1e-6f;
    if (case_.in_place) a.out = in_.view();
    if (case_.kept) a.out = out_.view();
    if (case_.quantised) a.quantised = quantised_.view();
    if (!case_.stored) return a;
    a.tables = {tables_.data(), 20, case_.type, case_.width};
    a.positions = positions_.data();
    a.ratio = case_.ratio;
    a.quantise = case_.quantise;
    if (case_.rotated) a.cosine = cosine_.view(), a.sine = sine_.view();
    return a;
  }
  void one_after_the_other(Stream& stream) {
    LatentTask a = task();
    Values scratch(kRows * case_.width);
    const TensorView rows = a.out ? a.out : TensorView(dense(scratch.data(), kRows, case_.width));
    if (case_.normalised) {
      rms_norm(stream, {rows, a.in, a.norm_weight, a.norm_eps, a.round_to_bf16, a.quantised});
      a.in = rows;
    } else if (case_.quantised) {
      fake_quant(stream, {FakeQuant::kE4m3Group32, a.quantised, a.in});
    }
    if (case_.stored) write_rows(stream, a.rows_to_write(a.in));
  }
  // All that may have been written.
  Values result() const {
    Values all = in_.values();
    for (const Values& more : {out_.values(), quantised_.values()}) all.insert(all.end(), more.begin(), more.end());
    for (const std::byte byte : memory_) all.push_back(static_cast<float>(byte));
    return all;
  }

 private:
  const Case& case_;
  const Inputs& inputs_;
  Buffer<float> in_, out_, quantised_, cosine_, sine_;
  std::vector<std::byte> memory_;
  std::byte* block_;
  std::vector<int64_t> positions_;
  std::vector<std::byte* const*> tables_;
};

void check(const Case& c, Random& random) {
  const Inputs inputs = inputs_for(c, random);
  OneRun expected(all_rigs().front(), c, inputs);
  expected.one_after_the_other(*all_rigs().front().stream);
  for (const Rig& rig : all_rigs()) {
    OneRun run(rig, c, inputs);
    const LatentTask task = run.task();
    latents(*rig.stream, {&task, 1});
    report_difference(rig.name, first_difference(run.result(), expected.result()));
  }
}

TEST(Latents, are_normalised_as_by_rms_norm) {
  Random random(1);
  for (const int64_t width : {32, 96, 1280}) {
    for (const bool round : {false, true}) {
      for (const bool quantised : {false, true}) {
        SCOPED_TRACE(testing::Message() << "width " << width << ", rounded " << round << ", quantised " << quantised);
        check({.width = width, .in_place = true, .quantised = quantised, .stored = false, .round = round}, random);
        check({.width = width, .kept = true, .quantised = quantised, .stored = false, .round = round}, random);
        check({.width = width, .normalised = false, .quantised = true, .stored = false, .round = round}, random);
      }
    }
  }
}

TEST(Latents, are_stored_as_by_write_rows) {
  Random random(2);
  for (const RowType type :
       {RowType::kF32, RowType::kBf16, RowType::kE4m3Group32, RowType::kE2m1Group16, RowType::kE2m1Group32}) {
    for (const std::optional<FakeQuant> quantise :
         {std::optional<FakeQuant>(), std::optional(FakeQuant::kE4m3Group32), std::optional(FakeQuant::kE2m1Group16),
          std::optional(FakeQuant::kE2m1Group32)}) {
      for (const bool normalised : {false, true}) {
        for (const int64_t ratio : {1, 2}) {
          SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", normalised " << normalised
                                          << ", groups of " << ratio);
          Case c{.width = 128, .normalised = normalised, .type = type, .ratio = ratio, .quantise = quantise};
          check(c, random);
          c.kept = normalised, c.rotated = false, c.round = false;
          check(c, random);
        }
      }
    }
  }
}

TEST(Latents, of_several_kinds_in_one_call_are_those_of_each_alone) {
  Random random(3);
  const Case cases[] = {{.width = 1280, .in_place = true, .quantised = true, .stored = false},
                        {.width = 512, .quantise = FakeQuant::kE4m3Group32},
                        {.width = 64, .normalised = false, .rotated = false, .type = RowType::kF32},
                        {.width = 128, .kept = true, .type = RowType::kE2m1Group32, .ratio = 2}};
  std::vector<Inputs> inputs;
  for (const Case& c : cases) inputs.push_back(inputs_for(c, random));
  for (const Rig& rig : all_rigs()) {
    std::deque<OneRun> runs, alone;
    std::vector<LatentTask> tasks;
    for (size_t i = 0; i < 4; ++i) {
      runs.emplace_back(rig, cases[i], inputs[i]), alone.emplace_back(rig, cases[i], inputs[i]);
      tasks.push_back(runs[i].task());
      alone[i].one_after_the_other(*rig.stream);
    }
    latents(*rig.stream, tasks);
    for (size_t i = 0; i < 4; ++i) {
      report_difference(rig.name, first_difference(runs[i].result(), alone[i].result()));
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops
