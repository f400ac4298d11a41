#include "harness/chaos.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "base/random.h"
#include "comm/affine_map.h"
#include "comm/codec.h"
#include "harness/chaos_values.h"
#include "harness/link_facts_transport.h"
#include "harness/ranks.h"

namespace cairn::harness {
namespace {

using comm::Dtype;
using comm::Fault;
using comm::OperationKind;
using comm::Reduce;
using comm::Span;
using std::chrono::nanoseconds;
using namespace std::chrono_literals;

constexpr nanoseconds kLostAfter = 3s;
constexpr nanoseconds kLongest = 60s;  // virtual: three deadlines

// Numbers drawn one after the other.
class Dice {
 public:
  explicit Dice(const base::Random& random) : random_(random) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_.below(next_++, static_cast<uint64_t>(n))); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  nanoseconds between(nanoseconds low, nanoseconds high) { return nanoseconds(between(low.count(), high.count())); }
  template <typename T>
  T any_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<int64_t>(values.size())));
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(static_cast<int64_t>(i))]);
  }

 private:
  base::Random random_;
  uint64_t next_ = 0;
};

// --- making a story ---

comm::LinkModel make_link(Dice& dice, int ranks) {
  comm::LinkModel link;
  link.jitter = dice.any_of({0.0, 0.5, 3.0});
  if (dice.one_in(4)) link.latency_sigma = 0.5;
  if (dice.one_in(4)) link.contention = comm::LinkModel::Contention::per_nic;
  if (dice.one_in(4)) link.bytes_per_s = 1e6;
  if (dice.one_in(6)) link.loss = 0.01;
  if (dice.one_in(4)) {
    link.latency_matrix.resize(static_cast<size_t>(ranks));
    for (auto& row : link.latency_matrix) {
      for (int to = 0; to < ranks; ++to) row.push_back(dice.between(1us, 5ms));
    }
  }
  return link;
}

std::vector<Story::Members> make_groups(Dice& dice, int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<Story::Members> groups;
  if (ranks >= 4 && dice.one_in(3)) {  // two islands that know nothing of each other
    dice.shuffle(all);
    const auto cut = all.begin() + dice.between(2, ranks - 2);
    return {{{all.begin(), cut}, ""}, {{cut, all.end()}, ""}, {{all.begin(), cut}, "background"}};
  }
  groups.push_back({all, ""});
  for (int64_t more = dice.below(4); more > 0; --more) {
    std::vector<int> some = all;
    dice.shuffle(some);
    some.resize(static_cast<size_t>(dice.between(2, ranks)));
    groups.push_back({some, fmt::format("group {}", groups.size())});
  }
  return groups;
}

std::vector<int64_t> make_counts(Dice& dice, int members, bool even) {
  const int64_t most = dice.any_of<int64_t>({0, 1, 2, 7, 64, 333, 2000});
  std::vector<int64_t> counts;
  for (int i = 0; i < members; ++i) counts.push_back(even ? most : dice.between(0, most));
  return counts;
}

Story::Operation make_operation(Dice& dice, const Story& story) {
  Story::Operation operation;
  operation.group = static_cast<int>(dice.below(static_cast<int64_t>(story.groups.size())));
  const int members = static_cast<int>(story.groups[operation.group].ranks.size());
  operation.kind = static_cast<OperationKind>(dice.between(0, static_cast<int64_t>(comm::kLastOperation)));
  if (dice.one_in(3)) operation.kind = OperationKind::all_reduce;
  operation.dtype = dice.any_of({Dtype::f32, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::i64, Dtype::u8});
  if (operation.kind == OperationKind::coded_all_reduce) operation.dtype = Dtype::f32;
  if (operation.kind == OperationKind::all_scan && operation.dtype != Dtype::f64) operation.dtype = Dtype::f32;
  operation.reduce = dice.any_of({Reduce::sum, Reduce::sum, Reduce::max, Reduce::min});
  operation.root = static_cast<int>(dice.below(members));
  operation.to = static_cast<int>((operation.root + dice.between(1, members - 1)) % members);
  const bool even = dice.one_in(2);
  const int rows = operation.kind == OperationKind::all_to_all ? members : 1;
  operation.counts.push_back(make_counts(dice, members, even));
  for (int row = 1; row < rows; ++row) operation.counts.push_back(even ? operation.counts[0] : make_counts(dice, members, false));
  return operation;
}

