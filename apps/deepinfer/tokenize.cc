// `deepinfer tokenize`: text to ids and back.
#include <cstdio>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "deepinfer/common.h"
#include "text/detokenizer.h"

namespace deepinfer::app {
namespace {

struct Flags {
  std::string model;
  std::optional<std::string> text;
  std::string file;
  std::vector<int32_t> decode;
  bool control_tokens = false;
  bool pieces = false;
  bool count = false;
  bool json = false;
};

Status decode(const Flags& flags, const Tokenizer& tokenizer) {
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const int32_t id : flags.decode) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return invalid_input("token id {}: this tokenizer's ids are 0 to {}", id, tokenizer.vocab_size() - 1);
    }
    text += detokenizer.push(id);
  }
  text += detokenizer.finish();
  if (flags.json) text = nlohmann::json{{"text", text}}.dump();
  std::printf("%s\n", text.c_str());
  return Status();
}

Status tokenize(const Flags& flags) {
  const std::string path = std::filesystem::is_directory(flags.model) ? flags.model + "/tokenizer.json" : flags.model;
  DI_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(path));
  if (!flags.decode.empty()) return decode(flags, tokenizer);
  std::string text;
  if (flags.text) {
    text = *flags.text;
  } else {
    DI_ASSIGN_OR_RETURN(text, read_text(flags.file.empty() ? "-" : flags.file));
  }
  const std::vector<int32_t> ids = flags.control_tokens ? tokenizer.encode(text) : tokenizer.encode_ordinary(text);
  if (flags.count) {
    std::printf("%zu\n", ids.size());
  } else if (flags.json) {
    nlohmann::ordered_json out;
    out["tokens"] = ids;
    if (flags.pieces) {
      for (const int32_t id : ids) out["pieces"].push_back(tokenizer.token_spelling(id));
    }
    std::printf("%s\n", out.dump().c_str());
  } else if (flags.pieces) {
    for (const int32_t id : ids) std::printf("%7d  %s\n", id, tokenizer.token_spelling(id).c_str());
  } else {
    for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i ? " " : "", ids[i]);
    std::printf("\n");
  }
  return Status();
}

}  // namespace

Command add_tokenize(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("tokenize", "Turn text into token ids, or ids into text");
  command->add_option("-m,--model", flags->model, "A model's folder, or a tokenizer.json")
      ->envname("DEEPINFER_MODEL")
      ->required();
  auto* text = command->add_option("text", flags->text, "The text; without it, --file or standard input");
  command->add_option("-f,--file", flags->file, "Read the text from this file, - for standard input")->excludes(text);
  add_token_ids(*command, "--decode", flags->decode, "Token ids, separated by commas, to turn into text")
      ->excludes(text);
  command->add_flag("--control-tokens", flags->control_tokens,
                    "Read the spelling of control tokens in the text as such");
  command->add_flag("--pieces", flags->pieces, "Also the spelling of each token, in the tokenizer's byte alphabet");
  command->add_flag("--count", flags->count, "Only the number of tokens");
  command->add_flag("--json", flags->json, "Print JSON");
  return [flags] {
    const Status status = tokenize(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
