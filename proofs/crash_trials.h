#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cairn::study {

// Saves a small snapshot by the product's writer (train/state/part_save.h) as several ranks over one of an earlier step, remembers every
// change of the disk, and reads back what crashes leave behind.
struct CrashTrials {
  std::filesystem::path scratch;  // a folder of its own
  uint64_t seed = 1;
  int64_t states = 300;
  bool disk_lies = false;  // a disk that says it has synced what it has not: the trials must find out
};
struct CrashOutcome {
  int64_t states = 0, saves = 0, changes = 0;
  int64_t old_found = 0, new_found = 0;
  std::vector<std::string> wrong;  // states after which the reader finds neither the old nor the new one; or not the new one after commit
};
CrashOutcome try_crashes(const CrashTrials& trials);

}  // namespace cairn::study
