// A file that is read at given offsets, without a map: how much was read can be counted, and a file that becomes shorter is an error
// instead of a fault.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn::base {

class PositionedFile {
 public:
  explicit PositionedFile(std::string path);  // throws corrupt_file
  ~PositionedFile();
  PositionedFile(PositionedFile&& other) noexcept;
  PositionedFile(const PositionedFile&) = delete;
  PositionedFile& operator=(const PositionedFile&) = delete;

  // Fills `into` from the bytes that begin at `offset`. Throws corrupt_file where the file ends before that or cannot be read.
  void read(int64_t offset, std::span<std::byte> into);
  // Tells the system that these bytes are read soon.
  void announce(int64_t offset, int64_t bytes) const;

  const std::string& path() const { return path_; }
  int64_t bytes_read() const { return bytes_read_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_read_ = 0;
};

}  // namespace cairn::base
