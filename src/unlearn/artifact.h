// What one stage has trained, and which records it depends on. A folder in artifacts/: adapter.safetensors and artifact.json. It is made
// once and never changed. Equal stages of equal records give folders that are bitwise identical, so nothing in them says when or where.
#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "mesh/named_tensor.h"
#include "model/decoder/adapter_shape.h"
#include "unlearn/store.h"

namespace cairn::base {
class Disk;
}

namespace cairn::unlearn {

// Slices 2 and 3 of shard 0, in this order, without 4 records of theirs that had been deleted before: "s0-2.3-w4". Without any: "s0-2.3".
struct ArtifactName {
  int64_t shard = 0;
  Order slices = {};
  int64_t excluded = 0;
  bool operator==(const ArtifactName&) const = default;

  bool depends_on(int64_t of_shard, int64_t slice) const;
};
std::string to_text(const ArtifactName& name);
std::optional<ArtifactName> parse_artifact_name(std::string_view text);  // nothing for any other text

// A name in the store's work folder for what is made on the way to an artifact, and the artifact that such a name is for. `token`: a
// number that nobody else uses.
std::filesystem::path work_folder(const Store& store, const ArtifactName& name, int64_t token);
int64_t new_token();
std::optional<ArtifactName> artifact_of_work(const std::filesystem::path& folder);

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

struct Artifact {
  ArtifactName name = {};         // its slices are the dependency set
  std::string parent = {};        // the artifact of the stage before; empty: this is the first
  uint64_t parent_checksum = 0;   // of that artifact's adapter
  uint64_t base_checksum = 0;     // of the frozen model
  uint64_t checksum = 0;          // of adapter.safetensors
  int64_t seed = 0, records = 0;  // those that the stage has read
  double loss = kNotMeasured;     // of its last step
  double validation = kNotMeasured;
  model::AdapterShape shape = {};  // rank, alpha and by_root; the targets are in the tensors' names
};

// Refuses a damaged one, and one that does not belong to the store.
Artifact read_artifact(const Store& store, const std::string& name);
// All that are there, by name.
std::map<std::string, Artifact> read_artifacts(const Store& store);
// Its adapter, in fp32 and in memory of its own. Checks the checksum.
mesh::NamedTensors read_adapter_tensors(const Store& store, const Artifact& artifact);
// Writes it complete or not at all, and sets its checksum. False: there is one of this name, which stays.
bool write_artifact(const Store& store, Artifact artifact, const mesh::NamedTensors& tensors, const base::Disk& disk);

}  // namespace cairn::unlearn
