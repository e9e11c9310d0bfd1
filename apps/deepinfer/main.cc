// deepinfer: runs DeepSeek-V4.1-Flash checkpoints. One file a command.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "deepinfer/common.h"

namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  deepinfer generate -m models/tiny -p 'Once upon a time'\n"
    "  deepinfer chat -m models/tiny\n"
    "  deepinfer inspect /data/DeepSeek-V4.1-Flash\n"
    "`deepinfer COMMAND --help` lists the options of a command, `deepinfer settings` those of the\n"
    "engine, each of which is a flag too: --max-num-seqs 8. DEEPINFER_MODEL names a default model.";

int run(int argc, char** argv) {
  using namespace deepinfer::app;
  CLI::App program("Runs DeepSeek-V4.1-Flash checkpoints: the same request gives the same bytes, always.", "deepinfer");
  program.require_subcommand(1);
  program.footer(kExamples);
  program.set_help_all_flag("--help-all", "Help of all commands");
  std::vector<std::pair<CLI::App*, Command>> commands;
  for (auto* add :
       {add_generate, add_chat, add_score, add_tokenize, add_logits, add_inspect, add_settings, add_bench}) {
    Command command = add(program);
    commands.emplace_back(program.get_subcommands([](CLI::App*) { return true; }).back(), std::move(command));
  }
  if (argc == 1) {
    std::printf("%s", program.help().c_str());
    return kExitBadInput;
  }
  // Before parsing, since the library would only say that a command is missing.
  if (argv[1][0] != '-' &&
      std::none_of(commands.begin(), commands.end(), [&](const auto& c) { return c.first->get_name() == argv[1]; })) {
    std::string names;
    for (const auto& [app, command] : commands) names += " " + app->get_name();
    std::fprintf(stderr, "deepinfer: unknown command '%s'; there are:%s\n", argv[1], names.c_str());
    return kExitBadInput;
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return program.exit(help);
  } catch (const CLI::ParseError& error) {
    const std::string of = program.get_subcommands().empty() ? "" : " " + program.get_subcommands().front()->get_name();
    std::fprintf(stderr, "deepinfer: %s\ndeepinfer%s --help lists what there is\n", error.what(), of.c_str());
    return kExitBadInput;
  }
  for (const auto& [app, command] : commands) {
    if (app->parsed()) return command();
  }
  return kExitBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "deepinfer: out of memory; `deepinfer inspect MODEL` tells what a model needs\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deepinfer: %s\n", error.what());
  }
  return deepinfer::app::kExitBadInput;
}
