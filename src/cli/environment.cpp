#include "cli/environment.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sched.h>

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
  // A container may allow less time than it shows processors.
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (limit >> quota >> period && period > 0) count = std::min(count, std::max(1, static_cast<int>(quota / period + 0.5)));
  return std::max(1, count);
}

}  // namespace cairn::cli
