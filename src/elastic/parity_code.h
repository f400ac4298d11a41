// Parity across nodes, as RAID-5 has it across disks. Every node i has data s_i of S bytes, cut into n-1 blocks, one for each other node:
//
//   Q_j = XOR over i != j of s_i^(j)          node j keeps the parity of the blocks that the others have cut for it
//   s_k^(j) = Q_j XOR (XOR over i != j, k of s_i^(j))     what node k had, from all others
//
// So parity takes S/(n-1) bytes on each node, and no node keeps parity of its own data. With two nodes this is a mirror.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::elastic {

// none: only the node itself. exclusive_or: as above. mirror: node j keeps all of s_(j-1).
enum class ParityKind { none, exclusive_or, mirror };
const char* word_of(ParityKind kind);                  // "none", "xor", "mirror"
ParityKind parity_kind_from(const std::string& word);  // bad_input for any other word

struct ParityCode {
  ParityKind kind = ParityKind::none;
  int nodes = 1;
  int64_t data_bytes = 0;  // S, a multiple of unit()

  // A block of a node's data: s_node[offset, offset + parity_bytes()).
  struct Term {
    int node = 0;
    int64_t offset = 0;
    bool operator==(const Term&) const = default;
  };

  int64_t parity_bytes() const;               // of each node
  std::vector<Term> terms(int holder) const;  // whose XOR node `holder` keeps, in the order of nodes after it
  bool protects() const { return kind != ParityKind::none && nodes > 1; }
};

// The smallest S that such a code has for so many bytes.
int64_t padded_bytes(ParityKind kind, int nodes, int64_t bytes);

// into ^= from. Both have the same length.
void xor_into(std::span<std::byte> into, std::span<const std::byte> from);

}  // namespace cairn::elastic
