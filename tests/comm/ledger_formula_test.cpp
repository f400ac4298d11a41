// What the ledger booked, rank by rank and in all, against the formulas that choose_algorithm.h and coded_all_reduce.h state, for counts
// that the ranks do not divide. Each collective as a group starts it, and each algorithm by itself.
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include <gtest/gtest.h>

#include "comm/codec.h"
#include "comm/collectives/choose_algorithm.h"
#include "comm/collectives/collectives.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::On;
using namespace std::chrono_literals;

using Algorithm = Coroutine (*)(Exchange&, const Arguments&);

// One collective: what each rank does, and how many bytes rank r of n shall then have sent of S = count elements.
struct Deed {
  std::string name;
  std::function<void(World&)> act;
  std::function<double(int r)> bytes;
};

struct Case {
  On on;
  int ranks;
  int64_t count;
  Dtype dtype;
};

// A part of `whole` elements, of which the first ones get one more.
int64_t part(int64_t whole, int n, int r) { return whole / n + (r < whole % n ? 1 : 0); }

class LedgerFormula : public testing::TestWithParam<Case> {
 protected:
  int n() const { return GetParam().ranks; }
  int64_t count() const { return GetParam().count; }
  int64_t own(int r) const { return part(count(), n(), r); }
  double size() const { return GetParam().dtype == Dtype::bf16 ? 2 : 4; }
  double s() const { return size() * static_cast<double>(count()); }
  double share() const { return static_cast<double>(n() - 1) / n(); }
  int root() const { return n() / 2; }

  // Memory for `elements`; what is in it does not matter to the ledger.
  Span memory(std::vector<std::byte>& holder, int64_t elements) const {
    holder.assign(static_cast<size_t>(elements * size_of(GetParam().dtype)), std::byte{0});
    return {holder.data(), elements, GetParam().dtype};
  }

  // How many children a position has in a binomial tree, and whether it has a parent.
  static int children(int position, int n) {
    int found = 0;
    for (int child = 0; child < n; ++child) found += child > position && (child & (child - 1)) == position ? 1 : 0;
    return found;
  }

  double all_reduce_bytes(AllReduce how, int r) const {
    const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(n()))), extra = n() - power;
    if (how == AllReduce::tree) return (children(r, n()) + (r > 0 ? 1 : 0)) * s();
    if (how != AllReduce::halving) return 2 * share() * s();
    const double among_powers = 2.0 * (power - 1) / power * s();
    if (r >= 2 * extra) return among_powers;
    return r % 2 == 1 ? s() : among_powers + s();
  }

  void expect(const std::vector<Deed>& deeds) const;
  Deed alone(std::string name, Algorithm algorithm,
             std::function<Arguments(World&, std::vector<std::byte>&, std::vector<std::byte>&)> arguments,
             std::function<double(int r)> bytes) const;
};

void LedgerFormula::expect(const std::vector<Deed>& deeds) const {
  for (const Deed& deed : deeds) {
    const harness::Run run = harness::on_ranks(n(), {.on = GetParam().on}, deed.act);
    double total = 0;
    for (int r = 0; r < n(); ++r) {
      const double formula = deed.bytes(r);
      total += formula;
      EXPECT_NEAR(static_cast<double>(run.ledger.bytes_sent(r, Purpose::data)), formula, 0.01 * formula) << deed.name << " on rank " << r;
    }
    EXPECT_NEAR(static_cast<double>(run.ledger.total(Purpose::data).bytes), total, 0.01 * total) << deed.name << " in all";
    EXPECT_EQ(run.ledger.total().bytes, run.ledger.total(Purpose::data).bytes) << deed.name << " for something else";
  }
}

