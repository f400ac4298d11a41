// Hangs: the wait-for graph of C4 (arXiv:2406.04594), over all groups at once.
//
// A rank r that waits in operation s of group g waits for
//   the members that have not entered s;
//   the members that have entered it and are in no wait at all: they move no data;
//   if there are none of these: the members whose data for r is on its way and does not arrive (a path).
// A point-to-point operation has one such member, the other end.
//
// From each rank that waits for too long the graph is followed to its end. An end is a rank that is dead or frozen, or alive and in no
// operation: waiting for its data, or stuck. In a pipeline all ranks look hung; only the end is to blame. Without an end, paths on which
// bytes stand still are to blame; without these, a circle of ranks is a deadlock.
//
// Only durations of one machine are used: how long a rank has waited, how long ago it did something.
#include "elastic/diagnosis/hang.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/clock.h"

namespace cairn::elastic {
namespace {

using Nanoseconds = std::chrono::nanoseconds;
using comm::Activity;
using comm::FlightLog;
using comm::OperationKind;

constexpr size_t kUsualOperations = 32;              // of the same kind, size and group: the usual wait is their median
constexpr int kUsualTimes = 10;                      // so many usual waits are too long
constexpr int kPatience = 12;                        // times longer for a rank that saves, evaluates or takes its first step
constexpr int kStartPatience = 120;                  // and for one that starts: it may tokenise a corpus alone
constexpr auto kWaitSeen = std::chrono::seconds(2);  // a waiting rank looks twice a second whether the wait is over
constexpr size_t kFindingsMax = 3;

bool needs_all(OperationKind kind) {
  return kind != OperationKind::broadcast && kind != OperationKind::reduce && kind != OperationKind::gather &&
         kind != OperationKind::scatter && kind != OperationKind::all_scan;
}

Nanoseconds seconds_of(double seconds) { return Nanoseconds(static_cast<int64_t>(seconds * 1e9)); }

// What one rank waits for.
struct Blocked {
  const FlightLog::Operation* operation;
  Nanoseconds waited;
};

// Why a rank waits for another one.
enum class Link { absent, outside, path_from, path_to, same_operation };

struct Edge {
  int to;
  Link link;
};

class WaitGraph {
 public:
  WaitGraph(std::span<const RankView> ranks, const DiagnosisOptions& options) : options_(options) {
    for (const RankView& one : ranks) views_[one.rank] = &one;
    for (const RankView& one : ranks)
      if (const auto blocked = blocked_in(one)) blocked_.emplace(one.rank, *blocked);
  }

  std::vector<Finding> findings() {
    for (const auto& [rank, blocked] : blocked_) {
      const RankView& view = *views_.at(rank);
      if (blocked.waited < too_long(view, *blocked.operation) && !gone_is_known_) continue;
      std::set<int> visited;
      follow(rank, rank, visited);
    }
    for (const auto& [rank, one] : views_)
      if (one->liveness == Liveness::dead) ends_.try_emplace(rank);
    std::vector<Finding> found = ends();
    if (found.empty()) found = stalled_paths();
    if (found.empty()) found = deadlocks();
    if (found.size() > kFindingsMax) found.resize(kFindingsMax);
    return found;
  }

 private:
  const RankView* view(int rank) const {
    const auto at = views_.find(rank);
    return at == views_.end() ? nullptr : at->second;
  }
  static bool runs(const RankView& one) { return one.liveness == Liveness::running || one.liveness == Liveness::ended; }

  // The operation that keeps the rank from going on: the oldest one in its group that is not complete.
  std::optional<Blocked> blocked_in(const RankView& one) {
    if (one.liveness == Liveness::dead || one.liveness == Liveness::frozen) gone_is_known_ = true;
    if (!runs(one) || !one.log || !one.log->waiting) return std::nullopt;
    const FlightLog::Operation* operation = one.log->operation(*one.log->waiting);
    if (!operation || !operation->open()) return std::nullopt;
    for (const FlightLog::Operation& other : one.log->operations) {
      const bool same = other.collective() && operation->collective() && other.group == operation->group;
      if (same && other.open() && other.sequence <= operation->sequence) {
        operation = &other;
        break;
      }
    }
    const bool moves = operation->failed || one.liveness == Liveness::ended || one.now - one.log->wait_seen < kWaitSeen;
    if (!moves) return std::nullopt;  // stopped in the middle of a wait: it is what others wait for
    const Nanoseconds until = operation->failed ? *operation->ended : one.now;  // it has given up since
    return Blocked{operation, until - one.log->waiting_since};
  }

