#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/random.h"
#include "sync/one_byte/code.h"
#include "sync/one_byte/message.h"

namespace cairn::sync {
namespace {

float through(float slope) { return decode_slopes(SlopeCode::log8, encode_slopes(SlopeCode::log8, std::vector<float>{slope}).bytes, 1)[0]; }

TEST(SlopeCode, KeepsSlopesToWithinATwelfthAndTheirSign) {
  double before = 0;
  for (double slope = 3.6e-4; slope < 2.7e3; slope *= 1.003) {
    const double back = through(static_cast<float>(slope));
    EXPECT_LE(std::abs(back - slope), 0.066 * slope) << slope;
    EXPECT_GE(back, before);  // monotone
    EXPECT_EQ(through(static_cast<float>(-slope)), static_cast<float>(-back));
    before = back;
  }
}

TEST(SlopeCode, WhatIsOutsideIsZeroOrClippedAndCounted) {
  const std::vector<float> slopes{0, -0.0f, 1e-6f, 1e9f, -1e9f, std::nanf(""), std::numeric_limits<float>::infinity()};
  const EncodedSlopes encoded = encode_slopes(SlopeCode::log8, slopes);
  EXPECT_EQ(encoded.bytes.size(), slopes.size());
  EXPECT_EQ(encoded.clipped, 2);
  EXPECT_EQ(encoded.not_finite, 2);
  const std::vector<float> back = decode_slopes(SlopeCode::log8, encoded.bytes, 7);
  for (const size_t zero : {0u, 1u, 2u, 5u, 6u}) EXPECT_EQ(back[zero], 0.0f);
  EXPECT_NEAR(back[3], std::exp(63.0 / 8), 1e-3 * back[3]);
  EXPECT_EQ(back[4], -back[3]);
}

TEST(SlopeCode, SizesAreBitwiseFixed) {
  std::vector<std::byte> all(256);
  for (size_t i = 0; i < 256; ++i) all[i] = static_cast<std::byte>(i);
  const std::vector<float> sizes = decode_slopes(SlopeCode::log8, all, 256);
  for (int level = 1; level < 128; ++level) EXPECT_FLOAT_EQ(sizes[static_cast<size_t>(level)], std::exp((level - 64) / 8.0f));
  EXPECT_EQ(base::checksum(std::as_bytes(std::span(sizes))), 9538398311928341623u);
}

TEST(SlopeCode, UnbiasedIsRightOnAverage) {
  for (const float slope : {1e-4f, 0.5f, -3.3f}) {
    double mean = 0;
    for (uint64_t i = 0; i < 20000; ++i) {
      const base::Random random = base::Random(4).for_index(i);
      mean += decode_slopes(SlopeCode::log8, encode_slopes(SlopeCode::log8, std::vector<float>{slope}, &random).bytes, 1)[0] / 20000.0;
    }
    EXPECT_NEAR(mean, slope, 0.01 * std::abs(slope) + 5e-6);
  }
}

TEST(SlopeCode, OthersAreForComparing) {
  const std::vector<float> slopes{0.1f, -7, 0, -0.0f, 2, 3, -4, 5, -6};
  EXPECT_EQ(decode_slopes(SlopeCode::fp32, encode_slopes(SlopeCode::fp32, slopes).bytes, 9), slopes);
  const EncodedSlopes signs = encode_slopes(SlopeCode::sign, slopes);
  EXPECT_EQ(signs.bytes.size(), 2u);
  EXPECT_EQ(decode_slopes(SlopeCode::sign, signs.bytes, 9), (std::vector<float>{1, -1, 1, -1, 1, 1, -1, 1, -1}));
  EXPECT_THROW(base::parse_enum(kSlopeCodeNames, "code", "log9"), Error);
}

SlopeMessage example() {
  return {.run = 0x1122334455667788,
          .round = 7,
          .machine = 3,
          .slopes = 4,
          .weight = 2,
          .mean_loss = 1.5f,
          .codes = {std::byte{1}, std::byte{2}, std::byte{130}, std::byte{0}}};
}

TEST(SlopeMessage, Takes26BytesAndItsSlopes) {
  const std::vector<std::byte> bytes = encode_message(example());
  EXPECT_EQ(bytes.size(), 26u + 4u);
  EXPECT_EQ(decode_message(bytes, SlopeCode::log8), example());
}

TEST(SlopeMessage, EveryFlippedBitIsNoticed) {
  const std::vector<std::byte> good = encode_message(example());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_THROW(decode_message(bad, SlopeCode::log8), Error) << bit;
  }
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_THROW(decode_message(std::span(good).first(length), SlopeCode::log8), Error);
}

TEST(SlopeMessage, RecordsGiveTheirRoundsBack) {
  RoundRecord record{{.round = 7, .epoch = 2, .rate = 0.5f, .keep = 0.9f, .hash = 0x8877}, {example()}};
  accept_messages(record);
  EXPECT_EQ(record.manifest.accepted, (std::vector<RoundManifest::Entry>{{3, 4, crc_of(encode_message(example()))}}));
  std::vector<std::byte> records = encode_record(record);
  const size_t one = records.size();
  for (size_t i = 0; i < one; ++i) records.push_back(records[i]);
  const std::vector<RoundRecord> back = decode_records(records, SlopeCode::log8);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1].manifest, record.manifest);
  EXPECT_EQ(back[1].messages, record.messages);
  for (size_t length = 1; length < records.size(); ++length)
    if (length != one) {
      EXPECT_THROW(decode_records(std::span(records).first(length), SlopeCode::log8), Error) << length;
    }
  EXPECT_EQ(records_before(records, 7, SlopeCode::log8).size(), 0u);
  EXPECT_EQ(records_before(records, 8, SlopeCode::log8).size(), records.size());
  EXPECT_EQ(records_before(std::span(records).first(records.size() - 1), 8, SlopeCode::log8).size(), one);
  record.manifest.accepted[0].crc ^= 1;
  EXPECT_THROW(decode_records(encode_record(record), SlopeCode::log8), Error);
}

// The learning rate and the hash are protected too.
TEST(SlopeMessage, EveryFlippedBitOfARecordIsNoticed) {
  RoundRecord record{{.round = 7, .rate = 0.5f}, {example()}};
  accept_messages(record);
  const std::vector<std::byte> good = encode_record(record);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_THROW(decode_records(bad, SlopeCode::log8), Error) << bit;
  }
}

}  // namespace
}  // namespace cairn::sync
