// Memory that this process owns and that others map: an anonymous file (memfd). It disappears with the last process that has it open.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::elastic {

class Segment {
 public:
  Segment() = default;
  Segment(const char* name, int64_t bytes);  // zeros; throws out_of_memory
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  int fd() const { return fd_; }
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> all() const { return {start_, static_cast<size_t>(bytes_)}; }
  std::span<std::byte> part(int64_t offset, int64_t length) const;

 private:
  int fd_ = -1;
  std::byte* start_ = nullptr;
  int64_t bytes_ = 0;
};

// A mapping of another process's segment, for reading and writing. The descriptor may be closed afterwards.
class SegmentMap {
 public:
  SegmentMap() = default;
  SegmentMap(int fd, int64_t bytes);
  SegmentMap(SegmentMap&& other) noexcept;
  SegmentMap& operator=(SegmentMap&& other) noexcept;
  ~SegmentMap();
  std::span<std::byte> part(int64_t offset, int64_t length) const;

 private:
  std::byte* start_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace cairn::elastic
