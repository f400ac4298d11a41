#include "cli/completion.h"

#include <algorithm>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/did_you_mean.h"

namespace cairn::cli {
namespace {

// `text` in single quotes, escaped for the shell.
std::string quoted(const std::string& text, const std::string& shell) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += shell == "fish" ? "\\'" : "'\\''";
    else if (c == '\\' && shell == "fish")
      out += "\\\\";
    else
      out += c == '\n' ? ' ' : c;
  }
  return out.append("'");
}

// The first clause of a help text, for menus that show help beside each word.
std::string brief(const std::string& help) {
  size_t end = help.size();
  for (const char* pause : {"\n", "; ", ". ", ": ", " ("}) end = std::min(end, help.find(pause));
  return help.substr(0, end);
}

std::string last_word(const std::string& path) { return path.substr(path.rfind(' ') + 1); }
std::string parent(const std::string& path) { return path.find(' ') == std::string::npos ? "" : path.substr(0, path.rfind(' ')); }

// "a|b|c": a pattern of the shell's case.
std::string alternatives(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, "|")); }

// Every step from a command to a subcommand, as "parent/name": "/train", "snapshot/export". The script uses them to find the current
// command.
std::vector<std::string> steps_of(const std::vector<CommandSpec>& commands) {
  std::vector<std::string> steps;
  for (const CommandSpec& command : commands)
    if (!command.path.empty()) steps.push_back(fmt::format("'{}/{}'", parent(command.path), last_word(command.path)));
  return steps;
}

