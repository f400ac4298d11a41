#include "sync/island_post.h"

#include <gtest/gtest.h>

#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

std::vector<std::byte> bytes_of(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 4099 + static_cast<size_t>(seed)) & 255);
  return bytes;
}

// Messages of three steps, of which those of the first are read and forgotten before those of the others are sent.
void expect_kept_apart(bool keeps_memory) {
  constexpr size_t kLong = (size_t{24} << 20) + 7;  // comes in pieces
  harness::on_ranks(2, [&](comm::World& world) {
    IslandPost post(
        {.link = link_in_world(world.everyone()), .signature = 5, .bytes_most = int64_t{64} << 20, .keeps_memory = keeps_memory});
    const int other = 1 - world.rank();
    const auto about = [](int64_t step) { return Subject{Subject::Kind::parcel, step, 0}; };
    const auto exchange = [&](int64_t step) {
      post.send(other, about(step), bytes_of(kLong - static_cast<size_t>(step), static_cast<int>(step)), comm::Purpose::gradient);
      EXPECT_TRUE(post.wait([&] { return post.find(other, about(step)) != nullptr; }, post.now() + std::chrono::seconds(60)));
    };
    exchange(1);
    const std::byte* const first = post.find(other, about(1))->data();
    EXPECT_TRUE(*post.find(other, about(1)) == bytes_of(kLong - 1, 1));
    post.forget(Subject::Kind::parcel, 1);
    EXPECT_EQ(post.find(other, about(1)), nullptr);
    exchange(2);
    exchange(3);
    for (const int64_t step : {2, 3})
      EXPECT_TRUE(*post.find(other, about(step)) == bytes_of(kLong - static_cast<size_t>(step), static_cast<int>(step))) << step;
    if (keeps_memory) {
      EXPECT_EQ(post.find(other, about(2))->data(), first);
      post.forget(Subject::Kind::parcel, 3);
      EXPECT_TRUE(post.room(kLong / 4).empty());  // what is far too long stays for others
      EXPECT_FALSE(post.room(kLong - 3).empty());
      EXPECT_FALSE(post.room(kLong - 3).empty());
    }
    EXPECT_TRUE(post.room(kLong - 3).empty());  // there is no more, or never was
    world.everyone().barrier("read").wait_host();
  });
}

TEST(IslandPost, ForgetsLongMessagesAndKeepsTheOthers) {
  expect_kept_apart(false);
  expect_kept_apart(true);
}

}  // namespace
}  // namespace cairn::sync
