// The small checkpoints of tests/golden/model, loaded on the CPU or on a device of the test's.
#pragma once

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/token_map.h"
#include "model/transformer.h"

namespace deepinfer {

// The folder of tests: this one, or TESTS_FOLDER where a test runs on another machine than it was built on.
inline std::string tests_folder() {
  const char* moved = std::getenv("TESTS_FOLDER");
  return moved != nullptr ? moved : DEEPINFER_TESTS_DIR;
}

// "tiny" is the model that the repository ships.
inline std::string golden_folder(const std::string& name) {
  return tests_folder() + (name == "tiny" ? "/../models/tiny" : "/golden/model/" + name);
}

inline std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

class GoldenModel {
 public:
  GoldenModel(const std::string& name, Numerics numerics, const std::string& kernels = "auto", int threads = 2,
              KvFormat kv_format = KvFormat::kBf16)
      : GoldenModel(name, numerics, make_cpu_device({.num_threads = threads, .kernels = kernels}).value(), kv_format) {}
  GoldenModel(const std::string& name, Numerics numerics, std::unique_ptr<Device> device,
              KvFormat kv_format = KvFormat::kBf16)
      : device_(std::move(device)) {
    Checkpoint checkpoint = Checkpoint::open(golden_folder(name)).value();
    ModelConfig config = ModelConfig::from_file(golden_folder(name) + "/config.json").value();
    std::vector<int32_t> map;
    if (config.engram.enabled()) {
      map = read_token_map(golden_folder(name), config.vocab_size, config.engram.compressed_vocab_size).value();
    }
    auto loaded = Model::load(*device_, std::move(checkpoint), std::move(config), std::move(map),
                              {.numerics = numerics, .kv_format = kv_format});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(loaded).value();
  }
  Model& operator*() { return *model_; }
  Model* operator->() { return model_.get(); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
};

}  // namespace deepinfer