// An algorithm without a group around it.
Deed LedgerFormula::alone(std::string name, Algorithm algorithm,
                          std::function<Arguments(World&, std::vector<std::byte>&, std::vector<std::byte>&)> arguments,
                          std::function<double(int r)> bytes) const {
  const auto act = [algorithm, arguments](World& world) {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    Envelope envelope;
    envelope.group = 78;
    Exchange exchange(world.transport(), ranks, world.rank(), envelope, Purpose::data);
    std::vector<std::byte> a, b;
    const Arguments given = arguments(world, a, b);
    const Coroutine task = algorithm(exchange, given);
    EXPECT_TRUE(world.transport().drive([&] { return task.done(); }, world.clock().now() + 60s, "an algorithm"));
    if (task.error()) std::rethrow_exception(task.error());
  };
  return {std::move(name), act, std::move(bytes)};
}

TEST_P(LedgerFormula, OfReductions) {
  const auto reducing = [this](World& world, Group& group, AllReduce* chosen) {
    std::vector<std::byte> holder;
    const Span x = memory(holder, count());
    std::vector<int> ranks(static_cast<size_t>(n()));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (world.rank() == 0) {
      *chosen = choose_all_reduce(static_cast<int64_t>(s()), n(), world.transport().chunking(ranks), world.transport().link_facts(ranks));
    }
    group.all_reduce(x, Reduce::sum, {Purpose::data, "x"}).wait();
  };
  AllReduce chosen{};
  std::vector<Deed> deeds{{"all_reduce", [&](World& world) { reducing(world, world.everyone(), &chosen); },
                           [&](int r) { return all_reduce_bytes(chosen, r); }}};
  deeds.push_back({"reduce_scatter",
                   [this](World& world) {
                     std::vector<std::byte> a, b;
                     const Span in = memory(a, count()), out = memory(b, own(world.rank()));
                     world.everyone().reduce_scatter(out, in, Reduce::max, {Purpose::data, "x"}).wait();
                   },
                   [this](int) { return share() * s(); }});
  const auto in_place = [this](World&, std::vector<std::byte>& a, std::vector<std::byte>&) {
    Arguments arguments{.out = memory(a, count()), .root = root()};
    for (int r = 0; r < n(); ++r) arguments.counts.push_back(own(r));
    return arguments;
  };
  const auto by = [this](AllReduce how) { return [this, how](int r) { return all_reduce_bytes(how, r); }; };
  deeds.push_back(alone("direct", &all_reduce_direct, in_place, by(AllReduce::direct)));
  deeds.push_back(alone("ring", &all_reduce_ring, in_place, by(AllReduce::ring)));
  deeds.push_back(alone("halving", &all_reduce_halving, in_place, by(AllReduce::halving)));
  deeds.push_back(alone("tree", &all_reduce_tree, in_place, by(AllReduce::tree)));
  deeds.push_back(alone("reduce_flat", &reduce_flat, in_place, [this](int r) { return r == root() ? 0 : s(); }));
  deeds.push_back(alone("reduce_spread", &reduce_spread, in_place, [this](int r) { return r == root() ? share() * s() : s(); }));
  expect(deeds);
}

TEST_P(LedgerFormula, OfGatheringAndSpreading) {
  const auto parts = [this](World& world, std::vector<std::byte>& a, std::vector<std::byte>& b) {
    Arguments arguments{.out = memory(a, count()), .in = memory(b, own(world.rank()))};
    for (int r = 0; r < n(); ++r) arguments.counts.push_back(own(r));
    return arguments;
  };
  const auto all_but_one = [this](int) { return share() * s(); };
  std::vector<Deed> deeds{alone("direct", &all_gather_direct, parts, all_but_one), alone("ring", &all_gather_ring, parts, all_but_one),
                          alone("doubling", &all_gather_doubling, parts, all_but_one)};
  const auto whole = [this](World&, std::vector<std::byte>& a, std::vector<std::byte>&) {
    return Arguments{.out = memory(a, count()), .root = root()};
  };
  deeds.push_back(alone("broadcast_flat", &broadcast_flat, whole, [this](int r) { return r == root() ? (n() - 1) * s() : 0; }));
  deeds.push_back(alone("broadcast_tree", &broadcast_tree, whole, [this](int r) { return children((r - root() + n()) % n(), n()) * s(); }));
  deeds.push_back({"all_gather",
                   [this](World& world) {
                     std::vector<std::byte> a, b;
                     world.everyone().all_gather(memory(a, count()), memory(b, own(world.rank())), {Purpose::data, "x"}).wait();
                   },
                   all_but_one});
  deeds.push_back({"gather",
                   [this](World& world) {
                     std::vector<std::byte> a, b;
                     std::vector<int64_t> counts;
                     for (int r = 0; r < n(); ++r) counts.push_back(own(r));
                     world.everyone().gather(memory(a, count()), memory(b, own(world.rank())), root(), {Purpose::data, "x"}, counts).wait();
                   },
                   [this](int r) { return r == root() ? 0 : s() / n(); }});
  deeds.push_back(
      {"scatter",
       [this](World& world) {
         std::vector<std::byte> a, b;
         std::vector<int64_t> counts;
         for (int r = 0; r < n(); ++r) counts.push_back(own(r));
         world.everyone().scatter(memory(a, own(world.rank())), memory(b, count()), root(), {Purpose::data, "x"}, counts).wait();
       },
       [this](int r) { return r == root() ? share() * s() : 0; }});
  expect(deeds);
}