  Nanoseconds too_long(const RankView& one, const FlightLog::Operation& operation) const {
    std::vector<Nanoseconds> usual;
    for (auto at = one.log->operations.rbegin(); at != one.log->operations.rend() && usual.size() < kUsualOperations; ++at) {
      const bool same = at->group == operation.group && at->kind == operation.kind && at->bytes == operation.bytes;
      if (same && at->ended && !at->failed) usual.push_back(*at->ended - at->entered);
    }
    const Nanoseconds least = seconds_of(options_.hang_s);
    if (usual.empty()) return least;
    std::nth_element(usual.begin(), usual.begin() + static_cast<std::ptrdiff_t>(usual.size() / 2), usual.end());
    return std::max(least, kUsualTimes * usual[usual.size() / 2]);
  }

  // A rank that entered an operation and is in no wait moves nothing for it.
  bool drives(const RankView& one) const { return runs(one) && blocked_.contains(one.rank); }

  std::vector<Edge> edges(const RankView& one, const FlightLog::Operation& operation) const {
    return operation.collective() ? collective_edges(one, operation) : message_edges(one, operation);
  }

  std::vector<Edge> collective_edges(const RankView& one, const FlightLog::Operation& operation) const {
    const FlightLog::Group* group = one.log->group(operation.group);
    if (!group) return {};
    std::vector<Edge> late, inside;
    for (const int member : group->ranks) {
      if (member == one.rank) continue;
      const RankView* other = view(member);
      const FlightLog::Group* theirs = other && other->log ? other->log->group(operation.group) : nullptr;
      if (!theirs || theirs->next_sequence <= operation.sequence) {
        if (needs_all(operation.kind) || exchanges_with(*one.log, member) || member == operation.peer)
          late.push_back({member, Link::absent});
        continue;
      }
      const FlightLog::Operation* same = find(*other->log, [&](const FlightLog::Operation& o) {
        return o.collective() && o.group == operation.group && o.sequence == operation.sequence;
      });
      if (!same || !same->open()) {  // it is done there; its last message may be on its way
        if (on_its_way(*other, one)) inside.push_back({member, Link::path_from});
        continue;
      }
      if (!drives(*other)) {
        late.push_back({member, Link::outside});
      } else {
        inside.push_back({member, on_its_way(*other, one) ? Link::path_from : Link::same_operation});
      }
    }
    return late.empty() ? inside : late;
  }

  std::vector<Edge> message_edges(const RankView& one, const FlightLog::Operation& operation) const {
    const RankView* other = view(operation.peer);
    if (!other || !other->log) return {{operation.peer, Link::absent}};
    const auto matches = [&](const FlightLog::Operation& o) {
      return !o.collective() && o.group == operation.group && o.peer == one.rank && o.sends != operation.sends;
    };
    const FlightLog::Operation* same =
        find(*other->log, [&](const FlightLog::Operation& o) { return matches(o) && o.sequence >= operation.sequence; });
    if (!same) return {{operation.peer, Link::absent}};
    const bool open = same->sequence == operation.sequence && same->open();
    if (open && !drives(*other)) return {{operation.peer, Link::outside}};
    if (operation.sends && !open) return {};
    return {{operation.peer, operation.sends ? Link::path_to : Link::path_from}};
  }

  // Whether data from a to b has left a and not arrived.
  static bool on_its_way(const RankView& a, const RankView& b) {
    const FlightLog::Peer* sent = peer(*a.log, b.rank);
    const FlightLog::Peer* received = peer(*b.log, a.rank);
    return sent && received && received->awaited > 0 && (sent->sending > 0 || sent->posted_bytes > received->received_bytes);
  }
  static bool exchanges_with(const FlightLog& log, int rank) {
    const FlightLog::Peer* with = peer(log, rank);
    return with && (with->awaited > 0 || with->sending > 0);
  }
  static const FlightLog::Peer* peer(const FlightLog& log, int rank) {
    const auto at = std::find_if(log.peers.begin(), log.peers.end(), [&](const FlightLog::Peer& one) { return one.rank == rank; });
    return at == log.peers.end() ? nullptr : &*at;
  }
  template <typename Test>
  static const FlightLog::Operation* find(const FlightLog& log, Test test) {
    const auto at = std::find_if(log.operations.rbegin(), log.operations.rend(), [&](const auto& one) { return test(one); });
    return at == log.operations.rend() ? nullptr : &*at;
  }