Fault make_fault(Dice& dice, const Story& story) {
  using Kind = Fault::Kind;
  const int n = story.ranks;
  Fault fault;
  fault.kind = static_cast<Kind>(dice.between(0, static_cast<int64_t>(Kind::corrupt)));
  fault.rank = static_cast<int>(dice.below(n));
  fault.from = static_cast<int>(dice.below(n));
  fault.to = static_cast<int>((fault.from + dice.between(1, n - 1)) % n);
  const auto operations = static_cast<int64_t>(story.operations.size());
  switch (dice.below(3)) {
    case 0:
      fault.before_collective = dice.below(operations);
      break;
    case 1:
      fault.at = dice.between(0us, operations * 80us);
      break;
    default:
      fault.message = dice.below(3 * operations);
  }
  if (fault.kind == Kind::freeze || fault.kind == Kind::partition)
    fault.lasts = dice.any_of({0ns, 0ns, nanoseconds(100us), nanoseconds(2s), nanoseconds(7s)});
  if (fault.kind == Kind::delay) fault.by = dice.between(1us, 2s);
  if (fault.kind == Kind::slow) fault.by = dice.between(0ms, 50ms), fault.factor = static_cast<double>(dice.between(1, 100));
  fault.bit = dice.below(1 << 20);
  if (fault.kind == Kind::partition) {
    for (int rank = 0; rank < n; ++rank) (dice.one_in(2) ? fault.these : fault.those).push_back(rank);
    fault.one_way = dice.one_in(3);
  }
  return fault;
}

// --- what the ranks do ---

// Floats as a codec leaves them.
std::vector<std::byte> through(const comm::Codec& codec, std::vector<std::byte> x) {
  const auto count = static_cast<int64_t>(x.size() / sizeof(float));
  std::vector<std::byte> codes(static_cast<size_t>(codec.encoded_bytes(count)));
  codec.encode(reinterpret_cast<const float*>(x.data()), count, codes.data());
  codec.decode(codes.data(), count, reinterpret_cast<float*>(x.data()));
  return x;
}

struct Buffers {
  std::vector<std::byte> in, out, expected, factors;
};

// One rank's course through the story. Lives longer than its world, since operations may be under way when a rank ends by an error.
class Actor {
 public:
  Actor(const Story& story, std::vector<std::atomic<int>>& started) : story_(story), started_(started) {}

  void act(comm::World& world) {
    Dice dice(base::Random(story_.seed).for_purpose("waits").for_index(static_cast<uint64_t>(world.rank())));
    for (size_t k = 0; k < story_.operations.size(); ++k) {
      const auto& ranks = story_.groups[story_.operations[k].group].ranks;
      const auto me = std::find(ranks.begin(), ranks.end(), world.rank());
      if (me == ranks.end()) continue;
      start(world, static_cast<int>(k), static_cast<int>(me - ranks.begin()));
      while (!pending_.empty() && dice.one_in(3)) finish(dice.below(static_cast<int64_t>(pending_.size())));
      if (dice.one_in(8)) world.timer(world.clock().now() + dice.between(1us, 300us)).wait();
    }
    while (!pending_.empty()) finish(dice.below(static_cast<int64_t>(pending_.size())));
  }

  std::vector<std::string> wrong;
  int64_t results = 0;
  nanoseconds ended{};
  bool done = false;  // all of its operations

 private:
  struct Pending {
    int operation;
    comm::Work work;
    Buffers* buffers;
  };

  void start(comm::World& world, int k, int me);
  comm::Work start(comm::Group& group, int k, int me, Buffers& buffers);

  void finish(int64_t which) {
    const Pending one = pending_[which];
    pending_.erase(pending_.begin() + which);
    one.work.wait();
    check(one);
  }

  void check(const Pending& one) {
    const Story::Operation& operation = story_.operations[one.operation];
    results += 1;
    if (one.buffers->out != one.buffers->expected) {
      size_t first = 0;
      while (one.buffers->out[first] == one.buffers->expected[first]) ++first;
      wrong.push_back(fmt::format("operation {} ({}) gave a wrong result, first at byte {} of {}", one.operation, name(operation.kind),
                                  first, one.buffers->out.size()));
    }
    const auto members = static_cast<int>(story_.groups[operation.group].ranks.size());
    if (operation.kind == OperationKind::barrier && started_[one.operation] != members) {
      wrong.push_back(
          fmt::format("operation {}: the barrier let pass with {} of {} ranks", one.operation, started_[one.operation].load(), members));
    }
  }

  const Story& story_;
  std::vector<std::atomic<int>>& started_;
  std::vector<Pending> pending_;
  std::deque<Buffers> buffers_;
};

