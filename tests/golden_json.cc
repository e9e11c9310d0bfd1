#include "golden_json.h"

#include <fstream>

#include <nlohmann/json.hpp>

namespace deepinfer {

struct GoldenCase::Values {
  nlohmann::json json;
};

namespace {

void flatten(const nlohmann::json& value, std::vector<double>& out) {
  if (value.is_array()) {
    for (const auto& element : value) flatten(element, out);
  } else {
    out.push_back(value.get<double>());
  }
}

template <typename T>
std::vector<T> converted(const std::vector<double>& values) {
  std::vector<T> out;
  for (const double value : values) out.push_back(static_cast<T>(value));
  return out;
}

}  // namespace

std::string GoldenCase::name() const { return values_->json.at("name"); }
bool GoldenCase::has(const char* key) const { return values_->json.contains(key) && !values_->json.at(key).is_null(); }
double GoldenCase::number(const char* key) const { return values_->json.at(key); }
int64_t GoldenCase::integer(const char* key) const { return values_->json.at(key); }
int64_t GoldenCase::rows(const char* key) const { return static_cast<int64_t>(values_->json.at(key).size()); }
std::vector<double> GoldenCase::doubles(const char* key) const {
  std::vector<double> out;
  flatten(values_->json.at(key), out);
  return out;
}
std::vector<float> GoldenCase::floats(const char* key) const { return converted<float>(doubles(key)); }
std::vector<int32_t> GoldenCase::integers(const char* key) const { return converted<int32_t>(doubles(key)); }
std::vector<std::vector<int32_t>> GoldenCase::lists(const char* key) const { return values_->json.at(key); }

std::vector<GoldenCase> read_golden_cases(const std::string& name) {
  std::ifstream file(std::string(DEEPINFER_TESTS_DIR) + "/golden/ops/" + name + ".json");
  std::vector<GoldenCase> cases;
  for (auto& record : nlohmann::json::parse(file)) {
    cases.emplace_back(std::make_shared<GoldenCase::Values>(GoldenCase::Values{std::move(record)}));
  }
  return cases;
}

}  // namespace deepinfer
