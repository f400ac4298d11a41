#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace cairn::train {

// The peak memory of tensors on a device, by purpose (log.memory). The purpose of an allocation is the base::MemoryScope of the thread that
// made this object. It counts the allocations of that thread during its own lifetime, as libtorch's allocator reports them. The purposes
// sum up to the allocator's figure if no other thread has tensors on the device (on a CPU, ranks that are threads do).
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
    int64_t allocator_bytes = 0;   // the allocator's own figure at that moment
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