  void follow(int first, int rank, std::set<int>& visited) {
    if (!visited.insert(rank).second) return;
    const RankView& one = *views_.at(rank);
    const FlightLog::Operation& operation = *blocked_.at(rank).operation;
    for (const Edge& edge : edges(one, operation)) {
      if (edge.link == Link::path_from || edge.link == Link::path_to) {
        const auto path = edge.link == Link::path_from ? std::pair(edge.to, rank) : std::pair(rank, edge.to);
        paths_[path].insert(first);
      }
      if (blocked_.contains(edge.to)) {
        follow(first, edge.to, visited);
      } else if (edge.link == Link::absent || edge.link == Link::outside) {
        End& end = ends_[edge.to];
        end.victims.insert(first);
        end.waiter = rank;
        end.outside = edge.link == Link::outside;
      }
    }
  }

  // How long ago the rank entered or ended an operation, or began another activity.
  static Nanoseconds idle(const RankView& one) {
    Nanoseconds last = one.log->waiting ? std::max(one.log->activity_since, one.log->wait_seen) : one.log->activity_since;
    for (const FlightLog::Operation& operation : one.log->operations)
      last = std::max({last, operation.entered, operation.ended.value_or(operation.entered)});
    return one.now - last;
  }

  struct End {
    std::set<int> victims;
    int waiter = -1;  // the last one before the end: its operation is what all wait for
    bool outside = false;
  };

  std::vector<Finding> ends() const {
    std::vector<std::pair<Nanoseconds, Finding>> found;
    for (const auto& [rank, end] : ends_) {
      const RankView* one = view(rank);
      Finding finding{.rank = rank,
                      .host = one ? one->host : "",
                      .operation = end.waiter < 0 ? "" : describe(*views_.at(end.waiter), *blocked_.at(end.waiter).operation),
                      .victims = {end.victims.begin(), end.victims.end()}};
      if (!one || !one->log) {
        const bool known = one && !runs(*one);
        finding.cause = known && one->liveness == Liveness::frozen ? Cause::frozen : Cause::dead;
        finding.evidence = known ? one->how : "nothing is heard of it, and it has no records";
        found.emplace_back(Nanoseconds::max(), std::move(finding));
      } else if (!runs(*one) || one->liveness == Liveness::ended) {
        finding.cause = one->liveness == Liveness::frozen ? Cause::frozen : Cause::dead;
        finding.evidence =
            fmt::format("{}, step {}, last in {}", one->how.empty() ? "has ended" : one->how, one->log->step, last_act(*one));
        if (one->liveness == Liveness::ended && one->how.empty() && one->log->activity != Activity::ended) continue;  // a victim itself
        found.emplace_back(Nanoseconds::max(), std::move(finding));
      } else if (const auto still = stands_still(*one)) {
        finding.cause = one->log->activity == Activity::loading && !one->log->waiting ? Cause::late_data : Cause::stuck;
        const char* where = one->log->waiting ? ", in the middle of a wait"
                            : end.outside     ? ", and in no wait for what it has started"
                                              : ", and in no operation";
        finding.evidence = fmt::format("alive, in {} of step {} for {:.1f} s{}", comm::name(one->log->activity), one->log->step,
                                       base::seconds(*still), where);
        found.emplace_back(*still, std::move(finding));
      }
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<Finding> sorted;
    for (auto& [still, finding] : found) sorted.push_back(std::move(finding));
    return sorted;
  }

  std::optional<Nanoseconds> stands_still(const RankView& one) const {
    const Nanoseconds still = idle(one);
    const Activity activity = one.log->activity;
    const bool patient = activity == Activity::saving || activity == Activity::evaluating || (one.log->step > 0 && one.log->steps.empty());
    const int times = activity == Activity::starting ? kStartPatience : patient ? kPatience : 1;
    const Nanoseconds limit = std::max(seconds_of(options_.hang_s) * times, 2 * usual_step(*one.log));
    return still >= limit ? std::optional(still) : std::nullopt;
  }

  static Nanoseconds usual_step(const FlightLog& log) {
    std::vector<Nanoseconds> lengths;
    for (const FlightLog::Step& step : log.steps) lengths.push_back(step.ended - step.begun);
    if (lengths.empty()) return {};
    std::nth_element(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2), lengths.end());
    return lengths[lengths.size() / 2];
  }

