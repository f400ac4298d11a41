// One rank's part of a snapshot that several ranks write together, into a folder that all of them see. No rank has all of a file such as
// model.safetensors: each writes its parts of it where they belong. State that only training reads goes into a file for each rank, in one
// run.
//
//   blocks_of    what a rank writes, cut into blocks of a few MiB that can be copied to the host one by one
//   PartWriter   writes blocks, and ends with a vote: what was written, with the checksum of every cell
//   commit_votes the manifest and the piece index, from the votes of all ranks
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/fragment.h"
#include "snapshot/cells.h"
#include "snapshot/manifest.h"
#include "snapshot/piece_index.h"
#include "snapshot/snapshot.h"
#include "snapshot/staging.h"

namespace cairn::base {
class Disk;
}

namespace cairn::snapshot {

// A file that all ranks write together. The list of tensors is the same on every rank, and with it where each lies in the file.
struct SharedSection {
  struct Part {
    size_t tensor = 0;  // of `tensors`
    mesh::Fragment fragment;
    at::Tensor data;  // its elements, flat and contiguous, on any device
  };
  std::vector<TensorEntry> tensors;
  std::vector<Part> parts;
};

// A piece of a tensor in the rank's own file.
struct OwnPiece {
  std::string section, name;
  std::vector<int64_t> shape;  // of the whole tensor
  mesh::Fragment fragment;
  at::Tensor data;  // its elements, flat and contiguous, on any device
};

struct RankPart {
  int rank = 0;
  bool writes_headers = false;  // of the shared files: one rank does
  std::map<std::string, SharedSection> shared;
  std::vector<OwnPiece> own;
};

// Some MiB of one tensor, and where they go.
struct WriteBlock {
  size_t file = 0;                // of PartWriter::files
  at::Tensor data;                // flat, on any device
  std::vector<CellSource> cells;  // their fragments count elements within `data`
};

// What a rank has written, for the one that commits.
struct Vote {
  int rank = 0;
  std::map<std::string, FileRecord> files;          // of its own
  std::map<std::string, std::vector<Cell>> shared;  // by file: the cells that it has written
  std::map<std::string, int64_t> shared_bytes;      // by file: how long it is in all
  PieceIndex pieces;
};
std::string format_vote(const Vote& vote);
Vote parse_vote(const std::string& text, const std::string& path);

struct PartWriterOptions {
  bool open_later = false;  // by open(): the constructor then touches no file
  bool direct = false;      // whole pages go past the page cache, where the bytes have the address for it
};

// Writes a rank's part into a staging folder. Not thread-safe; may live on a thread of its own.
class PartWriter {
 public:
  // Opens the files. Throws Error::Kind::disk. `disk` is borrowed.
  PartWriter(std::filesystem::path folder, const RankPart& part, const base::Disk& disk, PartWriterOptions options = {});
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  void open();
  // What has to be written, in the order of the files. Tensors are those of the part: no copy.
  const std::vector<WriteBlock>& blocks() const { return blocks_; }
  // Writes the block from its bytes on the host.
  void write(const WriteBlock& block, std::span<const std::byte> bytes);
  // After all blocks: everything is on disk.
  Vote finish();

 private:
  struct File;
  void lay_out_shared(const std::string& section, const SharedSection& shared, bool writes_header);
  void lay_out_own(const RankPart& part);
  void open_file(File& file);
  void close_all();
  void write_at(File& file, std::span<const std::byte> bytes, int64_t offset);
  int64_t write_some(File& file, std::span<const std::byte> bytes, int64_t offset);
  void add_cell(File& file, Cell cell);
  [[noreturn]] void fail(const File& file, const char* doing) const;

  std::filesystem::path folder_;
  const base::Disk& disk_;
  const PartWriterOptions options_;
  std::vector<File> files_;
  std::vector<WriteBlock> blocks_;
  Vote vote_;
};

// The records of all files that the ranks have written, for the manifest, and the index of pieces. Throws corrupt_file where cells of a
// shared file leave a hole or overlap: ranks do not agree on who writes what.
struct CommittedParts {
  std::map<std::string, FileRecord> files;
  PieceIndex pieces;
};
CommittedParts merge_votes(const std::vector<Vote>& votes);

// Ends a snapshot whose parts the ranks have written into `staging`: adds the rest, which one rank has alone, then the manifest, and gives
// the folder its name. The protocol is that of save() (save.cpp).
std::string commit_parts(const std::string& run_dir, StagingFolder& staging, Contents rest, const std::vector<Vote>& votes,
                         const Retention& keep, const base::Disk& disk);

}  // namespace cairn::snapshot
