// `deepinfer chat`: a conversation in the terminal.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "deepinfer/common.h"
#include "runtime/session.h"
#include "sampling/validate.h"
#include "text/chat_encoding.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"

namespace deepinfer::app {
namespace {

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
  bool thinking = false;
  int effort = 75;
  int64_t max_tokens = 1024;
};

constexpr char kHelp[] =
    "/clear forgets the conversation, /think switches thinking, /exit or Ctrl-D leaves.\n"
    "Ctrl-C stops the answer.\n";

enum class Input { kLine, kEnd, kInterrupted };

// One line of standard input without its end.
Input read_line(std::string& line) {
  char* buffer = nullptr;
  size_t capacity = 0;
  errno = 0;
  const ssize_t length = ::getline(&buffer, &capacity, stdin);
  const bool was_interrupted = length < 0 && errno == EINTR;
  if (length >= 0) line.assign(buffer, length);
  std::free(buffer);
  if (was_interrupted) {
    std::clearerr(stdin);
    return Input::kInterrupted;
  }
  if (length < 0) return Input::kEnd;
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return Input::kLine;
}

ChatMessage text_message(Role role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content.push_back({ContentPart::Kind::kText, std::move(text)});
  return message;
}

// Writes an answer as it streams: reasoning dimmed, tool calls named.
class AnswerPrinter {
 public:
  void print(const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      switch (delta.kind) {
        case OutputDelta::Kind::kReasoning:
          set_dim(true);
          reasoning += delta.text;
          write(delta.text);
          break;
        case OutputDelta::Kind::kContent:
          set_dim(false);
          content += delta.text;
          write(delta.text);
          break;
        case OutputDelta::Kind::kCallBegin:
          set_dim(true);
          write("\n[calls " + delta.call_name + "(");
          break;
        case OutputDelta::Kind::kCallArguments:
          write(delta.text);
          break;
        case OutputDelta::Kind::kCallEnd:
          write(")]");
          break;
      }
    }
    std::fflush(stdout);
  }
  void finish() {
    set_dim(false);
    write("\n");
    std::fflush(stdout);
  }

  std::string reasoning;
  std::string content;

 private:
  static void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
  void set_dim(bool dim) {
    if (dim == is_dim_) return;
    if (is_terminal_) write(dim ? "\033[2m" : "\033[0m");
    if (!dim && !reasoning.empty()) write("\n\n");
    is_dim_ = dim;
  }

  const bool is_terminal_ = isatty(STDOUT_FILENO) != 0;
  bool is_dim_ = false;
};

class Conversation {
 public:
  Conversation(const Flags& flags, RunningModel& running, const Tokenizer& tokenizer)
      : flags_(flags), running_(running), tokenizer_(tokenizer), session_(running.model()) {
    request_.is_thinking = flags.thinking;
    request_.reasoning_effort = flags.effort;
    clear();
  }

  void clear() {
    request_.messages.clear();
    if (!flags_.system.empty()) request_.messages.push_back(text_message(Role::kSystem, flags_.system));
  }
  bool toggle_thinking() { return request_.is_thinking = !request_.is_thinking; }

  Status answer(std::string text) {
    request_.messages.push_back(text_message(Role::kUser, std::move(text)));
    Status status = answer_last();
    if (!status.ok()) request_.messages.pop_back();  // the conversation goes on without it
    return status;
  }

 private:
  Status answer_last() {
    DI_ASSIGN_OR_RETURN(const EncodedPrompt prompt, encode_chat(tokenizer_, request_));
    GenerationOptions options;
    options.sampling = sampling_params(flags_.sampling, running_.loaded.generation, flags_.max_tokens);
    options.seed = *options.sampling.seq_seed;
    options.stop_tokens = running_.loaded.stop_tokens;
    options.cancel = &interrupted();
    Detokenizer detokenizer(tokenizer_);
    OutputParser parser({.is_thinking = request_.is_thinking});
    AnswerPrinter printer;
    std::vector<OutputDelta> deltas;
    interrupted() = false;
    DI_ASSIGN_OR_RETURN(const GenerationResult result, session_.generate(prompt.ids, options, [&](int32_t token) {
      deltas.clear();
      parser.push(detokenizer.push(token), deltas);
      printer.print(deltas);
    }));
    interrupted() = false;
    deltas.clear();
    parser.push(detokenizer.finish(), deltas);
    parser.finish(deltas);
    printer.print(deltas);
    printer.finish();
    if (isatty(STDERR_FILENO)) {
      std::fprintf(stderr, "\033[2m%s%s\033[0m\n", result.reason == FinishReason::kAborted ? "stopped. " : "",
                   speed_line(result.num_prompt_tokens - result.num_cached_tokens, result.prompt_seconds,
                              static_cast<int64_t>(result.tokens.size()), result.decode_seconds)
                       .c_str());
    }
    ChatMessage message = text_message(Role::kAssistant, printer.content);
    message.reasoning_content = printer.reasoning;
    request_.messages.push_back(std::move(message));
    return Status();
  }

  const Flags& flags_;
  RunningModel& running_;
  const Tokenizer& tokenizer_;
  Session session_;
  ChatRequest request_;
};

Status chat(const Flags& flags) {
  DI_ASSIGN_OR_RETURN(RunningModel running, open_model(flags.model));
  DI_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, tokenizer_of(running));
  DI_RETURN_IF_ERROR(validate(sampling_params(flags.sampling, running.loaded.generation, flags.max_tokens),
                              running.model().config().vocab_size));
  Conversation conversation(flags, running, *tokenizer);
  catch_interrupts();
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  if (is_terminal) std::printf("%s\n%s", running.device->description().c_str(), kHelp);
  while (true) {
    if (is_terminal) std::printf("\n> ");
    std::fflush(stdout);
    std::string line;
    const Input input = read_line(line);
    if (input == Input::kEnd) break;
    if (input == Input::kInterrupted) {
      interrupted() = false;
      std::printf("\n(Ctrl-D leaves)");
      continue;
    }
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (line == "/exit" || line == "/quit") break;
    if (line == "/clear") {
      conversation.clear();
      std::printf("(a new conversation)\n");
    } else if (line == "/think") {
      std::printf("(thinking %s)\n", conversation.toggle_thinking() ? "on" : "off");
    } else if (line == "/help") {
      std::printf("%s", kHelp);
    } else if (Status status = conversation.answer(line); !status.ok()) {
      fail(status);
      if (!is_terminal) return status;
    }
  }
  if (is_terminal) std::printf("\n");
  return Status();
}

}  // namespace

Command add_chat(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("chat", "Talk to a model in the terminal");
  command->add_option("-s,--system", flags->system, "System message");
  command->add_flag("--thinking", flags->thinking, "Let the model reason before it answers");
  command->add_option("--effort", flags->effort, "Reasoning effort")->check(CLI::Range(1, 100))->capture_default_str();
  command->add_option("-n,--max-tokens", flags->max_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  add_sampling_flags(*command, flags->sampling);
  add_model_flags(*command, flags->model);
  return [flags] {
    const Status status = chat(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
