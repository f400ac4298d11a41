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

// What is given back on another thread, a little at a time, is that message and nothing else.
TEST(IslandPost, ForgetsLongMessagesAndKeepsTheOthers) {
  constexpr size_t kLong = (size_t{48} << 20) + 7;
  harness::on_ranks(2, [&](comm::World& world) {
    IslandPost post({link_in_world(world.everyone()), 5, int64_t{64} << 20});
    const int other = 1 - world.rank();
    const auto about = [](int64_t step) { return Subject{Subject::Kind::parcel, step, 0}; };
    for (const int64_t step : {1, 2, 3}) post.send(other, about(step), bytes_of(kLong, static_cast<int>(step)), comm::Purpose::gradient);
    ASSERT_TRUE(post.wait([&] { return post.find(other, about(3)) != nullptr; }, post.now() + std::chrono::seconds(60)));
    post.forget(Subject::Kind::parcel, 1);
    IslandPost::Pieces own;
    own.push_back(bytes_of(kLong, 9));
    post.drop(std::move(own));
    post.forget(Subject::Kind::parcel, 2);
    EXPECT_EQ(post.find(other, about(1)), nullptr);
    EXPECT_EQ(post.find(other, about(2)), nullptr);
    ASSERT_NE(post.find(other, about(3)), nullptr);
    EXPECT_TRUE(*post.find(other, about(3)) == bytes_of(kLong, 3));
    world.everyone().barrier("read").wait_host();
  });
}

}  // namespace
}  // namespace cairn::sync
