// Reads the command line: every command with its options, in the order of the help.
#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "cli/arguments.h"
#include "cli/arguments/add_options.h"

namespace cairn::cli {
namespace {

CLI::App* add_completion(CLI::App& app, CompletionArguments& a) {
  CLI::App* command = app.add_subcommand("completion", "Print a script that lets a shell complete commands, options and recipe keys");
  command->add_option("shell", a.shell, "For which shell")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "bash: . <(cairn completion bash), in ~/.bashrc; zsh: cairn completion zsh > a folder of $fpath/_cairn;\n"
      "fish: cairn completion fish > ~/.config/fish/completions/cairn.fish");
  return command;
}

using Commands = std::vector<std::pair<const CLI::App*, Command>>;

// Every command, in the order of the help.
Commands add_commands(CLI::App& app, Arguments& into) {
  Commands commands;
  commands.emplace_back(add_train(app, into.train), Command::train);
  commands.emplace_back(add_generate(app, into.generate), Command::generate);
  commands.emplace_back(add_chat(app, into.chat), Command::chat);
  commands.emplace_back(add_eval(app, into.eval), Command::eval);
  commands.emplace_back(add_replay(app, into.replay), Command::replay);
  commands.emplace_back(add_tokenize(app, into.tokenize), Command::tokenize);
  commands.emplace_back(add_snapshot(app, into.snapshot), Command::snapshot);
  commands.emplace_back(add_plan(app, into.plan), Command::plan);
  commands.emplace_back(add_schedule(app, into.schedule), Command::schedule);
  commands.emplace_back(add_verify(app, into.verify), Command::verify);
  commands.emplace_back(add_logits(app, into.logits), Command::logits);
  commands.emplace_back(add_data(app, into.data), Command::data);
  commands.emplace_back(add_key(app, into.key), Command::key);
  commands.emplace_back(app.add_subcommand("doctor", "Show what this machine has and what will be used"), Command::doctor);
  commands.emplace_back(app.add_subcommand("version", "Print the versions of Cairn and libtorch"), Command::version);
  commands.emplace_back(
      app.add_subcommand("reference", "Print every recipe key: type, default, range, meaning (the page docs/reference/recipe.md)"),
      Command::reference);
  commands.emplace_back(add_completion(app, into.completion), Command::completion);
  commands.emplace_back(add_prove(app, into.prove), Command::prove);
  commands.emplace_back(add_bench(app, into.bench), Command::bench);
  commands.emplace_back(add_study(app, into.study), Command::study);
  commands.emplace_back(add_example(app, into.example), Command::example);
  return commands;
}

// What a check shows of the words it allows: "TEXT:{cpu,cuda}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string shown = option.get_type_name();
  const size_t begin = shown.find('{'), end = shown.find('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  for (const std::string& word : CLI::detail::split(shown.substr(begin + 1, end - begin - 1), ',')) choices.push_back(word);
  return choices;
}

void append_specs(const CLI::App& app, const std::string& path, std::vector<CommandSpec>& into) {
  CommandSpec words{.path = path, .help = app.get_description(), .options = {}, .arguments = {}, .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      words.arguments.push_back({{option->get_name(true)}, option->get_description(), true, choices_of(*option)});
      continue;
    }
    OptionSpec one{{}, option->get_description(), option->get_items_expected_max() > 0, choices_of(*option)};
    for (const std::string& name : option->get_snames()) one.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) one.names.push_back("--" + name);
    words.options.push_back(std::move(one));
  }
  std::vector<const CLI::App*> shown;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    words.commands.push_back({command->get_name(), command->get_description()});
    shown.push_back(command);
  }
  into.push_back(std::move(words));
  for (const CLI::App* command : shown) append_specs(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), into);
}

// The parser would only say that a command is missing.
void check_command(const Commands& commands, const std::string& word) {
  if (word.starts_with("-")) return;
  std::vector<std::string> names;
  for (const auto& [command, _] : commands) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), word) == names.end()) base::fail_unknown("command", word, names);
}

void describe(CLI::App& app) {
  app.description("Cairn trains language models on whatever machines there are.");
  app.name("cairn");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help on every command");
  app.footer(
      "Run `cairn COMMAND --help` for what a command takes, and `cairn reference` for every recipe key.\n"
      "Exit codes: 0 done, 2 wrong recipe, arguments or files, 3 failed run, 4 lost peer.");
}

}  // namespace

std::vector<CommandSpec> command_specs() {
  CLI::App app;
  describe(app);
  Arguments ignored;
  add_commands(app, ignored);
  std::vector<CommandSpec> all;
  append_specs(app, "", all);
  return all;
}

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  CLI::App app;
  describe(app);
  Arguments arguments;
  const Commands commands = add_commands(app, arguments);
  if (argc > 1) check_command(commands, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) base::fail_input("{} (cairn --help lists what there is)", error.what());
    app.exit(error);
    return std::nullopt;
  }
  for (const auto& [command, name] : commands)
    if (command->parsed()) arguments.command = name;
  return arguments;
}

}  // namespace cairn::cli
