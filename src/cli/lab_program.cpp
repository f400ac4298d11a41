#include "cli/lab_program.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

#include "base/check.h"
#include "cli/environment.h"

namespace cairn::cli {
namespace {

std::string lab_program() { return (own_program().parent_path() / "cairn-lab").string(); }

bool is_built(const std::string& program) { return ::access(program.c_str(), X_OK) == 0; }

// In single quotes, as a shell reads it.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

int exec_lab(const std::vector<std::string>& command_line) {
  const std::string program = lab_program();
  if (!is_built(program))
    base::fail_input("{}: this command is part of cairn-lab, which is not built: ./cairn build cairn-lab", command_line.front());
  std::vector<std::string> words{program};
  words.insert(words.end(), command_line.begin(), command_line.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  base::fail_input("{}: cannot be started: {}", program, std::strerror(errno));
}

std::map<std::string, std::vector<std::string>> lab_names() {
  std::map<std::string, std::vector<std::string>> names;
  const std::string program = lab_program();
  if (!is_built(program)) return names;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(fmt::format("{} {}", quoted(program), kListNames).c_str(), "r"),
                                                             ::pclose);
  if (!pipe) return names;
  std::string text;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) text += static_cast<char>(c);
  std::istringstream lines(text);
  for (std::string command, name; lines >> command >> name;) names[command].push_back(name);
  return names;
}

}  // namespace cairn::cli