void Actor::start(comm::World& world, int k, int me) {
  const Story::Operation& operation = story_.operations[k];
  const Story::Members& members = story_.groups[operation.group];
  const bool one_of_two = me == operation.root || me == operation.to;
  if (operation.kind == OperationKind::send_recv && !one_of_two) return;
  comm::Group& group = world.group(members.ranks, members.name);
  buffers_.emplace_back();
  started_[k] += 1;
  comm::Work work = start(group, k, me, buffers_.back());
  pending_.push_back({k, std::move(work), &buffers_.back()});
}

comm::Work Actor::start(comm::Group& group, int k, int me, Buffers& b) {
  const Story::Operation& o = story_.operations[k];
  const std::vector<int64_t>& counts = o.counts[0];
  const int n = group.size();
  const int64_t own = counts[me], whole = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto values = [&](int member, int64_t count) { return chaos_values({story_.seed, k, member}, o.dtype, count); };
  const auto span = [&](std::vector<std::byte>& bytes) {
    return Span{bytes.data(), static_cast<int64_t>(bytes.size()) / size_of(o.dtype), o.dtype};
  };
  const auto append = [](std::vector<std::byte>& to, const std::vector<std::byte>& more) { to.insert(to.end(), more.begin(), more.end()); };
  const auto part_of = [&](const std::vector<std::byte>& bytes, int member) {
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + member, int64_t{0}) * size_of(o.dtype);
    return std::vector(bytes.begin() + begin, bytes.begin() + begin + counts[member] * size_of(o.dtype));
  };
  const auto gathered = [&] {
    std::vector<std::byte> all;
    for (int member = 0; member < n; ++member) append(all, values(member, counts[member]));
    return all;
  };
  const auto reduced = [&] {
    std::vector<std::vector<std::byte>> all;
    for (int member = 0; member < n; ++member) all.push_back(values(member, whole));
    return reduced_values(o.dtype, o.reduce, all);
  };
  const auto all_reduced = [&] {
    std::vector<std::vector<std::byte>> all;
    for (int member = 0; member < n; ++member) all.push_back(values(member, whole));
    const comm::Chunking pieces = group.world().transport().chunking(group.ranks());
    const auto algorithm = comm::choose_all_reduce(whole * size_of(o.dtype), n, pieces, story_.facts);
    return all_reduced_values(algorithm, o.dtype, o.reduce, std::move(all));
  };
  const auto blank = [&](int64_t count) { return std::vector<std::byte>(static_cast<size_t>(count * size_of(o.dtype)), std::byte(0xee)); };
  const std::string what = fmt::format("operation {}", k);
  const comm::Label label{comm::Purpose::data, what};
  switch (o.kind) {
    case OperationKind::all_reduce:
      b.out = values(me, whole), b.expected = all_reduced();
      return group.all_reduce(span(b.out), o.reduce, label);
    case OperationKind::broadcast:
      b.out = values(me, whole), b.expected = values(o.root, whole);
      return group.broadcast(span(b.out), o.root, label);
    case OperationKind::all_gather:
      b.in = values(me, own), b.out = blank(whole), b.expected = gathered();
      return group.all_gather(span(b.out), span(b.in), label, counts);
    case OperationKind::reduce_scatter:
      b.in = values(me, whole), b.out = blank(own), b.expected = part_of(reduced(), me);
      return group.reduce_scatter(span(b.out), span(b.in), o.reduce, label, counts);
    case OperationKind::gather:
      b.in = values(me, own), b.out = blank(me == o.root ? whole : 0), b.expected = me == o.root ? gathered() : b.out;
      return group.gather(span(b.out), span(b.in), o.root, label, counts);
    case OperationKind::scatter:
      b.in = me == o.root ? values(o.root, whole) : blank(0), b.out = blank(own), b.expected = part_of(values(o.root, whole), me);
      return group.scatter(span(b.out), span(b.in), o.root, label, counts);
    case OperationKind::all_to_all: {
      std::vector<int64_t> out_counts;
      for (int member = 0; member < n; ++member) {
        out_counts.push_back(o.counts[member][me]);
        append(b.in, chaos_values({story_.seed, k, me * 100 + member}, o.dtype, o.counts[me][member]));
        append(b.expected, chaos_values({story_.seed, k, member * 100 + me}, o.dtype, o.counts[member][me]));
      }
      b.out = blank(std::accumulate(out_counts.begin(), out_counts.end(), int64_t{0}));
      return group.all_to_all(span(b.out), span(b.in), label, out_counts, o.counts[me]);
    }
    case OperationKind::send_recv:
      b.expected = values(o.root, whole);
      b.out = me == o.root ? b.expected : blank(whole);
      return me == o.root ? group.send(span(b.out), o.to, label) : group.recv(span(b.out), o.root, label);
    case OperationKind::reduce:
      b.out = values(me, whole), b.expected = me == o.root ? reduced() : b.out;
      return group.reduce(span(b.out), o.root, o.reduce, label);
    case OperationKind::coded_all_reduce: {
      const auto names = comm::codec_names();
      const auto codec = comm::make_codec(names[k % names.size()]);
      std::vector<std::vector<std::byte>> all;
      for (int member = 0; member < n; ++member) all.push_back(through(*codec, values(member, whole)));
      b.out = values(me, whole), b.expected = through(*codec, reduced_values(o.dtype, Reduce::sum, all));
      return group.coded_all_reduce(span(b.out), *codec, label);
    }
    case OperationKind::all_scan: {
      const bool backward = k % 2 == 1;
      b.in = values(me, whole), b.out = blank(whole), b.expected = std::vector<std::byte>(b.out.size());
      b.factors.resize(b.out.size());
      // Halves: their products are exact, with and without fused multiply-add.
      const auto scan = [&]<typename T>(T half) {
        std::fill_n(reinterpret_cast<T*>(b.factors.data()), whole, half);
        for (int member = backward ? n - 1 : 0; member != me; member += backward ? -1 : 1) {
          std::vector<std::byte> state = values(member, whole);
          for (int64_t i = 0; i < whole; ++i)
            reinterpret_cast<T*>(state.data())[i] += half * reinterpret_cast<const T*>(b.expected.data())[i];
          b.expected = std::move(state);
        }
      };
      o.dtype == Dtype::f64 ? scan(0.5) : scan(0.5f);
      return group.all_scan(span(b.out), span(b.in), comm::make_diagonal_map(b.factors.data(), whole, 1, o.dtype),
                            {.backward = backward, .blocks = 1 + k % 5}, label);
    }
    case OperationKind::barrier:
      break;
  }
  return group.barrier(what);
}

