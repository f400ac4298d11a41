// Deletion: first the log, then the answer, then everything that the records have left behind.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "base/files/disk.h"
#include "unlearn/live.h"
#include "unlearn/store.h"

namespace cairn::unlearn {

// What is removed from the disk.
struct Purged {
  int64_t records = 0;    // of slice files
  int64_t artifacts = 0;  // that depend on a deleted record
  int64_t copies = 0;     // files of stages that were being trained on one, or whose training was killed
  bool operator==(const Purged&) const = default;
};

struct Deleted {
  std::vector<int64_t> records = {};  // new in the log
  std::vector<int64_t> before = {};   // that were deleted already
  Served served = {};                 // from now on
  Purged purged = {};
};

// Writes the records into the log, calls `logged` (from then on nothing that depends on them is served, whatever happens), and removes
// what is left of them. Refuses an unknown record before it writes anything. A record that is deleted already is skipped.
Deleted delete_records(const Store& store, std::span<const int64_t> records, const std::function<void(const Deleted&)>& logged = {},
                       const base::Disk& disk = base::real_disk());

// Removes what deleted records have left: what a deletion does after the log, and what one that was killed has not done. The caller holds
// the store's lock.
Purged purge(const Store& store, const base::Disk& disk = base::real_disk());
// What it would remove.
Purged leftovers(const Store& store);

}  // namespace cairn::unlearn
