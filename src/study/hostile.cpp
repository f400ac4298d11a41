#include "study/hostile.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <sys/stat.h>

#include "base/check.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMessageMax = 2200;

// Words that a message to users must not contain.
constexpr const char* kJargon[] = {
    "what():",          "terminate called", "std::",        "c10::",       "nlohmann",           "json.exception",
    "Exception raised", "frame #",          "Segmentation", "core dumped", "a bug in Cairn",     "toml::",
    "TOML_MAX",         "basic_string",     "vector::",     "stoull",      "DefaultCPUAllocator"};

std::string line_of_message(const std::string& output) {
  for (size_t at = 0; at < output.size();) {
    const size_t end = std::min(output.find('\n', at), output.size());
    if (output.compare(at, 7, "cairn: ") == 0) return output.substr(at, end - at);
    at = end + 1;
  }
  return "";
}

std::string judged(const HostileCase& one, const ProcessResult& ended, const std::string& message) {
  if (ended.exit_code == 124) return "still running after 20 s";
  if (ended.exit_code != 2) return fmt::format("exit code {}", ended.exit_code);
  if (message.empty()) return "no line that begins with \"cairn:\"";
  if (message.size() > kMessageMax) return fmt::format("a message of {} characters", message.size());
  for (const char* word : kJargon)
    if (ended.output.find(word) != std::string::npos) return fmt::format("speaks of \"{}\"", word);
  for (const std::string& part : one.said)
    if (message.find(part) == std::string::npos) return fmt::format("does not say \"{}\"", part);
  return "";
}

}  // namespace

int64_t Bytes::size() const {
  int64_t sum = 0;
  for (const auto& [text, times] : parts_) sum += static_cast<int64_t>(text.size()) * times;
  return sum;
}

std::string Bytes::text() const {
  std::ostringstream out;
  write(out);
  return out.str();
}

void Bytes::write(std::ostream& out) const {
  constexpr int64_t kBlock = 1 << 16;
  for (const auto& [text, times] : parts_) {
    const int64_t at_once = std::max<int64_t>(1, std::min(times, kBlock / std::max<int64_t>(1, static_cast<int64_t>(text.size()))));
    std::string block;
    for (int64_t i = 0; i < at_once; ++i) block += text;
    int64_t left = times;
    for (; left >= at_once; left -= at_once) out.write(block.data(), static_cast<std::streamsize>(block.size()));
    for (; left > 0; --left) out.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
}

void HostileFolder::file(const std::string& name, const Bytes& bytes) const {
  fs::create_directories((path_ / name).parent_path());
  std::ofstream out(path_ / name, std::ios::binary);
  bytes.write(out);
  CAIRN_CHECK(out.good(), "cannot write {}", (path_ / name).string());
}

void HostileFolder::folder(const std::string& name) const { fs::create_directories(path_ / name); }

void HostileFolder::sparse(const std::string& name, std::string_view beginning, int64_t bytes) const {
  file(name, std::string(beginning));
  fs::resize_file(path_ / name, static_cast<uintmax_t>(bytes));
}

void HostileFolder::pipe(const std::string& name) const {
  fs::remove_all(path_ / name);
  CAIRN_CHECK(::mkfifo((path_ / name).c_str(), 0644) == 0, "cannot make the pipe {}", name);
}

void HostileFolder::link(const std::string& name, const std::string& to) const {
  fs::remove_all(path_ / name);
  fs::create_symlink(to, path_ / name);
}

void HostileFolder::remove(const std::string& name) const { fs::remove_all(path_ / name); }

void HostileFolder::good(const std::string& name, const std::string& as) const {
  fs::remove_all(path_ / as);
  fs::copy(fixtures_ / name, path_ / as, fs::copy_options::recursive);
}

std::string HostileFolder::text(const std::string& name) const {
  std::ifstream in(path_ / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void HostileFolder::replace(const std::string& name, std::string_view from, std::string_view to) const {
  std::string bytes = text(name);
  const size_t at = bytes.find(from);
  CAIRN_CHECK(at != std::string::npos, "{} does not hold {}", name, from);
  file(name, bytes.replace(at, from.size(), to));
}

void HostileFolder::cut(const std::string& name, int64_t bytes) const { fs::resize_file(path_ / name, static_cast<uintmax_t>(bytes)); }

void HostileFolder::flip(const std::string& name, int64_t at) const {
  std::string bytes = text(name);
  char& byte = bytes.at(static_cast<size_t>(at < 0 ? static_cast<int64_t>(bytes.size()) + at : at));
  byte = static_cast<char>(~byte);
  file(name, bytes);
}

HostileRunner hostile_process(std::string program) {
  return [program = std::move(program)](const HostileRun& run) {
    // `timeout` ends a process that hangs; `sh` redirects standard input.
    std::vector<std::string> argv{"timeout",
                                  "-k",
                                  "1",
                                  "20",
                                  "env",
                                  "-C",
                                  run.folder,
                                  "CAIRN_CACHE=" + run.cache,
                                  "sh",
                                  "-c",
                                  "input=$1; shift; exec \"$@\" < \"$input\"",
                                  "sh",
                                  run.input,
                                  program};
    argv.insert(argv.end(), run.arguments.begin(), run.arguments.end());
    return run_program(argv, run.log);
  };
}

HostileOutcome run_hostile(const HostileCase& one, const HostileRunner& run, const fs::path& scratch, const fs::path& fixtures) {
  const fs::path place = scratch / fmt::format("{}-{}", one.reader, one.name);
  fs::create_directories(place);
  one.make(HostileFolder(place, fixtures));
  const std::string input = (scratch / fmt::format("{}-{}.in", one.reader, one.name)).string();
  {
    std::ofstream out(input, std::ios::binary);
    one.input.write(out);
  }
  const ProcessResult ended = run({one.arguments, place.string(), (place / "cache").string(), input, input + ".log"});
  HostileOutcome outcome{
      .exit_code = ended.exit_code, .seconds = ended.seconds, .peak_bytes = ended.peak_bytes, .message = {}, .trouble = {}};
  outcome.message = line_of_message(ended.output);
  outcome.trouble = judged(one, ended, outcome.message);
  if (outcome.message.empty()) outcome.message = ended.output.substr(0, 300);
  for (const fs::path& made : {place, fs::path(input), fs::path(input + ".log")}) fs::remove_all(made);
  return outcome;
}

}  // namespace cairn::study
