#include "checkpoint/generation_config.h"

#include <limits>

#include "checkpoint/json_fields.h"
#include "checkpoint/mapped_file.h"

namespace deepinfer {

Result<GenerationConfig> GenerationConfig::from_json(std::string_view file_name, std::string_view text) {
  DI_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(file_name, text));
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  GenerationConfig config;
  if (fields.has({"temperature"})) fields.read({"temperature"}, &config.temperature.emplace(), RealRange{0, 100});
  if (fields.has({"top_p"})) fields.read({"top_p"}, &config.top_p.emplace(), RealRange{0, 1});
  if (fields.has({"top_k"})) fields.read({"top_k"}, &config.top_k.emplace(), IntRange{0, kMaxInt32});
  if (fields.has({"do_sample"})) fields.read_if_present({"do_sample"}, &config.do_sample.emplace());
  fields.read_one_or_more_if_present({"eos_token_id"}, &config.eos_token_ids, {0, kMaxInt32}, 64);
  DI_RETURN_IF_ERROR(fields.take_status());
  return config;
}

Result<GenerationConfig> GenerationConfig::from_folder(const std::string& folder) {
  const std::string path = folder + "/generation_config.json";
  auto file = MappedFile::open(path);
  if (!file.ok() && file.status().code() == ErrorCode::kNotFound) return GenerationConfig();
  if (!file.ok()) return std::move(file).status();
  return from_json(path, file->text());
}

}  // namespace deepinfer
