#include "harness/ranks.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "comm/local/local.h"
#include "comm/mpi/transport.h"
#include "comm/net/transport.h"

namespace cairn::harness {
namespace {

// What the ranks of one run share: their faults, and how each ended.
class Course {
 public:
  Course(int n, const Options& options, const Faults& faults)
      : n_(n), options_(options), faults_(faults), ends_(static_cast<size_t>(n)), running_(n) {}

  comm::WorldOptions world_options(int rank, std::function<void()> freeze) {
    comm::WorldOptions world;
    world.deadline = options_.deadline;
    world.warn_after = options_.warn_after;
    world.log = base::Log::capture(rank);
    if (freeze) world.before_collective = [this, rank, freeze = std::move(freeze)](int64_t number) { strike(rank, number, freeze); };
    return world;
  }

  // On real sockets, where the network knows no faults: called before each collective.
  void strike(int rank, int64_t number, const std::function<void()>& freeze) {
    for (const comm::Fault& fault : faults_.all()) {
      if (fault.rank != rank || fault.before_collective != number) continue;
      ++fired_;
      if (fault.kind == comm::Fault::Kind::freeze) freeze();
      throw comm::Killed();
    }
  }

  // The body, with this rank's log kept.
  void run(comm::World& world, const std::function<void(comm::World&)>& body) {
    const auto keep = [&] {
      const std::lock_guard guard(lock_);
      logs_[world.rank()] = world.log().lines();
    };
    try {
      body(world);
    } catch (...) {
      keep();
      throw;
    }
    keep();
  }

  void end(int rank, std::exception_ptr how) {
    const std::lock_guard guard(lock_);
    ends_[rank] = std::move(how);
    --running_;
    changed_.notify_all();
  }

  // On real sockets: stands still until the others have ended, then dies.
  void stand_still() {
    std::unique_lock guard(lock_);
    --running_;
    changed_.notify_all();
    changed_.wait(guard, [this] { return running_ <= 0; });
    ++running_;
    throw comm::Killed();
  }

  Run result() {
    Run run;
    run.faults_fired = fired_;
    run.log = std::move(logs_);
    std::exception_ptr other;
    for (int rank = 0; rank < n_; ++rank) {
      if (!ends_[rank]) continue;
      try {
        std::rethrow_exception(ends_[rank]);
      } catch (const comm::Killed&) {
      } catch (const Error& error) {
        run.errors.emplace(rank, error);
      } catch (...) {
        other = std::current_exception();
      }
    }
    if (other) std::rethrow_exception(other);
    if (faults_.empty() && !options_.expect_errors) rethrow(run);
    return run;
  }

 private:
  // The first error that is not only about somebody else's.
  void rethrow(const Run& run) const {
    const Error* first = nullptr;
    int culprit = -1;
    for (const auto& [rank, error] : run.errors) {
      if (first && (first->kind() != Error::Kind::lost_peer || error.kind() == Error::Kind::lost_peer)) continue;
      first = &error;
      culprit = rank;
    }
    if (!first) return;
    Error told = *first;
    throw told.with(fmt::format("rank {} of {} on {}, seed {}: give harness::Options{{.seed = {}}} to replay", culprit, n_,
                                name(options_.on), options_.seed, options_.seed));
  }

