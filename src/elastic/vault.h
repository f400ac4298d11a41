// The memory of one node for the snapshots of one layout of ranks: two data buffers and two parity buffers, so that the last good version
// stays untouched while the next one is written.
//
//   EMPTY --begin--> DIRTY --all ranks have written--> FILLED --parity complete--> READY --all nodes are READY--> CLEAN
//
// A version that is READY or CLEAN on all nodes but one can be restored: the parity of each of them is complete, so it covers the missing
// one. A buffer is overwritten only once the version in the other one is CLEAN, and CLEAN means READY everywhere. So there is always one.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "elastic/parity_code.h"
#include "elastic/segment.h"

namespace cairn::elastic {

// Where one rank writes in its node's data.
struct Region {
  int rank = 0, node = 0;
  int64_t offset = 0, bytes = 0;
  bool operator==(const Region&) const = default;
};

struct VaultSpec {
  std::string id;  // of this layout, random
  int index = 0;   // of the node among those of the code
  ParityCode code;
  std::vector<Region> regions = {};  // of all nodes
  std::vector<Region> regions_of(int node) const;
  bool same_layout(const VaultSpec& other) const;  // all but id and index
};
base::Json to_json(const VaultSpec& spec);
VaultSpec vault_spec_from(const base::Json& json);  // throws bad_input for what is no layout

inline constexpr int64_t kBlockBytes = 4 << 20;  // one checksum for so many bytes

// xxh3-64 of each block.
std::vector<uint64_t> block_sums(std::span<const std::byte> bytes);

struct Version {
  enum class State { empty, dirty, filled, ready, clean };
  State state = State::empty;
  uint64_t serial = 0;  // counts all snapshots of a run, over all generations of ranks
  int64_t step = 0;
  std::set<int> filled_by = {};             // ranks
  std::map<int, int64_t> parity_from = {};  // by node: bytes of it that are in the parity
  std::vector<uint64_t> data_sums = {}, parity_sums = {};
  std::map<int, std::vector<uint64_t>> sums_of = {};  // by node: checksums of the data of the others
  std::set<int> ready_at = {};                        // nodes
  bool whole() const { return state == State::ready || state == State::clean; }
};
const char* word_of(Version::State state);

struct Vault {
  explicit Vault(VaultSpec spec);
  // The buffer of a version; -1: none has it.
  int find(uint64_t serial) const;
  // Takes the buffer of the older version for a new one. Throws bad_input where the other one is not finished yet.
  int begin(uint64_t serial, int64_t step);
  bool in_flight() const;  // a version was begun and is not CLEAN yet
  void drop(int buffer) { versions[static_cast<size_t>(buffer)] = {}; }

  VaultSpec spec;
  std::array<Segment, 2> data, parity;
  std::array<Version, 2> versions;
};

}  // namespace cairn::elastic