  std::vector<Finding> stalled_paths() const {
    std::vector<Finding> found;
    for (const auto& [path, victims] : paths_) {
      const auto& [from, to] = path;
      const RankView *sender = view(from), *receiver = view(to);
      const FlightLog::Peer* sent = sender && sender->log ? peer(*sender->log, to) : nullptr;
      const FlightLog::Peer* got = receiver && receiver->log ? peer(*receiver->log, from) : nullptr;
      const auto progress = got && got->last_progress ? receiver->now - *got->last_progress : Nanoseconds(0);
      if (progress < seconds_of(options_.hang_s) / 2 && got && got->last_progress && !gave_up(*receiver)) continue;  // it moves
      const int waiter = blocked_.contains(to) ? to : from;
      found.push_back({.cause = Cause::stalled_path,
                       .rank = from,
                       .peer = to,
                       .host = sender ? sender->host : "",
                       .operation = describe(*views_.at(waiter), *blocked_.at(waiter).operation),
                       .evidence = fmt::format("both ends wait; {} bytes were sent and {} have arrived, nothing for {:.1f} s",
                                               sent ? sent->posted_bytes : 0, got ? got->received_bytes : 0, base::seconds(progress)),
                       .victims = {victims.begin(), victims.end()}});
    }
    return found;
  }
  bool gave_up(const RankView& one) const { return blocked_.contains(one.rank) && blocked_.at(one.rank).operation->failed; }

  // Ranks that wait for each other in different operations.
  std::vector<Finding> deadlocks() const {
    for (const auto& [rank, blocked] : blocked_) {
      if (blocked.waited < too_long(*views_.at(rank), *blocked.operation)) continue;
      std::vector<int> trail;
      int at = rank;
      while (std::find(trail.begin(), trail.end(), at) == trail.end()) {
        trail.push_back(at);
        const auto all = edges(*views_.at(at), *blocked_.at(at).operation);
        const auto next =
            std::find_if(all.begin(), all.end(), [&](const Edge& e) { return e.link == Link::absent && blocked_.contains(e.to); });
        if (next == all.end()) return {};
        at = next->to;
      }
      const std::vector<int> circle(std::find(trail.begin(), trail.end(), at), trail.end());
      std::string evidence = "each waits for the next one to enter its operation:";
      for (const int one : circle) evidence += fmt::format(" rank {} in {};", one, describe(*views_.at(one), *blocked_.at(one).operation));
      evidence.pop_back();
      return {{.cause = Cause::deadlock,
               .rank = circle.front(),
               .host = views_.at(circle.front())->host,
               .evidence = evidence,
               .victims = circle}};
    }
    return {};
  }

  static std::string last_act(const RankView& one) {
    if (!one.log->operations.empty() && one.log->waiting) {
      const FlightLog::Operation* operation = one.log->operation(*one.log->waiting);
      if (operation) return fmt::format("a wait for {}", describe(one, *operation));
    }
    return std::string(comm::name(one.log->activity));
  }

  static std::string describe(const RankView& one, const FlightLog::Operation& operation) {
    const FlightLog::Group* group = one.log->group(operation.group);
    const std::string of = group ? fmt::format("{}ranks {}", group->name.empty() ? "" : group->name + ": ", fmt::join(group->ranks, " "))
                                 : std::string("a group");
    const std::string label = operation.label.empty() ? "" : " of " + operation.label;
    if (!operation.collective())
      return fmt::format("a {}{}, {} bytes (message {} {} rank {})", operation.sends ? "send" : "receive", label, operation.bytes,
                         operation.sequence, operation.sends ? "to" : "from", operation.peer);
    return fmt::format("{}{}, {} bytes (operation {} of {})", comm::name(operation.kind), label, operation.bytes, operation.sequence, of);
  }

  const DiagnosisOptions& options_;
  std::map<int, const RankView*> views_;
  std::map<int, Blocked> blocked_;
  bool gone_is_known_ = false;  // a rank is dead or frozen: whoever waits for it need not wait longer
  std::map<int, End> ends_;
  std::map<std::pair<int, int>, std::set<int>> paths_;
};

}  // namespace

std::vector<Finding> find_hang(std::span<const RankView> ranks, const DiagnosisOptions& options) {
  return WaitGraph(ranks, options).findings();
}

}  // namespace cairn::elastic
