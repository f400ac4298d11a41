#include "bench/peer_python.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "study/process.h"

namespace cairn::study {

std::string peer_python(const BenchOptions& options, base::Log& log) {
  const std::string version = base::read_file(std::string(CAIRN_BENCH_FOLDER) + "/../deps/torch.txt", 4096);
  const std::string pin = version.substr(version.find("torch=="), version.find('\n', version.find("torch==")) - version.find("torch=="));
  return peer_python(options, log, pin, {pin, "numpy"}, "about 5 GB, a few minutes");
}

std::string peer_python(const BenchOptions& options, base::Log& log, const std::string& name, const std::vector<std::string>& packages,
                        const std::string& cost) {
  const std::filesystem::path folder = std::filesystem::path(options.cache) / fmt::format("python-{}", name);
  const std::filesystem::path python = folder / "bin" / "python", complete = folder / "complete";
  if (std::filesystem::exists(complete)) return python.string();
  log.info("making a Python environment with {} in {} ({}, once)", name, folder.string(), cost);
  base::make_folder(folder);
  const std::string file = options.scratch + "/pip.log";
  std::vector<std::string> install{python.string(), "-m", "pip", "install", "--quiet"};
  install.insert(install.end(), packages.begin(), packages.end());
  for (const std::vector<std::string>& command : {std::vector<std::string>{"python3", "-m", "venv", folder.string()}, install}) {
    const ProcessResult ended = run_program(command, file);
    if (ended.exit_code != 0) base::fail_input("the peer's Python environment could not be made ({} failed): {}", command[0], ended.output);
  }
  base::write_atomically(complete, "");
  return python.string();
}

}  // namespace cairn::study