// --- what may come of it ---

bool harmful(const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::kill:
    case Fault::Kind::drop:
    case Fault::Kind::corrupt:
      return true;
    case Fault::Kind::freeze:
    case Fault::Kind::partition:
      return fault.lasts.count() == 0 || fault.lasts > kLostAfter;
    default:
      return false;
  }
}

// Whom errors may blame for a fault.
std::set<int> blame(const Fault& fault) {
  if (fault.kind == Fault::Kind::drop) return {fault.from, fault.to};
  if (fault.kind == Fault::Kind::corrupt) return {fault.from};
  if (fault.kind != Fault::Kind::partition) return {fault.rank};
  std::set<int> both(fault.these.begin(), fault.these.end());
  both.insert(fault.those.begin(), fault.those.end());
  return both;
}

// The ranks that a fault at one of these may reach: all that work with them, or with one that does.
std::set<int> reach(const Story& story, std::set<int> ranks) {
  for (bool grown = true; std::exchange(grown, false);) {
    for (const Story::Operation& operation : story.operations) {
      const auto& members = story.groups[operation.group].ranks;
      if (std::none_of(members.begin(), members.end(), [&](int rank) { return ranks.contains(rank); })) continue;
      const size_t before = ranks.size();
      ranks.insert(members.begin(), members.end());
      grown = grown || ranks.size() > before;
    }
  }
  return ranks;
}

void judge_errors(const Story& story, const Run& run, Outcome& outcome) {
  std::set<int> culprits, touched;
  bool dropped = false;
  for (size_t i = 0; i < story.faults.size(); ++i) {
    const Fault& fault = story.faults[i];
    if (!run.fired[i] || !harmful(fault)) continue;
    culprits.merge(blame(fault));
    touched.merge(blame(fault));
    if (fault.kind == Fault::Kind::corrupt) touched.insert(fault.to);
    dropped = dropped || fault.kind == Fault::Kind::drop;
  }
  const std::set<int> reached = reach(story, touched);
  for (const auto& [rank, error] : run.errors) {
    outcome.errors += 1;
    const std::string text = fmt::format("rank {}: {} [{}]", rank, error.what(), name(error.kind()));
    if (culprits.empty()) {
      outcome.wrong.push_back("an error although nothing harmful happened: " + text);
    } else if (!reached.contains(rank)) {
      outcome.wrong.push_back("an error on a rank that no fault could reach: " + text);
    } else if (error.kind() != Error::Kind::lost_peer) {
      outcome.wrong.push_back("an error of the wrong kind: " + text);
    } else if (!culprits.contains(error.peer())) {
      // A dropped message is seen by nobody but its receiver. Who waits for that receiver, or for one who does, may come to its own
      // deadline first, and then names the one it waited for.
      const bool second_hand = dropped && text.find("silent for") != std::string::npos && reached.contains(error.peer());
      if (second_hand) {
        outcome.second_hand += 1;
      } else {
        outcome.wrong.push_back(fmt::format("the culprit is among {}, not {}: {}", fmt::join(culprits, " "), error.peer(), text));
      }
    } else if (std::string(error.what()).find(fmt::format("rank {}", error.peer())) == std::string::npos) {
      outcome.wrong.push_back("an error that does not name its culprit: " + text);
    }
  }
}

}  // namespace