TEST_P(LedgerFormula, OfAllToAllAndUnevenParts) {
  const int64_t each = count() / n();
  const auto amount = [](int from, int to) { return int64_t{1000} * ((3 * from + 5 * to) % 4) + from; };  // some send nothing
  const double size_of_one = size();
  std::vector<Deed> deeds{{"all_to_all",
                           [&](World& world) {
                             std::vector<std::byte> a, b;
                             world.everyone().all_to_all(memory(a, each * n()), memory(b, each * n()), {Purpose::data, "x"}).wait();
                           },
                           [&](int) { return static_cast<double>((n() - 1) * each) * size_of_one; }}};
  deeds.push_back({"all_to_all, uneven",
                   [&](World& world) {
                     std::vector<int64_t> in, out;
                     for (int r = 0; r < n(); ++r) {
                       in.push_back(amount(world.rank(), r));
                       out.push_back(amount(r, world.rank()));
                     }
                     std::vector<std::byte> a, b;
                     const Span to = memory(a, std::accumulate(out.begin(), out.end(), int64_t{0}));
                     const Span from = memory(b, std::accumulate(in.begin(), in.end(), int64_t{0}));
                     world.everyone().all_to_all(to, from, {Purpose::data, "x"}, out, in).wait();
                   },
                   [&](int r) {
                     double sum = 0;
                     for (int to = 0; to < n(); ++to) sum += to == r ? 0 : size_of_one * static_cast<double>(amount(r, to));
                     return sum;
                   }});
  const auto uneven = [](int r) { return int64_t{777} * (r % 3); };
  std::vector<int64_t> counts;
  for (int r = 0; r < n(); ++r) counts.push_back(uneven(r));
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto arguments = [&](World& world, std::vector<std::byte>& a, std::vector<std::byte>& b) {
    return Arguments{.out = memory(a, all), .in = memory(b, uneven(world.rank())), .counts = counts};
  };
  const auto bytes = [&](int64_t elements) { return size_of_one * static_cast<double>(elements); };
  deeds.push_back(alone("all_gather_direct, uneven", &all_gather_direct, arguments, [&](int r) { return (n() - 1) * bytes(uneven(r)); }));
  // A ring passes on all parts but that of the next rank, doubling all but that of the one before.
  deeds.push_back(alone("all_gather_ring, uneven", &all_gather_ring, arguments, [&](int r) { return bytes(all - uneven((r + 1) % n())); }));
  deeds.push_back(alone("all_gather_doubling, uneven", &all_gather_doubling, arguments, [&](int r) {
    double sum = 0;
    for (int have = 1; have < n(); have *= 2) {
      for (int i = 0; i < std::min(have, n() - have); ++i) sum += bytes(uneven((r + i) % n()));
    }
    return sum;
  }));
  deeds.push_back({"reduce_scatter, uneven",
                   [&](World& world) {
                     std::vector<std::byte> a, b;
                     const Span out = memory(a, uneven(world.rank())), in = memory(b, all);
                     world.everyone().reduce_scatter(out, in, Reduce::sum, {Purpose::data, "x"}, counts).wait();
                   },
                   [&](int r) { return bytes(all - uneven(r)); }});
  expect(deeds);
}

