// generation_config.json: the checkpoint's suggestions for sampling. Every field is optional; a request overrides them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct GenerationConfig {
  std::optional<double> temperature;   // 0 to 100
  std::optional<double> top_p;         // 0 to 1
  std::optional<int64_t> top_k;        // 0: no limit
  std::optional<bool> do_sample;       // false: greedy
  std::vector<int64_t> eos_token_ids;  // empty: not given; config.json has a say as well

  static Result<GenerationConfig> from_json(std::string_view file_name, std::string_view text);
  // The file of a model folder; all fields absent if there is no such file.
  static Result<GenerationConfig> from_folder(const std::string& folder);
};

}  // namespace deepinfer
