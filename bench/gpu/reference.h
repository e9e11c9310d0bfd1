// Slow and plain: what a few outputs of a few random rows should be, from the raw weights, in double.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/card.h"
#include "ops/linear.h"
#include "ops/row_table.h"

namespace deepinfer::bench {

// Rows [first, first + count) of a matrix as numbers, row-major. `first` and `count` multiples of 32.
std::vector<float> decoded_rows(Card& card, const ops::WeightSource& source, int64_t first, int64_t count);

// A row of an activation as numbers.
std::vector<float> row_of(Card& card, ConstTensorView view, int64_t row);

// A row of a cache that a token sees, as numbers.
std::vector<float> cached_row(Card& card, const ops::RowTables& tables, int64_t token, int64_t row);

double dot(const float* a, const float* b, int64_t count);

// Quantised and back, in groups of 32, as ops::FakeQuant::kE4m3Group32.
void quantise(std::vector<float>& values);

// Collects what was got and expected, and says "ok" with the relative error, or "WRONG".
class Check {
 public:
  explicit Check(double tolerance) : tolerance_(tolerance) {}
  void add(double got, double want) {
    difference_ += (got - want) * (got - want);
    size_ += want * want;
    ++count_;
  }
  bool is_empty() const { return count_ == 0; }
  std::string text() const;

 private:
  double tolerance_;
  double difference_ = 0, size_ = 0;
  int64_t count_ = 0;
};

}  // namespace deepinfer::bench
