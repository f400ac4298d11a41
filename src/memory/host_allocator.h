// A caching allocator for CPU tensors: freed memory is kept for reuse, so that a steady training step takes no page faults.
#pragma once
#include <cstdint>

namespace cairn::memory {

// Bytes of the host allocator at one moment.
struct HostMemory {
  int64_t current_bytes = 0;  // in live tensors, rounded up to size classes
  int64_t peak_bytes = 0;     // the most that was ever current since the start or reset_host_peak()
  int64_t cached_bytes = 0;   // freed, kept for the next tensor of that size class
};

// From now on every CPU tensor of this process is allocated here: 64-byte aligned blocks in size classes at most 12.5 % apart, kept when
// freed. Thread-safe. Calling it again changes nothing; tensors made before keep their old memory. It is process-wide because libtorch's
// allocator is.
void install_host_allocator();

HostMemory host_memory();
void reset_host_peak();

// Gives all cached blocks back to the system.
void trim_host_memory();

// While it lives, tensors of this process take at most so many bytes beyond those that it began with: an allocation that would exceed them
// throws out_of_memory, and takes nothing. Of several the lowest limit holds.
class ScopedHostLimit {
 public:
  explicit ScopedHostLimit(int64_t bytes);
  ~ScopedHostLimit();
  ScopedHostLimit(const ScopedHostLimit&) = delete;
  ScopedHostLimit& operator=(const ScopedHostLimit&) = delete;
  // The largest allocation that was refused; 0: none.
  int64_t refused_bytes() const;

 private:
  int64_t current_bytes_max_;
};

}  // namespace cairn::memory