std::vector<std::string> names_of(const std::vector<OptionSpec>& options) {
  std::vector<std::string> names;
  for (const OptionSpec& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// Whether the command's --set takes any recipe key; other commands take only data.*.
bool takes_every_key(const std::string& path) { return path == "train" || path == "plan"; }

// The call of a function of the script that completes an option's value or an argument.
std::string value_call(const std::string& path, const OptionSpec& option) {
  if (option.names.back() == "--set") return takes_every_key(path) ? "_cairn_keys ''" : "_cairn_keys data.";
  if (option.names.back() == "recipe") return "_cairn_recipes";
  return option.choices.empty() ? "_cairn_files" : fmt::format("_cairn_choices {}", fmt::join(option.choices, " "));
}

// Cases for every option that takes a value and for the rest of each command, the same in bash and zsh. `list` writes the words of a
// command.
template <typename List>
std::string cases(const std::vector<CommandSpec>& commands, const List& list) {
  std::string text = "  case \"$at:$before\" in\n";
  for (const CommandSpec& command : commands)
    for (const OptionSpec& option : command.options) {
      if (!option.takes_value) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back(fmt::format("'{}:{}'", command.path, name));
      text += fmt::format("    {}) {}; return ;;\n", alternatives(patterns), value_call(command.path, option));
    }
  text += "  esac\n  case \"$at\" in\n";
  for (const CommandSpec& command : commands) {
    text += fmt::format("    '{}')\n      if [[ $now == -* ]]; then\n{}      else\n", command.path, list(command, true));
    if (!command.commands.empty()) text += list(command, false);
    if (!command.arguments.empty()) text += fmt::format("        {}\n", value_call(command.path, command.arguments.front()));
    if (command.commands.empty() && command.arguments.empty()) text += "        :\n";
    text += "      fi ;;\n";
  }
  return text + "  esac\n";
}

std::string values_case(const std::vector<KeySpec>& keys) {
  std::string text;
  for (const KeySpec& key : keys)
    if (!key.values.empty()) text += fmt::format("    {}) values='{}' ;;\n", key.key, fmt::join(key.values, " "));
  return text;
}

std::string all_keys(const std::vector<KeySpec>& keys) {
  std::string text;
  for (const KeySpec& key : keys) text += (text.empty() ? "" : " ") + key.key;
  return text;
}

// Words are split at =, which bash counts among its breaks: they are put together again, and only what follows the last = is replaced.
std::string bash_script(const std::vector<CommandSpec>& commands, const std::vector<KeySpec>& keys) {
  std::string text = R"(# Completes `cairn` in bash: . <(cairn completion bash)
_cairn_add() {
  local word
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen "$@")
}
_cairn_choices() { _cairn_add -W "$*" -- "$now"; }
_cairn_files() {
  compopt -o filenames 2>/dev/null
  _cairn_add -f -- "$now"
}
_cairn_recipes() {
  compopt -o filenames 2>/dev/null
  _cairn_add -d -- "$now"
  _cairn_add -f -X '!*.toml' -- "$now"
}
_cairn_keys() {
  local key values= word
  if [[ $now != *=* ]]; then
    compopt -o nospace 2>/dev/null
    for word in $_cairn_all_keys; do
      if [[ $word == "$1"* && $word == "$now"* ]]; then COMPREPLY+=("$word="); fi
    done
    return
  fi
  key=${now%%=*} now=${now#*=}
  case $key in
)";
  text += values_case(keys);
  text += R"(  esac
  if [[ -n $values ]]; then _cairn_add -W "$values" -- "$now"; else _cairn_files; fi
  if [[ $COMP_WORDBREAKS != *=* ]]; then COMPREPLY=("${COMPREPLY[@]/#/$key=}"); fi
}
)";
  text += fmt::format("_cairn_all_keys='{}'\n", all_keys(keys));
  text += R"(_cairn() {
  local -a words=()
  local i word now before at=
  COMPREPLY=()
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if ((${#words[@]} > 1)) && [[ $word == =* || ${words[${#words[@]} - 1]} == *= ]]; then
      words[${#words[@]} - 1]+=$word
    else
      words+=("$word")
    fi
  done
  now=${words[${#words[@]} - 1]}
  before=${words[${#words[@]} - 2]}
  if [[ $now == --*=* ]]; then before=${now%%=*} now=${now#*=}; fi
  for word in "${words[@]:1:${#words[@]} - 2}"; do
    case "$at/$word" in
)";
  text += fmt::format("      {}) at=${{at:+$at }}$word ;;\n    esac\n  done\n", alternatives(steps_of(commands)));
  text += cases(commands, [](const CommandSpec& command, bool options) {
    std::vector<std::string> words = names_of(command.options);
    if (!options) {
      words.clear();
      for (const SubcommandSpec& one : command.commands) words.push_back(one.name);
    }
    return fmt::format("        _cairn_choices {}\n", fmt::join(words, " "));
  });
  return text + "}\ncomplete -F _cairn cairn\n";
}

// "name:help" for _describe, whose separator is a colon.
std::string described(const std::string& name, const std::string& help) {
  std::string escaped;
  for (const char c : name) escaped += c == ':' ? std::string("\\:") : std::string(1, c);
  return quoted(escaped + ":" + brief(help), "zsh");
}

std::string zsh_script(const std::vector<CommandSpec>& commands, const std::vector<KeySpec>& keys) {
  std::string text = R"(#compdef cairn
# Completes `cairn` in zsh: put this into a folder of $fpath as _cairn, or: source <(cairn completion zsh)
_cairn_choices() { compadd -- "$@" }
_cairn_files() { _files }
_cairn_recipes() { _files -g '*.toml' }
_cairn_keys() {
  local key values=
  if [[ $now != *=* ]]; then
    compadd -S '=' -- ${(M)${=_cairn_all_keys}:#$1*}
    return
  fi
  key=${now%%=*}
  case $key in
)";
  text += values_case(keys);
  text += R"(  esac
  compset -P '*='
  if [[ -n $values ]]; then compadd -- ${=values}; else _files; fi
}
)";
  text += fmt::format("_cairn_all_keys='{}'\n", all_keys(keys));
  text += R"(_cairn() {
  local -a found
  local word now=$words[CURRENT] before=$words[CURRENT-1] at=
  if [[ $now == --*=* ]]; then
    before=${now%%=*} now=${now#*=}
    compset -P 1 '*='
  fi
  for word in ${words[2,CURRENT-1]}; do
    case "$at/$word" in
)";
  text += fmt::format("      {}) at=${{at:+$at }}$word ;;\n    esac\n  done\n", alternatives(steps_of(commands)));
  text += cases(commands, [](const CommandSpec& command, bool options) {
    std::string list;
    if (options) {
      for (const OptionSpec& option : command.options)
        for (const std::string& name : option.names) list += " " + described(name, option.help);
    } else {
      for (const SubcommandSpec& one : command.commands) list += " " + described(one.name, one.help);
    }
    return fmt::format("        found=({})\n        _describe {} found\n", list, options ? "option" : "command");
  });
  return text + "}\nif [[ $funcstack[1] == _cairn ]]; then _cairn \"$@\"; else compdef _cairn cairn; fi\n";
}

// What fish takes as the words of an option's value.
std::string fish_value(const std::string& path, const OptionSpec& option) {
  if (option.names.back() == "--set") return fmt::format(" -x -a '(__cairn_keys {})'", takes_every_key(path) ? "\"\"" : "data.");
  if (option.names.back() == "recipe") return " -k -a '(__fish_complete_suffix .toml)'";
  return option.choices.empty() ? " -r -F" : fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
}

std::string fish_script(const std::vector<CommandSpec>& commands, const std::vector<KeySpec>& keys) {
  std::string text = R"(# Completes `cairn` in fish: cairn completion fish > ~/.config/fish/completions/cairn.fish
function __cairn_at
    set -l at ""
    for word in (commandline -opc)[2..-1]
        switch "$at/$word"
)";
  text += fmt::format("            case {}\n", fmt::join(steps_of(commands), " "));
  text += R"(                set at (string trim -- "$at $word")
        end
    end
    test "$at" = "$argv[1]"
end
function __cairn_keys
    string match -- "$argv[1]*" \
)";
  for (const KeySpec& key : keys) {
    if (key.values.empty()) text += fmt::format("        {}\\t{} \\\n", quoted(key.key + "=", "fish"), quoted(brief(key.help), "fish"));
    for (const std::string& value : key.values)
      text += fmt::format("        {}\\t{} \\\n", quoted(fmt::format("{}={}", key.key, value), "fish"), quoted(brief(key.help), "fish"));
  }
  text += "        2>/dev/null\nend\ncomplete -c cairn -f\n";
  for (const CommandSpec& command : commands) {
    const std::string here = fmt::format("complete -c cairn -n '__cairn_at \"{}\"'", command.path);
    for (const SubcommandSpec& one : command.commands)
      text += fmt::format("{} -a {} -d {}\n", here, one.name, quoted(brief(one.help), "fish"));
    for (const OptionSpec& option : command.options) {
      std::string names;
      for (const std::string& name : option.names) names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      text += fmt::format("{}{}{} -d {}\n", here, names, option.takes_value ? fish_value(command.path, option) : "",
                          quoted(brief(option.help), "fish"));
    }
    if (!command.arguments.empty()) {
      const OptionSpec& first = command.arguments.front();
      text +=
          here + (first.choices.empty() && first.names.back() != "recipe" ? std::string(" -F") : fish_value(command.path, first)) + "\n";
    }
  }
  return text;
}

}  // namespace

std::vector<KeySpec> key_specs(const std::vector<base::Section>& sections) {
  std::vector<KeySpec> keys;
  for (const base::Section& section : sections)
    for (const base::Entry& entry : section.entries) {
      KeySpec key{fmt::format("{}.{}", section.name, entry.key), entry.help, entry.check.names};
      if (std::holds_alternative<bool>(entry.default_value)) key.values = {"true", "false"};
      keys.push_back(std::move(key));
    }
  return keys;
}

std::string completion_script(const std::string& shell, const std::vector<CommandSpec>& commands, const std::vector<KeySpec>& keys) {
  if (shell == "bash") return bash_script(commands, keys);
  if (shell == "zsh") return zsh_script(commands, keys);
  if (shell == "fish") return fish_script(commands, keys);
  base::fail_unknown("shell", shell, {"bash", "zsh", "fish"});
}

}  // namespace cairn::cli
