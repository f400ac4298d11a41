// Collectives in shared memory: parts cut into chunks, memory of all kinds, many operations at once, and no room.
#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/shm/slots.h"
#include "comm/shm/stream_copy.h"
#include "comm/world.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::On;
using harness::on_ranks;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::data, "w"};

enum class Memory { shared, own, mixed };

// Memory from the group or not, as asked for; `mixed`: every second rank has its own.
struct Buffer {
  Buffer(Group& group, Memory memory, int64_t count) : count(count) {
    const bool shared = memory == Memory::shared || (memory == Memory::mixed && group.rank() % 2 == 0);
    held = shared ? group.allocate(std::max<int64_t>(count, 1) * 4) : allocate_plain(std::max<int64_t>(count, 1) * 4);
    data = static_cast<float*>(held.get());
  }
  Span span() const { return {data, count, Dtype::f32}; }
  std::shared_ptr<void> held;
  float* data;
  int64_t count;
};

// What rank r has at i: small whole numbers, so that sums are exact.
float value(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 13) % 101); }

void fill(const Buffer& x, int rank) {
  for (int64_t i = 0; i < x.count; ++i) x.data[i] = value(rank, i);
}

struct Case {
  int ranks;
  Memory memory;
  int64_t count;
};

class ShmCollectives : public testing::TestWithParam<Case> {
 protected:
  void on_all(const std::function<void(World&)>& body) const { on_ranks(GetParam().ranks, {.on = On::net, .deadline = 30s}, body); }
};

TEST_P(ShmCollectives, SumsAreThoseOfAllRanks) {
  on_all([](World& world) {
    Group& all = world.everyone();
    Buffer x(all, GetParam().memory, GetParam().count);
    for (int round = 0; round < 6; ++round) {  // places are used again
      fill(x, world.rank() + round);
      all.all_reduce(x.span(), Reduce::sum, kW).wait();
      for (int64_t i = 0; i < x.count; ++i) {
        float sum = 0;
        for (int r = 0; r < world.size(); ++r) sum += value(r + round, i);
        ASSERT_EQ(x.data[i], sum) << i << " of round " << round;
      }
    }
  });
}

