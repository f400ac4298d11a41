// The algebra of parity: any one node follows from the others.
#include "elastic/parity_code.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::elastic {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Bytes> random_data(const ParityCode& code, uint64_t seed) {
  std::vector<Bytes> data;
  uint64_t state = seed * 2654435761u + 1;
  for (int node = 0; node < code.nodes; ++node) {
    Bytes& own = data.emplace_back(static_cast<size_t>(code.data_bytes));
    for (std::byte& one : own) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      one = static_cast<std::byte>(state >> 56);
    }
  }
  return data;
}

std::span<const std::byte> block(const Bytes& data, int64_t offset, int64_t bytes) {
  return std::span(data).subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
}

std::vector<Bytes> parity_of(const ParityCode& code, const std::vector<Bytes>& data) {
  std::vector<Bytes> parity;
  for (int holder = 0; holder < code.nodes; ++holder) {
    Bytes& own = parity.emplace_back(static_cast<size_t>(code.parity_bytes()));
    for (const ParityCode::Term& term : code.terms(holder))
      xor_into(own, block(data[static_cast<size_t>(term.node)], term.offset, code.parity_bytes()));
  }
  return parity;
}

TEST(ParityCode, RebuildsEveryLostNodeForTwoToEightNodesAndOddLengths) {
  for (const ParityKind kind : {ParityKind::exclusive_or, ParityKind::mirror})
    for (int nodes = 2; nodes <= 8; ++nodes)
      for (const int64_t bytes : {int64_t{1}, int64_t{63}, int64_t{997}, int64_t{4097}}) {
        const ParityCode code{kind, nodes, padded_bytes(kind, nodes, bytes)};
        const std::vector<Bytes> data = random_data(code, static_cast<uint64_t>(nodes * 10000 + bytes)), parity = parity_of(code, data);
        for (int lost = 0; lost < nodes; ++lost) {
          Bytes rebuilt(static_cast<size_t>(code.data_bytes));
          int64_t covered = 0;
          for (int holder = 0; holder < nodes; ++holder) {
            if (holder == lost) continue;
            const std::vector<ParityCode::Term> terms = code.terms(holder);
            for (const ParityCode::Term& mine : terms) {
              if (mine.node != lost) continue;
              Bytes sum = parity[static_cast<size_t>(holder)];
              for (const ParityCode::Term& other : terms)
                if (other.node != lost) xor_into(sum, block(data[static_cast<size_t>(other.node)], other.offset, code.parity_bytes()));
              std::copy(sum.begin(), sum.end(), rebuilt.begin() + mine.offset);
              covered += code.parity_bytes();
            }
          }
          ASSERT_EQ(covered, code.data_bytes) << nodes << " nodes, lost " << lost;
          ASSERT_EQ(rebuilt, data[static_cast<size_t>(lost)]) << nodes << " nodes, lost " << lost << ", " << bytes << " bytes";
        }
      }
}

TEST(ParityCode, NoNodeKeepsParityOfItsOwnDataAndEveryByteIsCoveredOnce) {
  for (int nodes = 2; nodes <= 8; ++nodes) {
    const ParityCode code{ParityKind::exclusive_or, nodes, padded_bytes(ParityKind::exclusive_or, nodes, 1000)};
    std::vector<int64_t> covered(static_cast<size_t>(nodes), 0);
    for (int holder = 0; holder < nodes; ++holder)
      for (const ParityCode::Term& term : code.terms(holder)) {
        EXPECT_NE(term.node, holder);
        covered[static_cast<size_t>(term.node)] += code.parity_bytes();
      }
    for (const int64_t bytes : covered) EXPECT_EQ(bytes, code.data_bytes);
  }
}

TEST(ParityCode, TakesAShareOfOneOverTheOtherNodes) {
  const ParityCode code{ParityKind::exclusive_or, 4, padded_bytes(ParityKind::exclusive_or, 4, 1'000'001)};
  EXPECT_LE(code.parity_bytes(), 1'000'001 / 3 + (64 << 10));
  EXPECT_EQ((ParityCode{ParityKind::mirror, 4, 6400}).parity_bytes(), 6400);
  EXPECT_EQ((ParityCode{ParityKind::exclusive_or, 1, 6400}).parity_bytes(), 0);
  EXPECT_EQ((ParityCode{ParityKind::none, 4, 6400}).parity_bytes(), 0);
}

TEST(ParityCode, RefusesAnUnknownWordAndNamesThoseThatAreKnown) {
  try {
    parity_kind_from("raid6");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "snapshot.memory.parity = raid6: no such code. Use xor, mirror or none.");
  }
}

}  // namespace
}  // namespace cairn::elastic
