#pragma once
#include <cstdint>
#include <memory>

#include "memory/disk/back_end.h"

namespace cairn::memory {

// Faults of direct I/O, as data, for tests and proofs. A fault that is not set does not happen. Those of opening, resizing and free space
// come from base::FaultyDisk.
struct IoFaults {
  int64_t read_error_after_bytes = -1;   // EIO once this many bytes were read in all
  int64_t write_error_after_bytes = -1;  // likewise
  int64_t full_after_bytes = -1;         // ENOSPC once this many bytes were written in all
  int64_t ends_after_bytes = -1;         // the file ends: reads get what was left, then nothing
  int64_t longest_block_bytes = -1;      // every transfer stops there, without an error
  int64_t lost_write = -1;               // the write with this number (from 0) is reported as done, and is not
  int64_t torn_write = -1;               // likewise, but its first half is done

  bool any() const {
    return read_error_after_bytes >= 0 || write_error_after_bytes >= 0 || full_after_bytes >= 0 || ends_after_bytes >= 0 ||
           longest_block_bytes >= 0 || lost_write >= 0 || torn_write >= 0;
  }
};

// The back end with faults in front of it.
std::unique_ptr<IoBackEnd> make_faulty(std::unique_ptr<IoBackEnd> back_end, const IoFaults& faults);

}  // namespace cairn::memory
