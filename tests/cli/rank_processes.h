// Processes of a run, found from outside.
#pragma once
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

#include "base/run_events.h"

namespace cairn::cli {

// The events of one kind that a run has written.
inline std::vector<base::Json> events_of(const std::filesystem::path& run, const std::string& kind) {
  std::vector<base::Json> found;
  for (const base::Json& event : base::read_events(run))
    if (event["event"] == kind) found.push_back(event);
  return found;
}

// The processes whose environment holds all of these texts.
inline std::vector<pid_t> processes_with(const std::vector<std::string>& texts) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string environment((std::istreambuf_iterator<char>(file)), {});
    bool all = !environment.empty();
    for (const std::string& text : texts) all = all && environment.find(text) != std::string::npos;
    if (all) found.push_back(std::stoi(name));
  }
  return found;
}

// The process of one rank, found by what the agent puts into its environment; -1: there is none.
inline pid_t process_of_rank(const std::string& rank, const std::string& folder) {
  const std::vector<pid_t> found = processes_with({"CAIRN_RANK=" + rank + std::string(1, '\0'), folder});
  return found.empty() ? -1 : found.front();
}

inline std::vector<pid_t> processes_of_ranks(const std::string& folder) { return processes_with({"CAIRN_SETUP_FD=", folder}); }

// Waits for what a run does; false after a minute.
template <typename Happened>
bool comes(Happened happened) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!happened()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace cairn::cli
