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
  const std::filesystem::path folder = std::filesystem::path(options.cache) / fmt::format("python-{}", pin);
  const std::filesystem::path python = folder / "bin" / "python", complete = folder / "complete";
  if (std::filesystem::exists(complete)) return python.string();
  log.info("making a Python environment with {} in {} (about 5 GB, a few minutes, once)", pin, folder.string());
  base::make_folder(folder);
  const std::string file = options.scratch + "/pip.log";
  for (const std::vector<std::string>& command : {std::vector<std::string>{"python3", "-m", "venv", folder.string()},
                                                  {python.string(), "-m", "pip", "install", "--quiet", pin, "numpy"}}) {
    const Ended ended = run_program(command, file);
    if (ended.exit_code != 0) base::fail_input("the peer's Python environment could not be made ({} failed): {}", command[0], ended.output);
  }
  base::write_atomically(complete, "");
  return python.string();
}

}  // namespace cairn::study
