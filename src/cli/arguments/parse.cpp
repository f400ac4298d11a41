// Reads the command line: every command with its options, in the order of the help.
#include <algorithm>
#include <cstdio>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "cli/arguments.h"
#include "cli/arguments/add_options.h"
#include "cli/commands.h"
#include "train/settings.h"

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
  commands.emplace_back(add_select(app, into.select), Command::select);
  commands.emplace_back(add_experts(app, into.experts), Command::experts);
  commands.emplace_back(add_key(app, into.key), Command::key);
  commands.emplace_back(add_diagnose(app, into.diagnose), Command::diagnose);
  commands.emplace_back(app.add_subcommand("doctor", "Show what this machine has and what will be used"), Command::doctor);
  commands.emplace_back(app.add_subcommand("version", "Print the versions of Cairn and libtorch"), Command::version);
  commands.emplace_back(
      app.add_subcommand("reference", "Print every recipe key: type, default, range, meaning (the page docs/reference/recipe.md)"),
      Command::reference);
  commands.emplace_back(add_completion(app, into.completion), Command::completion);
  commands.emplace_back(add_prove(app, into.prove), Command::prove);
  commands.emplace_back(add_bench(app, into.bench), Command::bench);
  commands.emplace_back(add_study(app, into.study), Command::study);
  commands.emplace_back(add_unlearn(app, into.unlearn), Command::unlearn);
  commands.emplace_back(add_prune(app, into.prune), Command::prune);
  commands.emplace_back(add_supernet(app, into.supernet), Command::supernet);
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

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

// The command below `app` of this name. The parser would only say that a command is missing.
const CLI::App& find_command(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = names_of_commands(app);
  if (std::find(names.begin(), names.end(), word) == names.end()) base::fail_unknown("command", word, names);
  return *app.get_subcommand(word);
}

// For the list of commands: words_of() turns it into --help.
void add_help(CLI::App& app) { app.add_subcommand("help", "Show what a command takes; without a name, all commands"); }

// The command that was being parsed, and how a user calls it.
std::pair<const CLI::App*, std::string> parsed_command(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string called = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    called += " " + command->get_name();
  }
  return {command, called};
}

// Full recipe keys whose last part is this word or, if there is none, the nearest one.
std::vector<std::string> recipe_keys_like(std::string word) {
  std::replace(word.begin(), word.end(), '-', '_');
  std::vector<std::pair<std::string, std::string>> keys;  // last part or alias, and the full key
  for (const base::Section& section : train::recipe_sections())
    for (const base::Entry& entry : section.entries) {
      keys.emplace_back(entry.key, section.name + "." + entry.key);
      for (const std::string& alias : entry.aliases) keys.emplace_back(alias, section.name + "." + entry.key);
    }
  const auto with = [&](const std::string& last) {
    std::vector<std::string> found;
    for (const auto& [part, full] : keys)
      if (part == last && std::find(found.begin(), found.end(), full) == found.end()) found.push_back(full);
    return found;
  };
  if (std::vector<std::string> found = with(word); !found.empty()) return found;
  std::vector<std::string> parts;
  for (const auto& [part, _] : keys) parts.push_back(part);
  const auto meant = base::nearest(word, parts);
  return meant ? with(*meant) : std::vector<std::string>{};
}

// What a mistyped option may have meant: an option of the command, or a recipe key that --set takes.
std::string advice_on_option(const CLI::App& command, const std::string& option, const std::string& called) {
  constexpr size_t kKeysShown = 3;
  const std::string word = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  std::vector<std::string> names;
  bool takes_keys = false;
  for (const CLI::Option* one : command.get_options())
    for (const std::string& name : one->get_lnames()) {
      names.push_back(name);
      takes_keys = takes_keys || name == "set";
    }
  const auto meant = base::nearest(word, names);
  const std::vector<std::string> keys = takes_keys ? recipe_keys_like(word) : std::vector<std::string>{};
  const auto last = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  const bool by_key = !keys.empty() && (!meant || base::edit_distance(word, last(keys[0])) < base::edit_distance(word, *meant));
  if (meant && !by_key) return fmt::format("did you mean --{}?", *meant);
  if (!by_key) return fmt::format("`{} --help` lists what there is", called);
  const size_t shown = std::min(keys.size(), kKeysShown);
  return fmt::format("did you mean --set {}=VALUE?",
                     fmt::join(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(shown), "=VALUE, "));
}

// Refuses the first option that the command does not have, with what it may have meant.
void refuse_unknown_option(const CLI::App& app, int argc, const char* const* argv) {
  const auto [command, called] = parsed_command(app);
  for (int i = 1; i < argc; ++i) {
    const std::string option = std::string(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (!option.starts_with("--") || option == "--" || command->get_option_no_throw(option) != nullptr) continue;
    base::fail_input("unknown option {} of `{}`: {}", option, called, advice_on_option(*command, option, called));
  }
}

// `cairn help COMMAND` is `cairn COMMAND --help`.
std::vector<std::string> words_of(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words[0] != "help" || std::find(words.begin(), words.end(), "--help") != words.end()) return words;
  words.erase(words.begin());
  const CLI::App* command = &app;
  for (const std::string& word : words) command = &find_command(*command, word);
  words.push_back("--help");
  return words;
}

void describe(CLI::App& app) {
  app.description("Cairn trains language models on whatever machines there are.");
  app.name("cairn");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help on every command");
  app.footer(
      "Run `cairn COMMAND --help` for what a command takes, and `cairn reference` for every recipe key.\n"
      "Exit codes: 0 done, 1 measured and not as claimed (replay, prove, bench) or does not fit (--dry-run),\n"
      "2 wrong recipe, arguments or files, 3 failed run, 4 lost peer.");
  app.set_version_flag(
      "--version", [] { return version_text(); }, "Print the versions of Cairn and libtorch");
}

}  // namespace

std::vector<CommandSpec> command_specs() {
  CLI::App app;
  describe(app);
  Arguments ignored;
  add_commands(app, ignored);
  add_help(app);
  std::vector<CommandSpec> all;
  append_specs(app, "", all);
  return all;
}

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  CLI::App app;
  describe(app);
  Arguments arguments;
  const Commands commands = add_commands(app, arguments);
  add_help(app);
  std::vector<std::string> words = words_of(app, argc, argv);
  if (!words.empty() && !words[0].starts_with("-")) find_command(app, words[0]);
  try {
    std::reverse(words.begin(), words.end());  // as the parser takes them
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) refuse_unknown_option(app, argc, argv);
    if (error.get_exit_code() != 0) base::fail_input("{} (`{} --help` lists what there is)", error.what(), parsed_command(app).second);
    app.exit(error);
    return std::nullopt;
  }
  for (const auto& [command, name] : commands)
    if (command->parsed()) arguments.command = name;
  return arguments;
}

}  // namespace cairn::cli
