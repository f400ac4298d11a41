// Where the blocks of a lazy snapshot go (snapshot.mode = "lazy"): to files, or into memory that outlives the rank.
//
// A copier moves a rank's pieces, block by block, out of the tensors that training is about to change into a ring of host memory
// (train/state/lazy_copier.h). A writer thread takes them from there, in the order in which they were copied, and hands each to the sinks
// of the version. The bytes of a block go back to the ring once every sink has returned from write().
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "snapshot/rank_part.h"

namespace cairn::snapshot {

// One version on one rank, as one destination sees it. Every version gets a sink of its own. All calls come from one thread, in this order:
//
//   begin, then write once for each block in any order, then end       the version is whole here
//   ... abort instead of what is left                                  the version is given up: what there is of it is of no use
//
// A sink that throws Error::Kind::disk (or any Error) has failed: it gets abort(), and the other sinks of the version go on.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  // `blocks`: what will be written, the same list as PartWriter::blocks(). Only sizes, types and places may be read: the tensors change
  // while the version is copied. The list outlives the sink's last call.
  virtual void begin(int64_t step, std::span<const WriteBlock> blocks) = 0;
  // The bytes of blocks[block], contiguous in host memory, valid during the call. May wait for a slow destination.
  virtual void write(size_t block, std::span<const std::byte> bytes) = 0;
  // All blocks were written: makes them durable, and tells the other ranks.
  virtual void end() = 0;
  virtual void abort(const std::string& why) noexcept = 0;
  // The remainder of a block's first file offset by the page size, so that the block gets memory with the same remainder and can be written
  // with direct I/O. -1 where it does not matter.
  virtual int64_t page_remainder(const WriteBlock& /*block*/) const { return -1; }
};

}  // namespace cairn::snapshot
