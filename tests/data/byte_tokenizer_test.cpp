#include "data/tokenizer/byte_tokenizer.h"

#include <gtest/gtest.h>

#include "scratch.h"

namespace cairn::data {
namespace {

TEST(ByteTokenizer, GivesEachByteItsValue) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->encode("A\xff<|endoftext|>z"), (std::vector<int32_t>{65, 255, 256, 'z'}));
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
}

TEST(ByteTokenizer, GivesBackAnyBytes) {
  const auto tokenizer = make_byte_tokenizer();
  std::string bytes = "<|endoftext|>";
  for (int i = 0; i < 512; ++i) bytes += static_cast<char>(i * 7);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes);
}

TEST(ByteTokenizer, RefusesIdsItDoesNotHave) {
  const auto tokenizer = make_byte_tokenizer();
  for (const int32_t id : {-1, 257})
    EXPECT_EQ(refusal([&] { tokenizer->decode(std::span(&id, 1)); }), fmt::format("token id {}: a byte tokenizer has ids 0 to 256", id));
}

}  // namespace
}  // namespace cairn::data