class LedgerFormulaOfFloats : public LedgerFormula {};

// What a codec makes of so many floats, from the table in codec.h.
double code_bytes(const std::string& codec, int64_t count) {
  const auto blocks = [count](int64_t block) { return static_cast<double>((count + block - 1) / block); };
  const auto elements = static_cast<double>(count);
  if (codec == "fp32") return 4 * elements;
  if (codec == "bf16" || codec == "fp16") return 2 * elements;
  if (codec == "e3m0") return std::ceil(elements / 2) + 2 * blocks(128);
  return codec == "int8" ? elements + 4 * blocks(256) : elements + blocks(128);
}

TEST_P(LedgerFormulaOfFloats, OfTheCodedAllReduce) {
  const int64_t elements = int64_t{n()} * 9 * 256 - 6;  // blocks that the ranks divide, the last one short
  std::vector<Deed> deeds;
  for (const std::string& codec : codec_names()) {
    deeds.push_back({codec,
                     [codec, elements](World& world) {
                       std::vector<float> x(static_cast<size_t>(elements), 1.5f);
                       world.everyone().coded_all_reduce({x.data(), elements, Dtype::f32}, *make_codec(codec), {Purpose::data, "x"}).wait();
                     },
                     [this, codec, elements](int) { return 2 * share() * code_bytes(codec, elements); }});
    // Fewer blocks than ranks: who owns one gives its code to all, and gets a code from all; who owns none gives one to each who does.
    deeds.push_back({codec + ", one block",
                     [codec](World& world) {
                       std::vector<float> x(100, 1.5f);
                       world.everyone().coded_all_reduce({x.data(), 100, Dtype::f32}, *make_codec(codec), {Purpose::data, "x"}).wait();
                     },
                     [this, codec](int r) {
                       const bool blocked = codec == "int8" || codec == "e3m0" || codec.starts_with("fp8");
                       double sum = 0;
                       for (int to = 0; to < n(); ++to) {
                         const auto owned = [&](int rank) { return blocked ? (rank == 0 ? 100 : 0) : part(100, n(), rank); };
                         if (to != r) sum += code_bytes(codec, owned(to)) + code_bytes(codec, owned(r));
                       }
                       return sum;
                     }});
  }
  expect(deeds);
}

TEST_P(LedgerFormulaOfFloats, OfABarrierIsAWordToEachAndNoByte) {
  const harness::Run run = harness::on_ranks(n(), {.on = GetParam().on}, [](World& world) { world.everyone().barrier().wait(); });
  for (int r = 0; r < n(); ++r) EXPECT_EQ(run.ledger.messages_sent(r, Purpose::barrier), n() - 1);
  EXPECT_EQ(run.ledger.total(), (Ledger::Total{0, int64_t{n()} * (n() - 1)}));
}

std::vector<Case> cases(int64_t count, Dtype dtype, int most) {
  std::vector<Case> all;
  for (const On on : {On::local, On::net}) {
    for (const int n : {2, 3, 4, 5, 8, 9, 16}) {
      if (n <= most && (on == On::local || n <= 5)) all.push_back({on, n, count, dtype});
    }
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& one) { return harness::name(one.param.on) + std::to_string(one.param.ranks); }

INSTANTIATE_TEST_SUITE_P(Small, LedgerFormula, testing::ValuesIn(cases(10'007, Dtype::f32, 16)), name_of);
INSTANTIATE_TEST_SUITE_P(InPieces, LedgerFormula, testing::ValuesIn(cases(300'007, Dtype::bf16, 5)), name_of);
INSTANTIATE_TEST_SUITE_P(On, LedgerFormulaOfFloats, testing::ValuesIn(cases(10'007, Dtype::f32, 16)), name_of);

}  // namespace
}  // namespace cairn::comm
