// `deepinfer logits`: the raw numbers, for comparing with other implementations.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "deepinfer/common.h"
#include "model/transformer.h"

namespace deepinfer::app {
namespace {

struct Flags {
  ModelFlags model;
  std::vector<int32_t> tokens;
  std::vector<int32_t> decode;
  int64_t chunk_tokens = 512;
};

void print_row(std::span<const float> row, bool first) {
  std::string text = first ? "[" : ", [";
  for (size_t i = 0; i < row.size(); ++i) fmt::format_to(std::back_inserter(text), "{}{:.9g}", i ? ", " : "", row[i]);
  text += "]";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

Status check_tokens(const std::vector<int32_t>& tokens, const ModelConfig& config) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return invalid_input("token id {}: the model's ids are 0 to {}", token, config.vocab_size - 1);
    }
  }
  return Status();
}

Status logits(const Flags& flags) {
  DI_ASSIGN_OR_RETURN(RunningModel running, open_model(flags.model));
  Model& model = running.model();
  DI_RETURN_IF_ERROR(check_tokens(flags.tokens, model.config()));
  DI_RETURN_IF_ERROR(check_tokens(flags.decode, model.config()));
  const size_t total = flags.tokens.size() + flags.decode.size();
  if (static_cast<int64_t>(total) > model.config().max_position_embeddings) {
    return invalid_input("{} tokens: the model's context is {}", total, model.config().max_position_embeddings);
  }
  // All rows first, so that an error prints no half result.
  std::vector<std::vector<float>> rows;
  SequenceState state = model.make_sequence();
  const auto run = [&](std::span<const int32_t> tokens, bool wants_logits) -> Status {
    std::vector<float> row;
    const SequenceStep step{&state, tokens, wants_logits ? LogitRows::kLast : LogitRows::kNone};
    DI_RETURN_IF_ERROR(model.forward({&step, 1}, row));
    if (wants_logits) rows.push_back(std::move(row));
    return Status();
  };
  const std::span<const int32_t> prompt(flags.tokens);
  for (size_t begin = 0; begin < prompt.size(); begin += flags.chunk_tokens) {
    const size_t count = std::min<size_t>(flags.chunk_tokens, prompt.size() - begin);
    DI_RETURN_IF_ERROR(run(prompt.subspan(begin, count), begin + count == prompt.size()));
  }
  for (size_t i = 0; i < flags.decode.size(); ++i) {
    DI_RETURN_IF_ERROR(run(std::span(flags.decode).subspan(i, 1), true));
  }
  std::printf("{\"logits\": [");
  for (size_t i = 0; i < rows.size(); ++i) print_row(rows[i], i == 0);
  std::printf("]}\n");
  return Status();
}

}  // namespace

Command add_logits(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("logits", "Print the logits after given token ids, as JSON");
  add_token_ids(*command, "--tokens", flags->tokens, "Token ids, separated by commas")->required();
  add_token_ids(*command, "--decode", flags->decode, "Further ids, run one at a time; a row of logits after each");
  command
      ->add_option("--chunk-tokens", flags->chunk_tokens, "Tokens of --tokens a step; the result does not depend on it")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  add_model_flags(*command, flags->model);
  return [flags] {
    const Status status = logits(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
