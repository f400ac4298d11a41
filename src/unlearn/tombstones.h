// The log of deleted records. What may be served follows from it (live.h), so a deletion is in force once its line is on disk.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/files/disk.h"

namespace cairn::unlearn {

// Deleted records in the order of their deletion. Empty where there is no log yet. A last line without its end was never acknowledged and
// does not count; any other line that does not check is an error: a store whose deletions are not known serves nothing.
std::vector<int64_t> read_tombstones(const std::filesystem::path& log);

// Adds records, all or none, and returns when they are on disk. The caller keeps other writers out.
void append_tombstones(const std::filesystem::path& log, std::span<const int64_t> records, const base::Disk& disk = base::real_disk());

}  // namespace cairn::unlearn
