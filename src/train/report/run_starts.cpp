#include "train/report/run_starts.h"

#include <fstream>

#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/version.h"
#include "train/build.h"
#include "train/start.h"

namespace cairn::train {
namespace {

constexpr int64_t kStartsBytesMax = 100'000'000;

// The name of the processor: "AMD EPYC 9R14"; "unknown" if the system does not give one.
std::string processor_name() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos && (line.starts_with("model name") || line.starts_with("CPU part"))) return line.substr(colon + 2);
  }
  return "unknown";
}

// The text fields, with their names in the file.
template <typename Act>
void each_text(RunStart& start, const Act& act) {
  act("device", start.device);
  act("cairn", start.version);
  act("build", start.build);
  act("libtorch", start.libtorch);
  act("processor", start.processor);
  act("instructions", start.instructions);
  act("data", start.data);
  act("folder", start.folder);
  act("recipe", start.recipe);
}

std::string line_of(RunStart start) {
  base::OrderedJson json{{"after_step", start.after_step}, {"ranks", start.ranks}, {"threads", start.threads}};
  each_text(start, [&](const char* name, std::string& text) { json[name] = text; });
  return base::compact(json) + "\n";
}

}  // namespace

RunStart this_start(const Job& job, const Start& start, int ranks) {
  std::error_code ignored;
  return {.after_step = job.progress.steps_done,
          .ranks = ranks,
          .threads = start.threads,
          .device = start.device,
          .version = base::version(),
          .build = base::build_id(),
          .libtorch = TORCH_VERSION,
          .processor = processor_name(),
          .instructions = at::get_cpu_capability(),
          .data = fmt::format("{:016x}", job.data.digest),
          .folder = std::filesystem::current_path(ignored).string(),
          .recipe = job.config.recipe_toml};
}

void note_start(const std::filesystem::path& file, const RunStart& start) {
  std::string text;
  if (start.after_step > 0)
    for (const RunStart& one : read_starts(file))
      if (one.after_step < start.after_step) text += line_of(one);
  base::write_atomically(file, text + line_of(start));
}

std::vector<RunStart> read_starts(const std::filesystem::path& file) {
  std::vector<RunStart> starts;
  if (!std::filesystem::exists(file)) return starts;
  const std::string text = base::read_file(file, kStartsBytesMax);
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const base::Json json = base::parse_json(std::string_view(text).substr(at, end - at));
    at = end + 1;
    ++number;
    const auto refuse = [&](const std::string& why) { base::fail_corrupt(file.string(), fmt::format("line {}: {}", number, why)); };
    if (!json.is_object()) refuse("not a JSON object");
    RunStart start;
    for (const auto& [name, into] :
         {std::pair("after_step", &start.after_step), std::pair("ranks", &start.ranks), std::pair("threads", &start.threads)}) {
      if (!json.contains(name) || !json[name].is_number_integer() || json[name].get<int64_t>() < 0)
        refuse(fmt::format("no {} that can be read", name));
      *into = json[name].get<int64_t>();
    }
    each_text(start, [&](const char* name, std::string& into) {
      if (!json.contains(name) || !json[name].is_string()) refuse(fmt::format("no {} that can be read", name));
      into = json[name].get<std::string>();
    });
    starts.push_back(std::move(start));
  }
  return starts;
}

std::vector<std::string> differences(const RunStart& then, const RunStart& now) {
  std::vector<std::string> found;
  const auto add = [&](bool differ, const std::string& what) {
    if (differ) found.push_back(what);
  };
  add(then.ranks != now.ranks, fmt::format("other ranks: {} then, {} now", then.ranks, now.ranks));
  add(then.threads != now.threads, fmt::format("other threads of a rank: {} then, {} now", then.threads, now.threads));
  add(then.device != now.device, fmt::format("another device: {} then, {} now", then.device, now.device));
  add(then.processor != now.processor || then.instructions != now.instructions,
      fmt::format("another machine: {} ({}) then, {} ({}) now", then.processor, then.instructions, now.processor, now.instructions));
  add(then.libtorch != now.libtorch, fmt::format("another libtorch: {} then, {} now", then.libtorch, now.libtorch));
  add(then.build != now.build,
      fmt::format("another build of Cairn: {} ({:.12}) then, {} ({:.12}) now", then.version, then.build, now.version, now.build));
  add(then.data != now.data, fmt::format("other data: digest {} then, {} now", then.data, now.data));
  return found;
}

}  // namespace cairn::train
