#include "cli/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <sstream>

#include "base/check.h"

namespace cairn::cli {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

void set_variable(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

std::filesystem::path cache_folder() {
  if (const auto folder = variable("CAIRN_CACHE")) return *folder;
  if (const auto folder = variable("XDG_CACHE_HOME")) return std::filesystem::path(*folder) / "cairn";
  if (const auto home = variable("HOME")) return std::filesystem::path(*home) / ".cache" / "cairn";
  return {};
}

std::filesystem::path own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // A container's CPU quota may be lower than the number of processors it shows.
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (limit >> quota >> period && period > 0) count = std::min(count, std::max(1, static_cast<int>(quota / period + 0.5)));
  return std::max(1, count);
}

int threads_among(int ranks) {
  const auto given = variable("OMP_NUM_THREADS");
  if (!given) return std::max(1, processors() / std::max(1, ranks));
  const char* const end = given->data() + given->size();
  int threads = 0;
  const auto [rest, error] = std::from_chars(given->data(), end, threads);
  const bool whole = rest == end || *rest == ',';  // OpenMP allows a number for each level: 4,2
  if (error != std::errc() || !whole || threads < 1) base::fail_input("OMP_NUM_THREADS = {}: must be a number of threads above 0", *given);
  return threads;
}

std::vector<std::string> visible_gpus() {
  std::vector<std::string> gpus;
  if (const auto named = variable("CUDA_VISIBLE_DEVICES")) {
    std::istringstream list(*named);
    for (std::string one; std::getline(list, one, ',');) {
      if (one == "-1") break;  // CUDA ends the list at the first device it cannot find
      if (!one.empty()) gpus.push_back(one);
    }
    return gpus;
  }
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.size() > 6 && name.starts_with("nvidia") &&
                          std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (numbered) gpus.push_back(name.substr(6));
  }
  // CUDA numbers the devices it may use from 0, whatever their files are called.
  for (size_t i = 0; i < gpus.size(); ++i) gpus[i] = std::to_string(i);
  return gpus;
}

void select_gpu(int local_rank) {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.size() > 1) set_variable("CUDA_VISIBLE_DEVICES", gpus[static_cast<size_t>(local_rank) % gpus.size()]);
}

}  // namespace cairn::cli
