#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/files/disk.h"
#include "base/log.h"
#include "memory/budget.h"

namespace cairn::memory {

struct SwapOptions {
  std::filesystem::path folder;
  std::string run_id;  // letters, digits, '-' and '_', at most 64
  int rank = 0;
  int64_t bytes = 0;
};

// The file of one rank that holds its records while a run lasts: cairn-swap-RUN-RANK.data, opened for direct I/O, all of it reserved at the
// start. It is locked while its process runs, and removed at the end. What a killed process left is removed by the next one of the same run
// and rank, and by nobody else.
class SwapFile {
 public:
  // Refuses a folder on a memory file system or without direct I/O, one without room, and a file that another process has locked.
  SwapFile(const SwapOptions& options, base::Log& log, const base::Disk& disk = base::real_disk());
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  int descriptor() const { return file_; }
  const std::filesystem::path& path() const { return path_; }
  uint64_t run() const { return run_; }  // checksum of the run's id
  Budget& budget() { return budget_; }
  const Budget& budget() const { return budget_; }

 private:
  void check_room(const SwapOptions& options) const;
  void reserve(const SwapOptions& options);

  const base::Disk& disk_;
  const std::filesystem::path path_;
  const uint64_t run_;
  Budget budget_;
  int file_ = -1;
};

// Removes swap files of this run whose processes are gone, of any rank; how many bytes they had. For whoever starts the ranks of a run
// again, perhaps fewer of them.
int64_t remove_swap_files(const std::filesystem::path& folder, const std::string& run_id, base::Log& log,
                          const base::Disk& disk = base::real_disk());

}  // namespace cairn::memory
