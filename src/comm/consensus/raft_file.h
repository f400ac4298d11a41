#pragma once
#include <filesystem>

#include "base/files/disk.h"
#include "comm/consensus/raft.h"

namespace cairn::comm {

// The state of a site in a file, replaced atomically and flushed to disk by every save.
class RaftFile final : public RaftStore {
 public:
  explicit RaftFile(std::filesystem::path path, const base::Disk& disk = base::real_disk());
  RaftState load() override;  // an empty state where there is no file; corrupt_file where it is damaged
  void save(const RaftState& state) override;

 private:
  std::filesystem::path path_;
  const base::Disk& disk_;
};

}  // namespace cairn::comm