Story make_story(uint64_t seed) {
  Dice dice(base::Random(seed).for_purpose("story"));
  Story story;
  story.seed = seed;
  story.ranks = static_cast<int>(dice.one_in(16) ? dice.between(9, 16) : dice.between(2, 8));
  story.link = make_link(dice, story.ranks);
  story.facts.overhead = dice.any_of({0ns, nanoseconds(2us), nanoseconds(1ms)});
  story.facts.ranks_per_core = dice.any_of({1.0, 100.0});
  story.facts.incast_penalty = dice.any_of({0.0, 1000.0});
  story.groups = make_groups(dice, story.ranks);
  for (int64_t k = dice.between(3, 20); k > 0; --k) story.operations.push_back(make_operation(dice, story));
  for (int64_t k = dice.below(4); k > 0; --k) story.faults.push_back(make_fault(dice, story));
  return story;
}

std::string describe(const Story& story) {
  std::string text =
      fmt::format("seed {}: {} ranks, overhead {} us, incast_penalty {}, {} ranks per core, link {} us, jitter {}, sigma {}, loss {}{}\n",
                  story.seed, story.ranks, story.facts.overhead.count() / 1000, story.facts.incast_penalty, story.facts.ranks_per_core,
                  story.link.latency.count() / 1000, story.link.jitter, story.link.latency_sigma, story.link.loss,
                  story.link.latency_matrix.empty() ? "" : ", latencies from a matrix");
  for (const Fault& fault : story.faults) text += fmt::format("  fault: {}\n", describe(fault));
  for (size_t k = 0; k < story.operations.size(); ++k) {
    const Story::Operation& o = story.operations[k];
    text += fmt::format("  {}: {} {} {} root {} to {} of ranks {} \"{}\" counts {}\n", k, name(o.kind), name(o.dtype), name(o.reduce),
                        o.root, o.to, fmt::join(story.groups[o.group].ranks, " "), story.groups[o.group].name, fmt::join(o.counts[0], " "));
  }
  return text;
}

Outcome play(const Story& story, const Wrap& wrap) {
  Faults faults;
  for (const Fault& fault : story.faults) faults.add(fault);
  std::vector<std::atomic<int>> started(story.operations.size());
  std::deque<Actor> actors;
  for (int rank = 0; rank < story.ranks; ++rank) actors.emplace_back(story, started);
  Options options{.seed = story.seed, .deadline = story.deadline, .link = story.link, .lost_after = kLostAfter, .expect_errors = true};
  options.wrap = [&](std::unique_ptr<comm::Transport> inside) {
    auto told = with_link_facts(std::move(inside), story.facts);
    return wrap ? wrap(std::move(told)) : std::move(told);
  };
  const Run run = on_ranks(story.ranks, options, faults, [&](comm::World& world) {
    Actor& actor = actors[world.rank()];
    try {
      actor.act(world);
    } catch (...) {
      actor.ended = world.clock().now();
      throw;
    }
    actor.ended = world.clock().now();
    actor.done = true;
  });
  Outcome outcome;
  outcome.faults_fired = run.faults_fired;
  outcome.event_log = run.event_log;
  for (size_t i = 0; i < story.faults.size(); ++i) outcome.struck[static_cast<size_t>(story.faults[i].kind)] += run.fired[i] ? 1 : 0;
  for (int rank = 0; rank < story.ranks; ++rank) {
    outcome.results += actors[rank].results;
    for (const std::string& text : actors[rank].wrong) outcome.wrong.push_back(fmt::format("rank {}: {}", rank, text));
    if (actors[rank].done && run.cancelled[rank] > 0) {
      outcome.wrong.push_back(fmt::format("rank {}: all went well, but nobody waited for {} messages", rank, run.cancelled[rank]));
    }
    if (actors[rank].ended > kLongest) {
      outcome.wrong.push_back(fmt::format("rank {} ended only after {:.1f} s", rank, base::seconds(actors[rank].ended)));
    }
  }
  judge_errors(story, run, outcome);
  return outcome;
}

}  // namespace cairn::harness
