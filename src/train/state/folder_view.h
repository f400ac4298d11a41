// Ranks that do not see the run directory, because their machine does not mount it: they write and read through ranks that do.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "snapshot/snapshot.h"

namespace cairn::base {
class Disk;
}
namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct Job;
class PartSave;

// Which ranks of a group see a folder that the first rank has just made. `folder`: on the first rank, its path; elsewhere it becomes the
// path of the same folder below this rank's own run directory. Empty on all ranks where the first rank has none. Collective.
std::vector<bool> who_sees(comm::Group& group, const std::filesystem::path& run_dir, std::string& folder);

// The rank that writes for one that does not see the folder. Each of those that see it has about as many to write for.
int writer_for(const std::vector<bool>& sees, int rank);

// Ranks that do not see the folder send what they would write, block by block, to those that write for them. The first rank
// hears of failures by the votes. Collective.
void write_for_others(Job& job, const PartSave& save, const std::vector<bool>& sees);

// A snapshot of the first rank, for ranks of its group that do not see it: its small files, the headers of the large ones, and holes where
// their tensors are; its path exists no more. Ranks that see the files read those (part_load.h). Collective; `mine` is set on ranks that
// have it.
void lend_snapshot(comm::Group& group, std::optional<snapshot::OpenSnapshot>& mine);

}  // namespace cairn::train
