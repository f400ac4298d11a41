// The manifest of a snapshot: which files belong to it, how long they are and what their checksums are. Written last.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "base/json.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr int64_t kManifestBytesMax = 64 << 20;

struct Manifest {
  int64_t step = 0;
  std::string version;                      // of the Cairn that wrote it
  std::map<std::string, FileRecord> files;  // by name within the snapshot
  bool operator==(const Manifest&) const = default;
};

// The bytes of all files, without the manifest's own.
int64_t total_bytes(const Manifest& manifest);

// Cells as they stand in manifests and votes: [offset, rows, bytes of a row, stride, checksum] each. `of`: the file's name, for messages.
base::OrderedJson cells_to_json(const std::vector<Cell>& cells);
std::vector<Cell> cells_from_json(const base::Json& list, const std::string& of, const std::string& path);

std::string format_manifest(const Manifest& manifest);

// Throws corrupt_file with `path` and the reason for anything but a manifest of this format version.
Manifest parse_manifest(const std::string& text, const std::string& path);

// Whether a name may be a file of a snapshot: "model.safetensors", "training/state.json"; never a path out of its folder.
bool is_file_name(const std::string& name);

// "training/rank-00003.safetensors": what one rank has written of the training state. It is no section.
std::string rank_file(int rank);
bool is_rank_file(const std::string& file);

bool is_section_name(const std::string& name);
// The file that holds a section, and the section that a file holds (empty: none, it is a text).
std::string file_of_section(const std::string& section);
std::string section_of_file(const std::string& file);

}  // namespace cairn::snapshot
