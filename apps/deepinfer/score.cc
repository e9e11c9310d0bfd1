// `deepinfer score`: how probable the model finds a text.
#include <cmath>
#include <cstdio>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "deepinfer/common.h"
#include "model/transformer.h"
#include "sampling/logprobs.h"

namespace deepinfer::app {
namespace {

struct Flags {
  ModelFlags model;
  std::string file;
  int64_t context = 0;
  int64_t chunk_tokens = 256;
  int64_t max_documents = 0;
  bool jsonl = false;
  bool json = false;
  bool control_tokens = false;
};

struct Total {
  double logprob = 0;  // natural logarithm, summed over scored tokens
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t documents = 0;
};

// Scores one text and adds it to `total`. A text longer than the context is cut into pieces that do not see each other;
// each piece starts with the begin-of-sentence token.
class Scorer {
 public:
  Scorer(const Flags& flags, RunningModel& running, const Tokenizer& tokenizer)
      : flags_(flags), model_(running.model()), tokenizer_(tokenizer) {
    const int64_t most = model_.config().max_position_embeddings;
    context_ = flags.context > 0 ? std::min(flags.context, most) : most;
  }

  Status add(const std::string& text) {
    const std::vector<int32_t> ids = flags_.control_tokens ? tokenizer_.encode(text) : tokenizer_.encode_ordinary(text);
    const int64_t piece = std::max<int64_t>(1, context_ - 1);
    for (int64_t begin = 0; begin < static_cast<int64_t>(ids.size()); begin += piece) {
      const int64_t end = std::min<int64_t>(ids.size(), begin + piece);
      DI_RETURN_IF_ERROR(add_piece(std::span(ids).subspan(begin, end - begin)));
    }
    total_.bytes += static_cast<int64_t>(text.size());
    ++total_.documents;
    return Status();
  }

  const Total& total() const { return total_; }
  const nlohmann::ordered_json& tokens() const { return tokens_; }

 private:
  Status add_piece(std::span<const int32_t> ids) {
    // Token i is predicted from what stands before it; the last token predicts nothing here.
    std::vector<int32_t> input = {static_cast<int32_t>(std::max<int64_t>(0, model_.config().bos_token_id))};
    input.insert(input.end(), ids.begin(), ids.end() - 1);
    SequenceState state = model_.make_sequence();
    const int64_t vocab = model_.config().vocab_size;
    for (size_t begin = 0; begin < input.size(); begin += flags_.chunk_tokens) {
      const size_t count = std::min<size_t>(flags_.chunk_tokens, input.size() - begin);
      const SequenceStep step{&state, std::span(input).subspan(begin, count), LogitRows::kAll};
      DI_RETURN_IF_ERROR(model_.forward({&step, 1}, logits_));
      for (size_t i = 0; i < count; ++i) {
        const double value = logprob(std::span<const float>(logits_).subspan(i * vocab, vocab), ids[begin + i]);
        total_.logprob += value;
        ++total_.tokens;
        if (flags_.json) tokens_.push_back({{"id", ids[begin + i]}, {"logprob", value}});
      }
    }
    return Status();
  }

  const Flags& flags_;
  Model& model_;
  const Tokenizer& tokenizer_;
  int64_t context_ = 0;
  std::vector<float> logits_;
  Total total_;
  nlohmann::ordered_json tokens_ = nlohmann::ordered_json::array();
};

Status add_lines(const std::string& text, const Flags& flags, Scorer& scorer) {
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("text") || !record["text"].is_string()) {
      return invalid_input("{}: line {}: not a JSON object with a string \"text\"", flags.file, number);
    }
    DI_RETURN_IF_ERROR(scorer.add(record["text"].get<std::string>()));
    if (flags.max_documents > 0 && scorer.total().documents >= flags.max_documents) break;
  }
  return Status();
}

Status score(const Flags& flags) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_text(flags.file));
  DI_ASSIGN_OR_RETURN(RunningModel running, open_model(flags.model));
  DI_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, tokenizer_of(running));
  Scorer scorer(flags, running, *tokenizer);
  DI_RETURN_IF_ERROR(flags.jsonl ? add_lines(text, flags, scorer) : scorer.add(text));
  const Total& total = scorer.total();
  if (total.tokens == 0) return invalid_input("{} holds no text to score", flags.file);
  const double mean = -total.logprob / total.tokens;
  const double bits_per_byte = -total.logprob / std::log(2.0) / total.bytes;
  if (flags.json) {
    nlohmann::ordered_json out;
    out["documents"] = total.documents;
    out["num_tokens"] = total.tokens;
    out["bytes"] = total.bytes;
    out["logprob"] = total.logprob;
    out["perplexity"] = std::exp(mean);
    out["bits_per_byte"] = bits_per_byte;
    out["numerics"] = name_of(running.model().numerics());
    out["tokens"] = scorer.tokens();
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf(
        "documents      %lld\ntokens         %lld\nbytes          %lld\nnats a token   %.6f\nperplexity     %.4f\nbits "
        "a byte    %.6f\n",
        static_cast<long long>(total.documents), static_cast<long long>(total.tokens),
        static_cast<long long>(total.bytes), mean, std::exp(mean), bits_per_byte);
  }
  return Status();
}

}  // namespace

Command add_score(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("score", "Log-probabilities and perplexity of a text");
  command->add_option("file", flags->file, "A text file, - for standard input")->required();
  command->add_flag("--jsonl", flags->jsonl, "The file holds a JSON object a line; score each \"text\" on its own");
  command->add_option("--max-documents", flags->max_documents, "With --jsonl, stop after this many; 0 for all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  command->add_option("--context", flags->context, "Cut texts into pieces of this many tokens [the model's context]")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40));
  command->add_option("--chunk-tokens", flags->chunk_tokens, "Tokens a step; changes speed, never the result")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_flag("--control-tokens", flags->control_tokens,
                    "Read the spelling of control tokens in the text as such");
  command->add_flag("--json", flags->json, "Print JSON with every token's id and log-probability");
  add_model_flags(*command, flags->model);
  return [flags] {
    const Status status = score(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
