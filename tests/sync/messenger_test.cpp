#include "sync/islands/messenger.h"

#include <gtest/gtest.h>

#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

std::vector<std::byte> bytes_of(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 4099 + static_cast<size_t>(seed)) & 255);
  return bytes;
}

// Messages of three steps. Those of the first are read and forgotten before the others are sent.
void expect_kept_apart(bool reuse_buffers) {
  constexpr size_t kLong = (size_t{24} << 20) + 7;  // travels in pieces
  harness::on_ranks(2, [&](comm::World& world) {
    IslandMessenger messenger(
        {.link = in_world_link(world.everyone()), .signature = 5, .max_message_bytes = int64_t{64} << 20, .reuse_buffers = reuse_buffers});
    const int other = 1 - world.rank();
    const auto tag = [](int64_t step) { return MessageTag{MessageTag::Kind::update, step, 0}; };
    const auto exchange = [&](int64_t step) {
      messenger.send(other, tag(step), bytes_of(kLong - static_cast<size_t>(step), static_cast<int>(step)), comm::Purpose::gradient);
      EXPECT_TRUE(messenger.wait([&] { return messenger.find(other, tag(step)) != nullptr; }, messenger.now() + std::chrono::seconds(60)));
    };
    exchange(1);
    const std::byte* const first = messenger.find(other, tag(1))->data();
    EXPECT_TRUE(*messenger.find(other, tag(1)) == bytes_of(kLong - 1, 1));
    messenger.forget(MessageTag::Kind::update, 1);
    EXPECT_EQ(messenger.find(other, tag(1)), nullptr);
    exchange(2);
    exchange(3);
    for (const int64_t step : {2, 3})
      EXPECT_TRUE(*messenger.find(other, tag(step)) == bytes_of(kLong - static_cast<size_t>(step), static_cast<int>(step))) << step;
    if (reuse_buffers) {
      EXPECT_EQ(messenger.find(other, tag(2))->data(), first);
      messenger.forget(MessageTag::Kind::update, 3);
      EXPECT_TRUE(messenger.take_buffer(kLong / 4).empty());  // a buffer that is far too long is not used
      EXPECT_FALSE(messenger.take_buffer(kLong - 3).empty());
      EXPECT_FALSE(messenger.take_buffer(kLong - 3).empty());
    }
    EXPECT_TRUE(messenger.take_buffer(kLong - 3).empty());  // none is left, or there never was one
    world.everyone().barrier("read").wait_host();
  });
}

TEST(IslandMessenger, ForgetsLongMessagesAndKeepsTheOthers) {
  expect_kept_apart(false);
  expect_kept_apart(true);
}

}  // namespace
}  // namespace cairn::sync
