// The program itself, run as a user would run it.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "harness/scratch_folder.h"
#include "study/process.h"

namespace cairn::cli {

struct Outcome {
  int code = 0;
  std::string output;  // standard output and error together
};

// Runs cairn with these arguments. Its cache lies in the test's own folder, so nothing outside is touched.
inline Outcome cairn(const harness::ScratchFolder& scratch, std::vector<std::string> arguments) {
  std::vector<std::string> argv{"env", "-C", scratch.path().string(), "CAIRN_CACHE=" + (scratch / "cache").string(),
                                std::string(CAIRN_BINARY_DIR) + "/cairn"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const study::ProcessResult ended = study::run_program(argv, (scratch / "output.txt").string());
  return {ended.exit_code, scratch.text_of("output.txt")};
}

inline std::vector<double> losses_in(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl")) losses.push_back(row.number("loss"));
  return losses;
}

// Settings that train in a second.
inline std::vector<std::string> tiny(std::vector<std::string> arguments) {
  for (const char* set : {"model.layers=1", "model.embed=16", "model.heads=2", "model.kv_heads=1", "model.mlp=16", "data.vocab=260",
                          "data.length=16", "data.stories_bytes=20000", "train.global_batch=5", "log.samples=1", "eval.samples=4"})
    arguments.insert(arguments.end(), {"--set", set});
  return arguments;
}

}  // namespace cairn::cli
