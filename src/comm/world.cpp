#include "comm/world.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "comm/flight/recorder.h"
#include "comm/operation.h"
#include "comm/transport.h"

namespace cairn::comm {
namespace {

constexpr size_t kEarlyMax = 1024;  // remembered; messages beyond are not checked

// FNV-1a over the ranks and the name: the same on every rank without communication. Even; id + 1 is for point-to-point messages.
uint64_t group_id(const std::vector<int>& ranks, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  for (const int rank : ranks) mix(static_cast<uint64_t>(rank) + 1);
  mix(0);
  for (const char c : name) mix(static_cast<unsigned char>(c));
  return (hash ^ (hash >> 29)) << 1;
}

class Timer final : public Work::State {
 public:
  Timer(Transport& transport, std::chrono::nanoseconds at) : transport_(transport), at_(at), completion_(transport.timer(at)) {}
  bool ready() const override { return completion_.done(); }
  void wait() override {
    const auto slack = std::chrono::seconds(1);
    transport_.drive([this] { return completion_.done(); }, at_ + slack, "a timer");
  }

 private:
  Transport& transport_;
  std::chrono::nanoseconds at_;
  Completion completion_;
};

}  // namespace

struct World::Early {
  std::multimap<std::pair<uint64_t, uint64_t>, std::pair<int, Envelope>> seen;  // by group and sequence
};

World::World(std::unique_ptr<Transport> transport, WorldOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      exceptions_at_start_(std::uncaught_exceptions()),
      early_(std::make_unique<Early>()) {
  transport_->on_early([this](int from, const Envelope& envelope) { note_early(from, envelope); });
}

World::~World() {
  transport_->on_early([](int, const Envelope&) {});  // the transport still makes progress while it leaves, when the groups are gone
  if (std::uncaught_exceptions() > exceptions_at_start_) transport_->fail("it ended by an exception", rank());
}

int World::rank() const { return transport_->rank(); }
int World::size() const { return transport_->size(); }

Group& World::everyone() {
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return group(std::move(all));
}

Group& World::alone() { return group({rank()}); }

Group& World::group(std::vector<int> ranks, std::string_view name) {
  auto& slot = groups_[{ranks, std::string(name)}];
  if (slot) return *slot;
  const auto me = std::find(ranks.begin(), ranks.end(), rank());
  CAIRN_CHECK(me != ranks.end(), "rank {} asks for a group of ranks {}, of which it is none", rank(), fmt::join(ranks, " "));
  CAIRN_CHECK(std::set<int>(ranks.begin(), ranks.end()).size() == ranks.size(), "a group of ranks {}: one is there twice",
              fmt::join(ranks, " "));
  const auto [low, high] = std::minmax_element(ranks.begin(), ranks.end());
  CAIRN_CHECK(*low >= 0 && *high < size(), "a group of ranks {} in a world of {}", fmt::join(ranks, " "), size());
  const int position = static_cast<int>(me - ranks.begin());
  const uint64_t id = group_id(ranks, name);
  if (FlightRecorder* recorder = transport_->recorder()) recorder->add_group(id, name, ranks);
  auto state = std::unique_ptr<Group::State>(new Group::State{
      .world = *this, .transport = *transport_, .ranks = std::move(ranks), .me = position, .id = id, .deadline = options_.deadline});
  slot.reset(new Group(std::move(state)));
  CAIRN_CHECK(by_id_.emplace(id, slot.get()).second, "two groups with the id {:x}. Give one another name.", id);
  return *slot;
}

Ledger& World::ledger() { return transport_->ledger(); }
base::Log& World::log() { return options_.log; }
const base::Clock& World::clock() const { return transport_->clock(); }
const base::Clock& World::wall() const { return wall_; }

Work World::timer(std::chrono::nanoseconds at) { return Work(std::make_shared<Timer>(*transport_, at)); }

std::vector<int> World::lost() const {
  std::vector<int> ranks;
  for (const LostPeer& loss : transport_->lost_peers()) ranks.push_back(loss.rank);
  return ranks;
}

void World::fail(const std::exception& reason) {
  const auto* error = dynamic_cast<const Error*>(&reason);
  transport_->fail(reason.what(), error && error->peer() >= 0 ? error->peer() : rank());
}

void World::before_collective() {
  const int64_t number = collectives_++;
  if (options_.before_collective) options_.before_collective(number);
}

void World::note_early(int from, const Envelope& envelope) {
  if (envelope.group % 2 != 0) return;  // point-to-point: checked by its receive
  const auto group = by_id_.find(envelope.group);
  if (group != by_id_.end() && envelope.sequence < group->second->state_->next_sequence) {
    group->second->state_->check_early(from, envelope);
  } else if (early_->seen.size() < kEarlyMax) {
    early_->seen.emplace(std::pair(envelope.group, envelope.sequence), std::pair(from, envelope));
  }
}

void World::check_earlier(Group::State& group, uint64_t sequence) {
  const auto [first, last] = early_->seen.equal_range(std::pair(group.id, sequence));
  for (auto one = first; one != last; ++one) group.check_early(one->second.first, one->second.second);
  early_->seen.erase(first, last);
}

}  // namespace cairn::comm
