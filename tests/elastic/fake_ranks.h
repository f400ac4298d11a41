// Records of ranks that no run has made: what each class of fault leaves behind.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "elastic/diagnosis/rank_view.h"

namespace cairn::elastic {

// Ranks whose clocks all show 100 s. Each has done something at 99.9 s unless a test says otherwise.
struct FakeRanks {
  explicit FakeRanks(int n) {
    using namespace std::chrono_literals;
    for (int rank = 0; rank < n; ++rank) {
      RankView view{.rank = rank, .host = "node" + std::to_string(rank / 4), .now = 100s};
      view.log.emplace();
      view.log->rank = rank;
      view.log->size = n;
      view.log->step = 30;
      view.log->steps = {{29, 98s, 99s, 0s, 0s}};
      view.log->activity = comm::Activity::computing;
      view.log->activity_since = 99900ms;
      views.push_back(std::move(view));
    }
  }
  comm::FlightLog& log(int rank) { return *views[static_cast<size_t>(rank)].log; }

  void group(uint64_t id, const std::vector<int>& ranks, const std::string& name = "") {
    for (const int rank : ranks) log(rank).groups.push_back({id, name, ranks, 0});
  }
  comm::FlightLog::Operation& add(int rank, comm::FlightLog::Operation one, std::chrono::nanoseconds entered) {
    one.number = log(rank).operations.size();
    one.entered = entered;
    log(rank).operations.push_back(std::move(one));
    log(rank).operations_begun = static_cast<int64_t>(log(rank).operations.size());
    return log(rank).operations.back();
  }
  // The rank enters the next collective of a group.
  comm::FlightLog::Operation& enter(int rank, uint64_t id, std::chrono::nanoseconds at, bool done = false,
                                    comm::OperationKind kind = comm::OperationKind::all_reduce) {
    uint64_t sequence = 0;
    for (auto& group : log(rank).groups)
      if (group.id == id) sequence = group.next_sequence++;
    comm::FlightLog::Operation one;
    one.group = id;
    one.sequence = sequence;
    one.kind = kind;
    one.bytes = 4096;
    one.label = "x";
    if (done) one.ended = at + std::chrono::milliseconds(1);
    return add(rank, one, at);
  }
  comm::FlightLog::Operation& message(int rank, uint64_t id, int peer, bool sends, uint64_t sequence, std::chrono::nanoseconds at,
                                      bool done = false) {
    comm::FlightLog::Operation one;
    one.group = id;
    one.sequence = sequence;
    one.kind = comm::OperationKind::send_recv;
    one.peer = peer;
    one.sends = sends;
    if (done) one.ended = at + std::chrono::milliseconds(1);
    return add(rank, one, at);
  }
  // The rank waits for the last operation that it has entered.
  void wait(int rank, std::chrono::nanoseconds since) {
    log(rank).waiting = log(rank).operations.back().number;
    log(rank).waiting_since = since;
    log(rank).wait_seen = views[static_cast<size_t>(rank)].now - std::chrono::milliseconds(300);
    log(rank).activity_since = since;
  }
  void enter_and_wait(int rank, uint64_t id, std::chrono::nanoseconds since) {
    enter(rank, id, since);
    wait(rank, since);
  }
  void idle(int rank, comm::Activity activity, std::chrono::nanoseconds since) {
    log(rank).activity = activity;
    log(rank).activity_since = since;
  }
  comm::FlightLog::Peer& peer(int rank, int other) {
    log(rank).peers.push_back({.rank = other});
    return log(rank).peers.back();
  }

  std::vector<RankView> views;
};

}  // namespace cairn::elastic
