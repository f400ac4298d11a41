// What one rank writes into the memory of its keeper: a file of its own, as a snapshot on disk has for each rank (snapshot/rank_part.h),
// with all of its state in it, and what there is to know of it.
//
//   page 0     head: lengths, and the checksum of what is behind the file
//   page 1...  the rank's file: safetensors
//   then       its vote (cells with checksums, places of pieces), and on the first rank the texts
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"
#include "snapshot/snapshot.h"
#include "train/state/restore.h"

namespace cairn::train {

// The sections that ranks load together, each what it keeps. All others are small, and every rank gets all of them.
bool is_dealt_section(const std::string& section);

// Makes all of a rank's part pieces of its own file: what ranks share on disk, and the rest of the first rank.
void make_own(RankSnapshot& saved);

// About how many bytes write_blob() needs, with room for texts that grow.
int64_t blob_bytes(const RankSnapshot& saved);

// Writes into memory. Tensors may be on any device. False: it does not fit.
bool write_blob(const RankSnapshot& saved, std::span<std::byte> into);

// What was written, without the values of tensors that are dealt.
struct BlobFacts {
  int64_t step = 0;
  int64_t file_bytes = 0;
  std::string vote;                               // snapshot::format_vote
  std::map<std::string, std::string> texts = {};  // of the first rank
  std::string version = {};
  std::vector<std::pair<int64_t, std::string>> bytes = {};  // of the file: its header and the small pieces, by offset
};
// Throws corrupt_file where the memory holds something else.
BlobFacts read_blob(std::span<const std::byte> region, const std::string& name);

std::string pack(const BlobFacts& facts);
BlobFacts unpack(const std::string& packed, const std::string& name);

// The rank's file in the region that begins at `offset` of a file in memory.
std::shared_ptr<const base::MappedFile> file_in(int fd, int64_t offset, const BlobFacts& facts, const std::string& name);
// The same on a rank that cannot read it: the header and the small pieces; the rest are holes.
std::shared_ptr<const base::MappedFile> file_without_values(const BlobFacts& facts, const std::string& name);

}  // namespace cairn::train
