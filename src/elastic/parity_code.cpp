#include "elastic/parity_code.h"

#include <cstring>

#include "base/check.h"

namespace cairn::elastic {

const char* word_of(ParityKind kind) {
  switch (kind) {
    case ParityKind::none:
      return "none";
    case ParityKind::exclusive_or:
      return "xor";
    case ParityKind::mirror:
      return "mirror";
  }
  return "?";
}

ParityKind parity_kind_from(const std::string& word) {
  for (const ParityKind kind : {ParityKind::none, ParityKind::exclusive_or, ParityKind::mirror})
    if (word == word_of(kind)) return kind;
  base::fail_input("snapshot.memory.parity = {}: no such code. Use xor, mirror or none.", word);
}

int64_t ParityCode::parity_bytes() const {
  if (!protects()) return 0;
  return kind == ParityKind::mirror ? data_bytes : data_bytes / (nodes - 1);
}

std::vector<ParityCode::Term> ParityCode::terms(int holder) const {
  std::vector<Term> terms;
  if (!protects()) return terms;
  if (kind == ParityKind::mirror) return {{(holder + nodes - 1) % nodes, 0}};
  for (int step = 1; step < nodes; ++step) {
    const int node = (holder + step) % nodes;
    const int block = holder < node ? holder : holder - 1;  // node has no block for itself
    terms.push_back({node, block * parity_bytes()});
  }
  return terms;
}

int64_t padded_bytes(ParityKind kind, int nodes, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const int64_t unit = kind == ParityKind::exclusive_or && nodes > 1 ? (nodes - 1) * kLine : kLine;
  return (bytes + unit - 1) / unit * unit;
}

void xor_into(std::span<std::byte> into, std::span<const std::byte> from) {
  CAIRN_CHECK(into.size() == from.size(), "{} and {} bytes", into.size(), from.size());
  std::byte* to = into.data();
  const std::byte* with = from.data();
  size_t left = into.size();
  for (; left >= 32; left -= 32, to += 32, with += 32) {  // the compiler makes vectors of it
    uint64_t a[4], b[4];
    std::memcpy(a, to, 32);
    std::memcpy(b, with, 32);
    for (int i = 0; i < 4; ++i) a[i] ^= b[i];
    std::memcpy(to, a, 32);
  }
  for (; left > 0; --left) *to++ ^= *with++;
}

}  // namespace cairn::elastic
