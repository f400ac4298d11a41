// The last 64 bytes of a record on disk: what it is, which version, how long, and checksums of it and of themselves. They are written with
// the record in one piece, so that a reader can tell a record that is torn or of another version from the one it wants.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/checksum.h"

namespace cairn::memory {

struct Seal {
  uint64_t run = 0;       // checksum of the run's id
  uint64_t record = 0;    // checksum of the record's name
  uint64_t version = 0;   // counts from 1
  uint64_t length = 0;    // of the record, in bytes
  uint64_t checksum = 0;  // of these bytes (XXH3)
};

// Writes the seal of a record while its blocks go to the disk: the checksum is computed block by block, and the seal is there before the
// last.
class SealWriter {
 public:
  SealWriter(std::span<std::byte> whole, const Seal& seal);  // zeros the bytes behind the record
  void advance(int64_t end);                                 // what is before `end` goes to the disk next; rising
  const Seal& seal() const { return seal_; }                 // complete once all of it went

 private:
  std::span<std::byte> whole_;
  Seal seal_;
  base::Checksum checksum_;
  int64_t summed_ = 0;
};

// What is wrong with these bytes, as a clause for an error ("is torn: ..."); empty: they are the record of this seal.
std::string find_fault(std::span<const std::byte> whole, const Seal& expected);

}  // namespace cairn::memory
