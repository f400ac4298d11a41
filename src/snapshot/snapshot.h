// Saved state of a run. A snapshot is a Hugging Face directory (model.safetensors, config.json, ...) with the training state in training/
// beside it. Tensors are keyed by logical names, never by rank, so that it loads on any layout.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mesh/named_tensor.h"
#include "snapshot/manifest.h"
#include "snapshot/piece_index.h"
#include "snapshot/safetensors.h"

namespace cairn::base {
class Disk;
class Log;
}  // namespace cairn::base

namespace cairn::snapshot {

// The content of a snapshot. Section "model" becomes model.safetensors, any other section S becomes training/S.safetensors.
// Texts are files by name: "config.json", "tokenizer.json", "training/state.json". Section and file names are letters, digits,
// '.', '_' and '-'; a text may lie in training/.
struct Contents {
  int64_t step = 0;
  std::map<std::string, mesh::NamedTensors> tensors = {};
  std::map<std::string, std::string> texts = {};
  std::string version = {};  // of Cairn, for the manifest
};

class Remover;

// Which snapshots of a run are kept when a new one is saved.
struct Retention {
  int64_t newest = 3;          // the newest so many, including the new one; at least 1 is kept
  Remover* remover = nullptr;  // deletes the others in its own time; null: they are deleted at once
};

// Saves under RUN/snapshots/step-00000100 and returns that path. Atomic and durable: the snapshot appears complete, checksummed and on
// disk, or not at all (save.cpp has the protocol). Older snapshots are removed only afterwards. A snapshot of the same step is replaced;
// snapshots of later steps are removed, because the run was resumed before them. Only one process at a time may save into a run. A full
// disk throws Error::Kind::disk with path, needed and free bytes, and changes nothing.
std::string save(const std::string& run_dir, const Contents& contents, const Retention& keep, const base::Disk& disk);

// A tensor that a section must have, and what receives it.
struct TensorRequest {
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::function<void(const at::Tensor& whole)> take = {};  // gets a read-only view; empty: the tensor is only checked
};

// What is compared with the manifest when a snapshot is opened: all bytes, or all but the values of tensors, which the caller then checks
// as it reads them (manifest(), cells.h).
enum class Check { all, all_but_tensors };

// A file of ranks' parts that is not on disk. `readers`: the ranks that can read the values of its tensors; others have its header only.
struct PartFile {
  std::shared_ptr<const base::MappedFile> file;
  std::vector<int> readers = {};
};

// A snapshot opened for reading. Size and checksum of every file were found to be those of the manifest.
class OpenSnapshot {
 public:
  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }

  const Manifest& manifest() const { return manifest_; }
  const PieceIndex& pieces() const { return pieces_; }
  // The ranks that can read a file; empty: all.
  std::vector<int> readers(const std::string& file) const;
  // A file with tensors: that of a section, or of a rank. Null where there is none.
  const Safetensors* tensor_file(const std::string& file) const;

  std::vector<std::string> sections() const;
  // A section that is one file; bad_input where there is none.
  const Safetensors& section(const std::string& name) const;
  bool has_section(const std::string& name) const { return sections_.contains(name) || pieces_.contains(name); }
  uint64_t checksum(const std::string& section) const;  // of its file; 0 where there is no such section

  // The section's tensors, in the order of their names. Those of a section that is one file are read-only views of it.
  std::vector<TensorEntry> entries(const std::string& section) const;
  at::Tensor tensor(const std::string& section, const std::string& name) const;
  // Copies the section's tensors into these, by name, to whatever device they are on. Throws bad_input, before it has written
  // anything, if a name is missing or unexpected, or a shape or dtype differs: the message names them.
  void load_into(const std::string& section, const mesh::NamedTensors& into) const;
  // The same with callbacks, for callers that need parts of the tensors.
  void load(const std::string& section, const std::vector<TensorRequest>& wanted) const;

  const std::map<std::string, std::string>& texts() const { return texts_; }
  const std::string& text(const std::string& file) const;  // bad_input where there is none

 private:
  friend OpenSnapshot open(const std::string& path, Check check);
  friend OpenSnapshot open_parts(const std::string& name, Manifest manifest, PieceIndex pieces,
                                 const std::map<std::string, PartFile>& files, std::map<std::string, std::string> texts);
  struct Source;  // of a section's tensors
  Source source_of(const std::string& section) const;
  at::Tensor assemble(const PiecedTensor& tensor) const;
  void check_pieces() const;
  void check_now(const std::string& file, int64_t begin, int64_t end) const;  // these bytes, unless they were checked when it was opened
  std::string path_;
  int64_t step_ = 0;
  Manifest manifest_;
  std::map<std::string, Safetensors> sections_;
  std::map<std::string, Safetensors> rank_files_;  // by file: pieces of tensors, by rank
  std::set<std::string> unchecked_;                // files whose values were not compared with the manifest
  PieceIndex pieces_;                              // sections whose tensors are in those files
  std::map<std::string, uint64_t> checksums_;      // by section
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::vector<int>> readers_;  // by file, where not all ranks can
};

// Opens the snapshot folder at `path`. Throws corrupt_file naming the file and what is wrong with it.
OpenSnapshot open(const std::string& path, Check check = Check::all);

// A snapshot that ranks have written into memory, all of it into files of their own (rank_part.h). `name` stands for its path.
OpenSnapshot open_parts(const std::string& name, Manifest manifest, PieceIndex pieces, const std::map<std::string, PartFile>& files,
                        std::map<std::string, std::string> texts);

// The newest good snapshot of a run. Damaged ones are skipped, each with a warning that names the file and the reason. Nothing where the
// run has no snapshot. Throws bad_input where `run_dir` is not a run directory (no recipe.toml), corrupt_file where all snapshots are
// damaged. Snapshots after step `step_last` are ignored.
std::optional<OpenSnapshot> open_latest(const std::string& run_dir, base::Log& log, int64_t step_last = std::numeric_limits<int64_t>::max(),
                                        Check check = Check::all);

// The folder of the newest snapshot that looks complete: all files exist with their lengths, small ones with their checksums. Reads no
// tensors. Nothing where there are no snapshots; throws corrupt_file where there are some and none looks complete.
std::optional<std::string> find_latest(const std::string& run_dir);

// A snapshot in a listing; not verified.
struct SnapshotInfo {
  int64_t step = 0;
  int64_t bytes = 0;
  std::string path;
};

// The snapshots of a run, oldest first. Throws bad_input where `run_dir` is not a run directory.
std::vector<SnapshotInfo> list(const std::string& run_dir);

}  // namespace cairn::snapshot
