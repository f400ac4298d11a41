#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace cairn::train {

// What tensors on a device are for at the moment when they take the most memory, by what the thread that made this one says of its
// allocations (base/memory_scope.h). Counts what is allocated and freed in its own lifetime and thread, by the allocator's own word, so
// that the parts sum up to the allocator's figure where no other thread has tensors there (on a CPU, ranks that are threads have).
class MemoryReport {
 public:
  explicit MemoryReport(const at::Device& device);
  ~MemoryReport();
  MemoryReport(const MemoryReport&) = delete;
  MemoryReport& operator=(const MemoryReport&) = delete;

  struct Line {
    std::string purpose;
    int64_t bytes = 0;
  };
  struct Most {
    int64_t bytes = 0;             // the sum of the lines
    int64_t allocator_bytes = 0;   // what the allocator says it had given out at that moment
    std::vector<Line> lines = {};  // the largest first
  };
  Most most() const;
  // {"device", "bytes", "allocator_bytes", "purposes": [{"purpose", "bytes"}]}
  std::string json() const;
  std::string table() const;

 private:
  struct Watch;
  struct Attached;
  std::shared_ptr<Watch> watch_;
  std::unique_ptr<Attached> attached_;
};

}  // namespace cairn::train
