// Cairn's own claim about hostile files: each is refused with a clear message and exit code 2, within a second, in bounded memory.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "base/text.h"
#include "hostile_cases.h"
#include "study/claims.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr double kSecondsMax = 1;
constexpr double kMegabytesMax = 400;  // above a program that reads nothing

}  // namespace

const std::vector<HostileCase>& hostile_cases() {
  static const std::vector<HostileCase> list = [] {
    std::vector<HostileCase> all;
    for (const auto part :
         {hostile_safetensors, hostile_folders, hostile_configs, hostile_tokenizers, hostile_token_models, hostile_chats, hostile_adapters,
          hostile_data, hostile_shards, hostile_runs, hostile_retrieval, hostile_pictures, hostile_selection, hostile_studies})
      for (HostileCase& one : part()) all.push_back(std::move(one));
    return all;
  }();
  return list;
}

void prove_hostile(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch, fixtures = scratch / "fixtures";
  const std::string& program = options.program;
  make_hostile_fixtures(fixtures);
  const ProcessResult idle = run_program({program, "version"}, (scratch / "idle.log").string());
  const auto above = [&](int64_t bytes) { return static_cast<double>(bytes - idle.peak_bytes) / 1e6; };
  int64_t count = 0, wrong = 0;
  double slowest = 0, largest = 0;
  for (const HostileCase& one : hostile_cases()) {
    if (one.full && !options.full) continue;
    const HostileOutcome outcome = run_hostile(one, hostile_process(program), scratch, fixtures);
    ++count;
    wrong += !outcome.trouble.empty();
    slowest = std::max(slowest, outcome.seconds);
    largest = std::max(largest, above(outcome.peak_bytes));
    log.info("{:<62} {:5.2f} s {:>9} exit {} {}{}", one.reader + ": " + one.name, outcome.seconds, base::human_bytes(outcome.peak_bytes),
             outcome.exit_code, outcome.trouble.empty() ? "" : "WRONG (" + outcome.trouble + ") ", outcome.message.substr(0, 160));
  }
  findings.at_least("bad inputs tried", 0, static_cast<double>(count), 200);
  findings.at_most("of them not refused by a clear message and exit code 2", 0, static_cast<double>(wrong), 0);
  findings.at_most("seconds that the slowest took, the program's start among them", idle.seconds, slowest, kSecondsMax);
  findings.at_most("MB that the largest took above an idle start", 0, largest, kMegabytesMax);
}

}  // namespace cairn::study
