// Golden cases of tests/golden/ops: lists of objects with a name, numbers, matrices and ragged lists. Compiled once,
// since the JSON library is slow to compile; tests see plain vectors only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace deepinfer {

class GoldenCase {
 public:
  struct Values;
  explicit GoldenCase(std::shared_ptr<const Values> values) : values_(std::move(values)) {}

  std::string name() const;
  bool has(const char* key) const;  // present and not null
  double number(const char* key) const;
  int64_t integer(const char* key) const;
  int64_t rows(const char* key) const;  // length of the outer list
  // Nested lists flattened, in order. Floats are parsed as doubles that are exact floats in the file.
  std::vector<double> doubles(const char* key) const;
  std::vector<float> floats(const char* key) const;
  std::vector<int32_t> integers(const char* key) const;
  std::vector<std::vector<int32_t>> lists(const char* key) const;

 private:
  std::shared_ptr<const Values> values_;
};

// All cases of tests/golden/ops/<name>.json; throws if it is not there, which fails the test.
std::vector<GoldenCase> read_golden_cases(const std::string& name);

}  // namespace deepinfer