TEST_P(ShmCollectives, GatheredPartsAreEverybodys) {
  on_all([](World& world) {
    Group& all = world.everyone();
    std::vector<int64_t> counts(static_cast<size_t>(world.size()), GetParam().count);
    counts.back() = GetParam().count / 3;  // fewer chunks than the others'
    const Buffer in(all, GetParam().memory, counts[world.rank()]);
    const Buffer out(all, GetParam().memory, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    for (int round = 0; round < 3; ++round) {
      fill(in, world.rank() + round);
      all.all_gather(out.span(), in.span(), kW, counts).wait();
      int64_t at = 0;
      for (int r = 0; r < world.size(); ++r) {
        for (int64_t i = 0; i < counts[r]; ++i, ++at) ASSERT_EQ(out.data[at], value(r + round, i)) << i << " of rank " << r;
      }
    }
  });
}

TEST_P(ShmCollectives, ScatteredSumsAreThoseOfAllRanks) {
  on_all([](World& world) {
    Group& all = world.everyone();
    std::vector<int64_t> counts(static_cast<size_t>(world.size()), GetParam().count);
    counts.front() = GetParam().count / 3;
    const Buffer in(all, GetParam().memory, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    const Buffer out(all, GetParam().memory, counts[world.rank()]);
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
    for (int round = 0; round < 3; ++round) {
      fill(in, world.rank() + round);
      all.reduce_scatter(out.span(), in.span(), Reduce::sum, kW, counts).wait();
      for (int64_t i = 0; i < out.count; ++i) {
        float sum = 0;
        for (int r = 0; r < world.size(); ++r) sum += value(r + round, begin + i);
        ASSERT_EQ(out.data[i], sum) << i;
      }
    }
  });
}

// Every third rank gives nothing, the others much or more, and all go on for a different time.
TEST_P(ShmCollectives, PartsGoFromEachToEach) {
  on_all([](World& world) {
    Group& all = world.everyone();
    const int n = world.size(), me = world.rank();
    const auto length = [](int from, int to) { return GetParam().count * (from % 3) * (to + 1) / 4; };
    std::vector<int64_t> outs, ins;
    for (int r = 0; r < n; ++r) {
      outs.push_back(length(r, me));
      ins.push_back(length(me, r));
    }
    const Buffer in(all, GetParam().memory, std::accumulate(ins.begin(), ins.end(), int64_t{0}));
    const Buffer out(all, GetParam().memory, std::accumulate(outs.begin(), outs.end(), int64_t{0}));
    for (int round = 0; round < 3; ++round) {
      int64_t at = 0;
      for (int r = 0; r < n; ++r) {
        for (int64_t i = 0; i < ins[r]; ++i, ++at) in.data[at] = value(me * n + r + round, i);
      }
      all.all_to_all(out.span(), in.span(), kW, outs, ins).wait();
      at = 0;
      for (int r = 0; r < n; ++r) {
        for (int64_t i = 0; i < outs[r]; ++i, ++at) ASSERT_EQ(out.data[at], value(r * n + me + round, i)) << i << " of rank " << r;
      }
    }
  });
}

std::string case_name(const testing::TestParamInfo<Case>& one) {
  constexpr std::array<const char*, 3> kNames{"shared", "own", "mixed"};
  return fmt::format("{}ranks{}of{}", one.param.ranks, kNames[static_cast<size_t>(one.param.memory)], one.param.count);
}

// A part is cut at 65,536 floats.
// The long ones are several chunks of a part: of 1 MB between two ranks, 2 MB / 3 among three, and of 4 MB where all is shared.
INSTANTIATE_TEST_SUITE_P(In, ShmCollectives,
                         testing::Values(Case{2, Memory::shared, 1}, Case{2, Memory::own, 2'047}, Case{2, Memory::shared, 2'049},
                                         Case{3, Memory::own, 5}, Case{2, Memory::own, 1'050'001}, Case{2, Memory::shared, 2'100'003},
                                         Case{3, Memory::mixed, 1'050'003}, Case{4, Memory::own, 66'000}, Case{2, Memory::mixed, 65'536}),
                         case_name);

// More than there are slots, small and large, begun before any is waited for.
TEST(ShmGroup, ManyAtOnceKeepTheirOrderAndTheirSums) {
  on_ranks(3, {.on = On::net, .deadline = 30s}, [](World& world) {
    Group &all = world.everyone(), &again = world.group({2, 0, 1}, "again");
    std::vector<Buffer> buffers;
    std::vector<Work> works;
    constexpr int kMany = 24;
    for (int k = 0; k < kMany; ++k) buffers.emplace_back(all, k % 2 ? Memory::own : Memory::shared, k % 5 == 0 ? 100'000 : 100 + k);
    for (int k = 0; k < kMany; ++k) {
      std::fill(buffers[k].data, buffers[k].data + buffers[k].count, static_cast<float>(k + world.rank()));
      works.push_back((k % 3 == 0 ? again : all).all_reduce(buffers[k].span(), Reduce::sum, kW));
    }
    for (int k = kMany - 1; k >= 0; --k) {
      works[k].wait();
      ASSERT_EQ(buffers[k].data[0], static_cast<float>(3 * k + 3));
      ASSERT_EQ(buffers[k].data[buffers[k].count - 1], static_cast<float>(3 * k + 3));
    }
  });
}

// The memory that parts are copied to goes round: what nobody has read yet must not be written over, though laps end in different places.
TEST(ShmGroup, WhatIsNotReadYetStaysWhereItIs) {
  on_ranks(2, {.on = On::net, .deadline = 30s}, [](World& world) {
    constexpr int64_t kPart = 25'600;  // ten of them in a lap, and a little more
    Group& all = world.everyone();
    const auto gather = [&](Group& group, const Buffer& out, const Buffer& in) { return group.all_gather(out.span(), in.span(), kW); };
    const Buffer in(all, Memory::own, kPart), out(all, Memory::own, 2 * kPart);
    const Buffer little_in(all, Memory::own, 4'096), little_out(all, Memory::own, 2 * 4'096);
    for (int k = 0; k < 10; ++k) gather(all, out, in).wait();
    gather(all, little_out, little_in).wait();
    std::vector<Buffer> ins, outs;
    std::vector<Work> works;
    constexpr int kMany = 12;
    const auto begin = [&] {
      for (int k = 0; k < kMany; ++k) works.push_back(gather(world.group({0, 1}, std::to_string(k % 4)), outs[k], ins[k]));
    };
    for (int k = 0; k < kMany; ++k) {
      ins.emplace_back(all, Memory::own, kPart), outs.emplace_back(all, Memory::own, 2 * kPart);
      std::fill(ins[k].data, ins[k].data + kPart, static_cast<float>(100 * world.rank() + k));
    }
    if (world.rank() == 0) begin();
    all.barrier("the first has begun all").wait();
    if (world.rank() == 1) begin();
    for (int k = 0; k < kMany; ++k) {
      works[k].wait();
      for (const int rank : {0, 1})
        for (const int64_t i : {int64_t{0}, kPart - 1}) ASSERT_EQ(outs[k].data[rank * kPart + i], static_cast<float>(100 * rank + k)) << k;
    }
  });
}

// Operations of all kinds and lengths, in memory of all kinds, in groups that overlap, many begun before the first is waited for.
class ShmCollectivesAtRandom : public testing::TestWithParam<uint64_t> {};

TEST_P(ShmCollectivesAtRandom, EverybodyHasWhatIsTheirs) {
  on_ranks(3, {.on = On::net, .deadline = 60s}, [](World& world) {
    const base::Random random(GetParam());
    struct Begun {
      Buffer in, out;
      Work work;
      int kind;
      Group* group;
      int64_t part;
      int salt;
    };
    std::deque<Begun> under_way;
    const auto own_value = [](int rank, int salt, int64_t i) { return static_cast<float>((i * 3 + rank * 17 + salt * 5) % 61); };
    const auto finish = [&](Begun& one) {
      one.work.wait();
      const int n = one.group->size(), me = one.group->rank();
      const auto sum = [&](int64_t i) {
        float total = 0;
        for (int rank = 0; rank < n; ++rank) total += own_value(rank, one.salt, i);
        return total;
      };
      for (int64_t i = 0; i < one.out.count; i += 1 + one.out.count / 97) {
        const float found = one.out.data[i];
        const int64_t from = one.part == 0 ? 0 : i / one.part, at = one.part == 0 ? 0 : i % one.part;
        const float expected = one.kind == 0   ? sum(i)                                                            // all_reduce
                               : one.kind == 1 ? own_value(static_cast<int>(from), one.salt, at)                   // all_gather
                               : one.kind == 2 ? sum(me * one.part + i)                                            // reduce_scatter
                                               : own_value(static_cast<int>(from), one.salt, me * one.part + at);  // all_to_all
        ASSERT_EQ(found, expected) << "kind " << one.kind << ", " << one.part << " elements of each, operation " << one.salt << ", at "
                                   << i;
      }
    };
    constexpr int64_t kLengths[] = {0, 1, 7, 500, 1'023, 2'048, 2'049, 8'000, 16'384, 30'000, 33'000, 120'000, 300'000};
    for (uint64_t k = 0; k < 120; ++k) {
      const auto draw = [&](uint64_t what, uint64_t n) { return static_cast<int>(random.below(8 * k + what, n)); };
      static const std::pair<std::vector<int>, const char*> kGroups[] = {
          {{0, 1, 2}, "all"}, {{0, 1}, "first"}, {{2, 0, 1}, "turned"}, {{1, 2}, "last"}};
      const auto& [ranks, name] = kGroups[draw(0, 4)];
      const int kind = draw(1, 4), salt = static_cast<int>(k);
      const int64_t part = kLengths[draw(2, std::size(kLengths))];
      const auto in_memory = static_cast<Memory>(draw(3, 3)), out_memory = static_cast<Memory>(draw(4, 3));
      while (static_cast<int>(under_way.size()) > draw(5, 9)) finish(under_way.front()), under_way.pop_front();
      if (std::find(ranks.begin(), ranks.end(), world.rank()) == ranks.end()) continue;
      Group* const group = &world.group(ranks, name);
      const int n = group->size();
      const int64_t in_count = kind == 1 ? part : n * part, out_count = kind == 2 ? part : n * part;
      Begun one{{*group, kind == 0 ? out_memory : in_memory, in_count}, {*group, out_memory, out_count}, {}, kind, group, part, salt};
      for (int64_t i = 0; i < in_count; ++i) (kind == 0 ? one.out : one.in).data[i] = own_value(group->rank(), salt, i);
      one.work = kind == 0   ? group->all_reduce(one.out.span(), Reduce::sum, kW)
                 : kind == 1 ? group->all_gather(one.out.span(), one.in.span(), kW)
                 : kind == 2 ? group->reduce_scatter(one.out.span(), one.in.span(), Reduce::sum, kW)
                             : group->all_to_all(one.out.span(), one.in.span(), kW);
      under_way.push_back(std::move(one));
    }
    for (Begun& one : under_way) finish(one);
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, ShmCollectivesAtRandom, testing::Range<uint64_t>(1, 7));

TEST(ShmGroup, MoreGroupsThanADirectoryHoldsSendMessages) {
  on_ranks(2, {.on = On::net, .deadline = 30s}, [](World& world) {
    for (int k = 0; k < 1'100; ++k) {
      float x = static_cast<float>(world.rank() + k);
      world.group({0, 1}, std::to_string(k)).all_reduce({&x, 1, Dtype::f32}, Reduce::sum, kW).wait();
      ASSERT_EQ(x, static_cast<float>(2 * k + 1));
    }
  });
}

TEST(ShmGroup, CountsThatDoNotAgreeAreAnErrorThatNamesTheRank) {
  on_ranks(2, {.on = On::net, .deadline = 10s}, [](World& world) {
    std::vector<float> in(world.rank() == 0 ? 3 : 5), out(6);
    try {
      // Rank 0 says 3 and 3, rank 1 says 1 and 5.
      const std::vector<int64_t> counts = world.rank() == 0 ? std::vector<int64_t>{3, 3} : std::vector<int64_t>{1, 5};
      world.everyone().all_gather({out.data(), 6, Dtype::f32}, {in.data(), static_cast<int64_t>(in.size()), Dtype::f32}, kW, counts).wait();
      ADD_FAILURE() << "rank " << world.rank() << " noticed nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.peer(), 1 - world.rank()) << error.what();
      EXPECT_NE(std::string(error.what()).find("bytes"), std::string::npos) << error.what();
    }
  });
}

TEST(ShmSlotsDirectory, SaysWhereSlotsAreAndThatThereAreNoMore) {
  const auto directory = std::make_unique<ShmSlotsDirectory>();
  EXPECT_FALSE(directory->find(8));
  int64_t entered = 0;
  while (directory->enter(static_cast<uint64_t>(entered) * 4'096, entered)) ++entered;  // all at the same place of the table
  ASSERT_GT(entered, 1'000);
  for (int64_t i = 0; i < entered; ++i) ASSERT_EQ(directory->find(static_cast<uint64_t>(i) * 4'096), i);
  EXPECT_EQ(directory->find(7), ShmSlotsDirectory::kNone);
}

TEST(StreamCopy, CopiesEveryByteAndNoOther) {
  for (const int64_t bytes : {0, 1, 63, 64, 65, 1'000, 4'096 + 17}) {
    for (const int64_t shift : {0, 1, 16, 63}) {
      std::vector<std::byte> from(static_cast<size_t>(bytes) + 64), to(static_cast<size_t>(bytes) + 256, std::byte{7});
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31);
      stream_copy(to.data() + 64 + shift, from.data() + shift, bytes);
      for (int64_t i = 0; i < static_cast<int64_t>(to.size()); ++i) {
        const int64_t at = i - 64 - shift;
        ASSERT_EQ(to[i], at >= 0 && at < bytes ? from[at + shift] : std::byte{7}) << bytes << " bytes, " << shift << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace cairn::comm
