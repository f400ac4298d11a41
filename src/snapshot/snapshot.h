// A consistent saved state, keyed by logical ids: a Hugging Face directory with the training state beside it.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/named_tensor.h"
#include "snapshot/safetensors.h"

namespace cairn::base {
class Disk;
class Log;
}  // namespace cairn::base

namespace cairn::snapshot {

// What one snapshot holds. Section "model" becomes model.safetensors, any other section S becomes training/S.safetensors.
// Texts are files by name: "config.json", "tokenizer.json", "training/state.json". Section and file names are letters, digits,
// '.', '_' and '-'; a text may lie in training/.
struct Contents {
  int64_t step = 0;
  std::map<std::string, mesh::NamedTensors> tensors = {};
  std::map<std::string, std::string> texts = {};
  std::string version = {};  // of Cairn, noted in the manifest
};

// Which snapshots stay when a new one is in place.
struct Retention {
  int64_t newest = 3;  // this many, the new one included; at least 1 always stays
};

// Saves under RUN/snapshots/step-00000100 and returns that path. The snapshot appears there whole (files and folders on disk,
// checksummed) or not at all; older ones go only afterwards. One of the same step is replaced. Those of later steps go too: they are
// of a future that this run left when it was resumed before them. One process at a time may save into a run; it also clears what
// earlier crashes left. A full disk throws Error::Kind::disk naming path, needed and free bytes, and leaves everything as it was.
std::string save(const std::string& run_dir, const Contents& contents, const Retention& keep, const base::Disk& disk);

// A tensor that a section must have, and what happens with it; empty: nothing.
struct TensorRequest {
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::function<void(const at::Tensor& whole)> take = {};  // for reading only
};

// A snapshot opened for reading. Every file was found whole: size and checksum are those of the manifest.
class OpenSnapshot {
 public:
  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }

  std::vector<std::string> sections() const;
  const Safetensors& section(const std::string& name) const;  // bad_input where there is none
  bool has_section(const std::string& name) const { return sections_.contains(name); }

  // Copies the section's tensors into these, by name, to whatever device they are on. Throws bad_input, before it has written
  // anything, if a name is missing or unexpected, or a shape or dtype differs: the message names them.
  void load_into(const std::string& section, const mesh::NamedTensors& into) const;
  // The same for whoever needs parts of the tensors.
  void load(const std::string& section, const std::vector<TensorRequest>& wanted) const;

  const std::map<std::string, std::string>& texts() const { return texts_; }
  const std::string& text(const std::string& file) const;  // bad_input where there is none

 private:
  friend OpenSnapshot open(const std::string& path);
  std::string path_;
  int64_t step_ = 0;
  std::map<std::string, Safetensors> sections_;
  std::map<std::string, std::string> texts_;
};

// Opens the snapshot folder at `path`. Throws corrupt_file naming the file and what is wrong with it.
OpenSnapshot open(const std::string& path);

// The newest good snapshot of a run; damaged ones are passed over, each with a warning that names the file and the reason.
// Nothing where the run has none. Throws bad_input where `run_dir` is no run directory (no recipe.toml), and corrupt_file where there are
// snapshots and all are damaged. Those of steps after `step_last` are not looked at.
std::optional<OpenSnapshot> open_latest(const std::string& run_dir, base::Log& log,
                                        int64_t step_last = std::numeric_limits<int64_t>::max());

// The folder of the newest snapshot that looks whole: files are there at their lengths, small ones with their checksums. Reads no tensor.
// Throws corrupt_file where there are snapshots and none looks whole; nothing where there are none.
std::optional<std::string> find_latest(const std::string& run_dir);

// One saved step of a run, as listed, not verified.
struct SnapshotInfo {
  int64_t step = 0;
  int64_t bytes = 0;
  std::string path;
};

// The snapshots of a run, oldest first. Throws bad_input where `run_dir` is no run directory.
std::vector<SnapshotInfo> list(const std::string& run_dir);

}  // namespace cairn::snapshot
