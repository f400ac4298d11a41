// Hostile bytes against the reader of safetensors headers: what is accepted lies within the file, covers it without overlap, and is written
// again as it was read; all else is a cairn::Error of a corrupt file with a short printable reason.
// The long form: test_snapshot --gtest_also_run_disabled_tests --gtest_filter='*Fuzz.DISABLED_*', built with the address sanitizer.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/fuzz.h"
#include "snapshot/safetensors_header.h"

namespace cairn::snapshot {
namespace {

using comm::fuzz::boundary;
using comm::fuzz::Random;

// A good file of up to five tensors; `data_bytes` of them follow its header.
std::string good_file(Random& random) {
  std::vector<TensorEntry> entries;
  for (uint64_t i = random.below(6); i > 0; --i) {
    TensorEntry entry{.name = fmt::format("layers.{}.{}", i, random.one_in(4) ? "w\u00e9\"\\" : "weight"),
                      .dtype = static_cast<SafetensorsDtype>(random.below(10))};
    for (uint64_t dims = random.below(4); dims > 0; --dims) entry.shape.push_back(static_cast<int64_t>(random.below(5)));
    entries.push_back(std::move(entry));
  }
  std::string file = format_safetensors_header(
      entries, random.one_in(2) ? std::map<std::string, std::string>{{"format", "pt"}} : std::map<std::string, std::string>{});
  if (!entries.empty()) file.resize(static_cast<size_t>(entries.back().end), 'd');
  return file;
}

// Words that a parser must not stumble over, put anywhere.
const std::vector<std::string> kPieces{"{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"",
                                       ",",
                                       ":",
                                       "null",
                                       "-1",
                                       "1e9",
                                       "18446744073709551615",
                                       "9223372036854775808",
                                       "0",
                                       "\\u0000",
                                       "\xff",
                                       "\xf0\x9f",
                                       "\"shape\":[0,4611686018427387904,8]",
                                       "\"dtype\":\"F32\"",
                                       "\"data_offsets\":[4,0]",
                                       "[[[[[[[["};

void mutate(Random& random, std::string& file) {
  if (file.empty()) return;
  const size_t at = random.below(std::min<size_t>(file.size(), 600)), count = 1 + random.below(std::min<size_t>(file.size() - at, 40));
  switch (random.below(8)) {
    case 0: {  // the length of the header
      uint64_t length = 0;
      if (file.size() >= 8)
        std::memcpy(&length, file.data(), 8), length = boundary(random, length, file.size() - 8), std::memcpy(file.data(), &length, 8);
      break;
    }
    case 1:
      file[at] = static_cast<char>(file[at] ^ (1 << random.below(8)));
      break;
    case 2:
      file.resize(at);
      break;
    case 3:
      file.insert(at, file.substr(at, count));
      break;
    case 4:
      file.erase(at, count);
      break;
    case 5:
      file.insert(at, kPieces[random.below(kPieces.size())]);
      break;
    case 6: {  // a digit: sizes and offsets are what a reader believes
      const size_t digit = file.find_first_of("0123456789", std::max<size_t>(at, 8));
      if (digit != std::string::npos) file[digit] = static_cast<char>('0' + random.below(10));
      break;
    }
    default:
      for (size_t i = at; i < at + count; ++i) file[i] = static_cast<char>(random.bits());
  }
}

// The header's length made right again, so that mutations reach beyond the first check.
void mend_length(std::string& file) {
  const size_t end = file.rfind('}');
  if (file.size() < 8 || end == std::string::npos || end < 8) return;
  const uint64_t length = std::min<uint64_t>((end + 1 - 8 + 7) / 8 * 8, file.size() - 8);
  std::memcpy(file.data(), &length, 8);
}

struct Seen {
  int64_t accepted = 0, refused = 0;
};

void check_accepted(const SafetensorsHeader& header, const std::string& file) {
  int64_t covered = -1;
  std::vector<TensorEntry> again = header.entries;
  for (const TensorEntry& entry : header.entries) {
    int64_t bytes = bytes_of(entry.dtype);
    for (const int64_t dim : entry.shape) bytes *= dim;
    EXPECT_EQ(entry.end - entry.begin, bytes);
    EXPECT_TRUE(covered < 0 || entry.begin == covered);
    EXPECT_GE(entry.begin, 8);
    covered = entry.end;
  }
  EXPECT_TRUE(covered < 0 || covered == static_cast<int64_t>(file.size()));
  std::string written = format_safetensors_header(again, header.metadata);
  if (!again.empty()) written.resize(static_cast<size_t>(again.back().end), 'd');
  const SafetensorsHeader back = parse_safetensors_header(std::as_bytes(std::span(written)), "again");
  EXPECT_EQ(back.entries, again);
  EXPECT_EQ(back.metadata, header.metadata);
}

void one_input(uint64_t seed, Seen& seen) {
  Random random(seed);
  std::string made = good_file(random);
  for (uint64_t i = random.below(5); i > 0; --i) mutate(random, made);
  if (random.one_in(2)) mend_length(made);
  const std::unique_ptr<char[]> exact(new char[made.size()]);  // so that a byte too many is seen by the sanitizer
  std::copy(made.begin(), made.end(), exact.get());
  try {
    check_accepted(parse_safetensors_header(std::as_bytes(std::span(exact.get(), made.size())), "dir/x.safetensors"), made);
    ++seen.accepted;
  } catch (const Error& error) {
    ++seen.refused;
    const std::string said = error.what();
    EXPECT_EQ(error.kind(), Error::Kind::corrupt_file) << said;
    EXPECT_EQ(said.rfind("dir/x.safetensors", 0), 0u) << said;
    EXPECT_LT(said.size(), 600u) << said;
  }
}

void run(uint64_t inputs) {
  Seen seen;
  for (uint64_t seed = 0; seed < inputs && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    one_input(seed, seen);
  }
  EXPECT_GT(seen.accepted, static_cast<int64_t>(inputs / 20));
  EXPECT_GT(seen.refused, static_cast<int64_t>(inputs / 4));
}

TEST(SafetensorsFuzz, RefusesOrUnderstandsWhateverItIsGiven) { run(3'000); }
TEST(SafetensorsFuzz, DISABLED_AMillionInputs) { run(1'000'000); }

}  // namespace
}  // namespace cairn::snapshot
