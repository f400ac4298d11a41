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

std::string python_with_torch(const BenchOptions& options, base::Log& log) {
  const std::string pins = base::read_file(std::string(CAIRN_BENCH_FOLDER) + "/../deps/torch.txt", 4096);
  const size_t at = pins.find("torch==") + 7;
  const std::string wanted = pins.substr(at, pins.find('\n', at) - at);
  const ProcessResult asked =
      run_program({"python3", "-c", "import importlib.metadata as m; print(m.version('torch'))"}, options.scratch + "/python.log");
  return asked.exit_code == 0 && asked.output.starts_with(wanted) ? "python3" : peer_python(options, log);
}

}  // namespace cairn::study
