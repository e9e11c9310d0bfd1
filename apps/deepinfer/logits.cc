// `deepinfer logits`: the raw numbers, for comparing with other implementations.
#include <cstdio>
#include <memory>

#include "deepinfer/common.h"
#include "runtime/session.h"

namespace deepinfer::app {
namespace {

struct Flags {
  ModelFlags model;
  std::vector<int32_t> tokens;
  std::vector<int32_t> decode;
  int64_t chunk_tokens = Session::kDefaultChunkTokens;
};

void print_row(std::span<const float> row, bool first) {
  std::string text = first ? "[" : ", [";
  for (size_t i = 0; i < row.size(); ++i) fmt::format_to(std::back_inserter(text), "{}{:.9g}", i ? ", " : "", row[i]);
  text += "]";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

Status logits(const Flags& flags) {
  DI_ASSIGN_OR_RETURN(RunningModel running, open_model(flags.model));
  Session session(running.model(), flags.chunk_tokens);
  std::vector<int32_t> tokens = flags.tokens;
  // All rows first, so that a bad id prints no half result.
  std::vector<std::vector<float>> rows;
  for (size_t i = 0; i <= flags.decode.size(); ++i) {
    if (i > 0) tokens.push_back(flags.decode[i - 1]);
    DI_ASSIGN_OR_RETURN(const std::span<const float> row, session.process(tokens));
    rows.emplace_back(row.begin(), row.end());
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
  command->add_option("--tokens", flags->tokens, "Token ids, separated by commas")
      ->delimiter(',')
      ->check(check_token_id, "")
      ->required();
  command->add_option("--decode", flags->decode, "Further ids, run one at a time; a row of logits after each")
      ->delimiter(',')
      ->check(check_token_id, "");
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