  int n_;
  const Options& options_;
  const Faults& faults_;
  std::atomic<int> fired_ = 0;
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<std::exception_ptr> ends_;
  std::map<int, std::vector<std::string>> logs_;
  int running_;
};

Run run_local(int n, const Options& options, const Faults& faults, const std::function<void(comm::World&)>& body) {
  Course course(n, options, faults);
  comm::LocalOptions local;
  local.seed = options.seed;
  local.keep_event_log = true;
  local.check_buffers = true;
  local.link = options.link;
  local.faults = faults.all();
  local.lost_after = options.lost_after;
  local.wrap = options.wrap;
  local.world = [&](int rank) { return course.world_options(rank, nullptr); };
  comm::LocalNetwork net(n, std::move(local));
  const auto ends = net.run([&](comm::World& world) { course.run(world, body); });
  for (int rank = 0; rank < n; ++rank) course.end(rank, ends[rank]);
  Run run = course.result();
  run.ledger = net.ledger();
  run.event_log = net.event_log();
  run.fired = net.faults_fired();
  run.cancelled = net.cancelled();
  run.faults_fired = static_cast<int>(std::count(run.fired.begin(), run.fired.end(), true));
  return run;
}

Run run_net(int n, const Options& options, const Faults& faults, const std::function<void(comm::World&)>& body) {
  using Kind = comm::Fault::Kind;
  for (const comm::Fault& fault : faults.all()) {
    const bool possible =
        fault.before_collective >= 0 && (fault.kind == Kind::kill || (fault.kind == Kind::freeze && fault.lasts.count() == 0));
    if (!possible) base::fail_input("{}: not possible on net, only on local", describe(fault));
  }
  Course course(n, options, faults);
  std::vector<int> machines(static_cast<size_t>(n), 0);
  for (int rank = 0; rank < n; ++rank) machines[static_cast<size_t>(rank)] = options.on == On::machines ? rank % 2 : 0;
  auto setups = comm::make_net_setups(machines);
  std::vector<comm::Ledger> ledgers(static_cast<size_t>(n));
  const auto rank_main = [&](int rank) {
    std::exception_ptr how;
    try {
      comm::World world(comm::make_net_transport(std::move(setups[rank])), course.world_options(rank, [&course] { course.stand_still(); }));
      try {
        course.run(world, body);
      } catch (const Error& error) {
        world.fail(error);
        how = std::current_exception();
      }
      ledgers[rank] = world.ledger();
    } catch (...) {
      how = std::current_exception();
    }
    course.end(rank, how);
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back(rank_main, rank);
  threads.clear();
  Run run = course.result();
  for (const comm::Ledger& ledger : ledgers) run.ledger.merge(ledger);
  return run;
}

// What every rank sent, known to all. As many messages as there were; which of them held the bytes is not kept.
comm::Ledger ledger_of_all(comm::World& world) {
  const int n = world.size();
  std::vector<comm::Ledger::Total> mine, all;
  for (int to = 0; to < n; ++to) {
    for (int p = 0; p < comm::kPurposes; ++p) mine.push_back(world.ledger().between(world.rank(), to, static_cast<comm::Purpose>(p)));
  }
  all.resize(mine.size() * static_cast<size_t>(n));
  const auto span = [](std::vector<comm::Ledger::Total>& totals) {
    return comm::Span{totals.data(), static_cast<int64_t>(totals.size() * sizeof(comm::Ledger::Total)), comm::Dtype::u8};
  };
  world.everyone().all_gather(span(all), span(mine), {comm::Purpose::control, "ledgers"}).wait();
  comm::Ledger merged;
  for (size_t i = 0; i < all.size(); ++i) {
    const int pair = static_cast<int>(i) / comm::kPurposes;
    comm::Ledger::Message message{
        .from = pair / n, .to = pair % n, .bytes = all[i].bytes, .purpose = static_cast<comm::Purpose>(i % comm::kPurposes)};
    for (int64_t k = 0; k < all[i].messages; ++k, message.bytes = 0) merged.book(message);
  }
  return merged;
}

Run run_mpi(int n, const Options& options, const Faults& faults, const std::function<void(comm::World&)>& body) {
  if (!faults.empty()) base::fail_input("{}: not possible on mpi, only on local", describe(faults.all().front()));
  Course course(n, options, faults);
  std::unique_ptr<comm::Transport> transport = comm::make_mpi_transport();
  const int rank = transport->rank();
  if (transport->size() != n) base::fail_input("a test of {} ranks on mpi, and mpirun started {}", n, transport->size());
  comm::World world(std::move(transport), course.world_options(rank, nullptr));
  comm::Ledger ledger;
  std::exception_ptr how;
  try {
    course.run(world, body);
    ledger = ledger_of_all(world);
  } catch (const std::exception& error) {
    world.fail(error);
    how = std::current_exception();
  }
  course.end(rank, how);
  Run run = course.result();
  run.ledger = std::move(ledger);
  return run;
}

}  // namespace

std::string name(On on) {
  switch (on) {
    case On::local:
      return "local";
    case On::net:
      return "net";
    case On::machines:
      return "machines";
    case On::mpi:
      return "mpi";
  }
  return "?";
}

Faults& Faults::add(comm::Fault fault) {
  all_.push_back(std::move(fault));
  return *this;
}

Faults& Faults::lose(const Point& p) {
  return add({.kind = comm::Fault::Kind::kill, .rank = p.rank, .before_collective = p.before_collective, .at = p.at});
}

Faults& Faults::freeze(const Freeze& f) {
  return add(
      {.kind = comm::Fault::Kind::freeze, .rank = f.rank, .before_collective = f.before_collective, .at = f.at, .lasts = f.thaw_after});
}

Faults& Faults::slow(const Slow& s) {
  return add({.kind = comm::Fault::Kind::slow,
              .rank = s.rank,
              .before_collective = s.before_collective,
              .at = s.at,
              .by = s.pause,
              .factor = s.link_factor});
}

Faults& Faults::drop(const Message& m) {
  return add({.kind = comm::Fault::Kind::drop, .at = m.at, .from = m.from, .to = m.to, .message = m.message});
}

Faults& Faults::delay(const Delay& d) {
  return add({.kind = comm::Fault::Kind::delay, .at = d.at, .from = d.from, .to = d.to, .message = d.message, .by = d.by});
}

Faults& Faults::reorder(const Message& m) {
  return add({.kind = comm::Fault::Kind::reorder, .at = m.at, .from = m.from, .to = m.to, .message = m.message});
}

Faults& Faults::corrupt(const Damage& d) {
  return add({.kind = comm::Fault::Kind::corrupt, .at = d.at, .from = d.from, .to = d.to, .message = d.message, .bit = d.bit});
}

Faults& Faults::partition(const Partition& p) {
  return add(
      {.kind = comm::Fault::Kind::partition, .at = p.at, .lasts = p.heal_after, .these = p.these, .those = p.those, .one_way = p.one_way});
}

const Error& Run::error_on(int rank) const {
  static const Error none(Error::Kind::broken_invariant, "this rank had no error");
  const auto found = errors.find(rank);
  if (found != errors.end()) return found->second;
  ADD_FAILURE() << "rank " << rank << " ended without an error";
  return none;
}

Run on_ranks(int n, const Options& options, const Faults& faults, const std::function<void(comm::World&)>& body) {
  switch (options.on) {
    case On::local:
      return run_local(n, options, faults, body);
    case On::net:
    case On::machines:
      return run_net(n, options, faults, body);
    case On::mpi:
      return run_mpi(n, options, faults, body);
  }
  base::fail_input("no such transport");
}

Run on_ranks(int n, const Options& options, const std::function<void(comm::World&)>& body) { return on_ranks(n, options, Faults(), body); }

Run on_ranks(int n, const Faults& faults, const std::function<void(comm::World&)>& body) { return on_ranks(n, Options(), faults, body); }

Run on_ranks(int n, const std::function<void(comm::World&)>& body) { return on_ranks(n, Options(), Faults(), body); }

}  // namespace cairn::harness
