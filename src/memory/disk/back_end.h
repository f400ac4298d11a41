#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn::base {
class Disk;
}

namespace cairn::memory {

// One read or write of a file: whole pages, at the start of a page, in memory and on disk.
struct BlockTransfer {
  uint64_t tag = 0;
  int file = -1;
  bool write = false;
  std::byte* data = nullptr;
  int64_t bytes = 0, offset = 0;
};

struct BlockResult {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes that were transferred, or -errno
};

// How blocks get to the disk and back. All but wake() is called by one thread.
class IoBackEnd {
 public:
  virtual ~IoBackEnd() = default;
  virtual void submit(std::span<const BlockTransfer> blocks) = 0;
  // Appends what is done. Returns when something is done, at a call of wake(), or after `at_most`.
  virtual void wait(std::vector<BlockResult>& done, std::chrono::nanoseconds at_most) = 0;
  virtual void wake() = 0;  // from any thread; one call before wait() counts too
  virtual std::string description() const = 0;
};

// io_uring, with these pieces of memory registered where the system allows it. Null where the kernel refuses it or liburing was not found
// when Cairn was built; `why_not` says which.
std::unique_ptr<IoBackEnd> make_uring(int depth, const std::vector<std::span<std::byte>>& memory, std::string& why_not);

// So many threads that call pread and pwrite, the latter through `disk`.
std::unique_ptr<IoBackEnd> make_io_threads(int threads, const base::Disk& disk);

}  // namespace cairn::memory
