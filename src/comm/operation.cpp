// The life of an operation: start, wait, completion in order, failure, and who is to blame.
//
// Waiting: spin first; then sleep in the transport, and look up every 0.5 s to check what the late ranks do, to warn after warn_after, and
// to fail at the deadline. The error names the late ranks, taken from three sources: posted receives without a message, status boards (what
// a rank started last), and lost connections.
//
// Completion: collectives of a group complete in the order of their start; a later one that is finished waits for the earlier ones. The
// first failure breaks the group.
//
// Mismatch: a message whose signature differs from this rank's operation of the same number starts a vote (collectives/mismatch.h).
#include "comm/operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "comm/collectives/roll_call.h"
#include "comm/flight/recorder.h"

namespace cairn::comm {
namespace {

constexpr size_t kPastMax = 256;                             // operations remembered per group
constexpr auto kLookAfter = std::chrono::milliseconds(500);  // of waiting, the boards of late ranks are read
constexpr auto kLookEvery = std::chrono::milliseconds(500);
constexpr auto kWordAfter = std::chrono::milliseconds(500);  // a rank that withdrew a message reports its reason within this time

Error as_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(Error::Kind::out_of_memory, "no memory for the buffers of a collective");
  } catch (const std::exception& error) {
    return Error(Error::Kind::broken_invariant, error.what());
  }
}

bool contains(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

// No rank can complete such an operation before all have started it.
bool needs_all(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce:
    case OperationKind::coded_all_reduce:
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
    case OperationKind::barrier:
      return true;
    default:
      return false;
  }
}

Envelope addressed(const Group::State& group, const Signature& signature, uint64_t sequence, std::string_view what) {
  Envelope envelope;
  envelope.group = group.id + (signature.kind == OperationKind::send_recv ? 1 : 0);
  envelope.sequence = sequence;
  envelope.signature = signature;
  std::memcpy(envelope.what, what.data(), std::min(what.size(), sizeof(envelope.what) - 1));
  return envelope;
}

}  // namespace

Operation::Operation(Group::State& owner, const Signature& what_it_is, uint64_t number, Label label, Arguments on, const Envelope& envelope)
    : group(&owner),
      signature(what_it_is),
      sequence(number),
      what(label.what),
      purpose(label.purpose),
      arguments(std::move(on)),
      exchange(owner.transport, owner.ranks, owner.me, envelope, label.purpose),
      begun(exchange.begun()),
      deadline(owner.deadline) {}

std::string Operation::describe() const { return comm::describe(signature, what); }

void Operation::wait() {
  if (!complete && job) {
    wait_for([this] { return job->state() == DeviceJob::State::queued || job->state() == DeviceJob::State::done; });
    if (!complete) return job->order(current_stream());
  }
  wait_host();
}

void Operation::wait_host() {
  wait_for([] { return false; });
  if (error) throw Error(*error);
}

// Waits until it is complete, or `reached` holds.
void Operation::wait_for(const std::function<bool()>& reached) {
  const auto done = [&] {
    if (group) group->settle();
    return complete || reached();
  };
  if (complete || (job && done())) return;
  World& world = group->world;  // a failure may end the group
  FlightRecorder* const recorder = flight ? group->transport.recorder() : nullptr;
  const auto begun_waiting = world.wall().now();
  if (recorder) recorder->begin_wait(*flight);
  if (!group->transport.spin(done)) wait_long(done);
  if (recorder) recorder->end_wait(*flight, complete && error);
  world.waited_ += world.wall().now() - begun_waiting;
}

void Operation::wait_long(const std::function<bool()>& done) {
  Transport& transport = group->transport;
  const auto from = transport.clock().now();
  const auto until = from + deadline;
  auto warn_at = from + group->world.warn_after();
  auto look_at = from + kLookAfter;
  try {
    while (!complete) {
      if (transport.drive(done, std::min({until, warn_at, look_at}), describe())) return;
      const auto now = transport.clock().now();
      if (FlightRecorder* recorder = transport.recorder()) recorder->still_waiting();
      group->resolve_mismatch();
      if (complete) return;
      if (now >= until) {
        const auto left = [&](int rank) { return transport.left(rank); };
        const auto undecided = group->mismatch ? group->mismatch->undecided(left, now - from) : std::nullopt;
        return group->fail_all(undecided ? *undecided : timed_out(now - from));
      }
      if (now >= warn_at) {
        warn(now - from);
        warn_at = until;
      }
      if (now >= look_at) {
        look_at = now + kLookEvery;
        group->check_statuses(blocking_operation());
      }
    }
  } catch (const Error& stuck) {
    if (group) group->fail_all(Error(stuck).with(group->where(*this)));
  }
}

const Operation& Operation::blocking_operation() const {
  if (signature.kind == OperationKind::send_recv) return *this;
  for (const auto& one : group->collectives) {
    if (one->under_way()) return *one;
  }
  return *this;
}

std::vector<int> Operation::culprits() const {
  const std::vector<int> late = exchange.late();
  if (signature.kind == OperationKind::send_recv) return late.empty() ? std::vector{group->ranks[arguments.root]} : late;
  if (job && exchange.size() <= kRollCallOfAll) return late;
  std::vector<int> absent, elsewhere;
  for (const int rank : group->ranks) {
    if (rank == group->transport.rank()) continue;
    const auto theirs = group->transport.last_started(rank);
    if (!theirs || theirs->group != group->id) {
      elsewhere.push_back(rank);  // it may have started ours earlier
    } else if (theirs->sequence < sequence) {
      const bool then = group->transport.clock().now() - begun < group->transport.status_age(rank);  // its status may be older than ours
      (then ? elsewhere : absent).push_back(rank);
    }
  }
  if (!absent.empty() && needs_all(signature.kind)) return absent;
  if (job) return absent.empty() ? late : absent;
  std::vector<int> missed;
  for (const int rank : late) {
    if (contains(absent, rank) || contains(elsewhere, rank)) missed.push_back(rank);
  }
  if (!missed.empty()) return missed;
  if (!absent.empty()) return absent;
  return elsewhere.empty() ? late : elsewhere;
}

Error Operation::timed_out(std::chrono::nanoseconds waited) const {
  if (&blocking_operation() != this) return blocking_operation().timed_out(waited);
  const std::vector<int> late = culprits();
  Error timeout(Error::Kind::lost_peer,
                late.empty()
                    ? fmt::format("not done after {:.1f} s though all ranks are in it: {}", base::seconds(waited), describe())
                    : fmt::format("rank {} lost: silent for {:.1f} s in {}", fmt::join(late, ", "), base::seconds(waited), describe()));
  timeout.about_peer(late.empty() ? -1 : late.front()).with(group->where(*this));
  return timeout;
}

void Operation::warn(std::chrono::nanoseconds waited) const {
  if (&blocking_operation() != this) return blocking_operation().warn(waited);
  std::string doing;
  const std::vector<int> late = culprits();
  for (const int rank : late) {
    if (const auto theirs = group->transport.last_started(rank)) {
      doing += fmt::format("; rank {} last started {}", rank, comm::describe(theirs->signature, theirs->what));
    }
  }
  const std::string whom = late.empty() ? "the device" : fmt::format("rank {}", fmt::join(late, ", "));
  group->world.log().warn("waiting for {} waited_s={:.1f} in {} ({}){}", whom, base::seconds(waited), describe(), group->where(*this),
                          doing);
}

bool Operation::under_way() const { return !task.done() || (job && job->state() < DeviceJob::State::done); }

bool Operation::finished() const { return !under_way() && !failure(); }

std::optional<Error> Operation::failure() const {
  if (task.done() && task.error()) return as_error(task.error());
  if (job && job->state() == DeviceJob::State::failed) return job->error();
  return std::nullopt;
}

void Operation::end(std::optional<Error> how) {
  if (complete) return;
  error = std::move(how);
  complete = true;
  if (job) std::exchange(job, nullptr)->cancel();
  task.destroy();
  keep.reset();
  group->note_end(*this);
  group = nullptr;
}

Work Group::State::start(Signature signature, Label label, Arguments arguments, Coroutine (*algorithm)(Exchange&, const Arguments&)) {
  const bool collective = signature.kind != OperationKind::send_recv;
  const bool device = arguments.out.stream || arguments.in.stream;
  std::string marked;
  if (device)
    label.what = marked =
        fmt::format("{} on the device", label.what.empty() ? "a tensor" : label.what);  // the signature tells device operations apart
  if (collective) {
    world.before_collective();
    signature.label = label_hash(label.what);
  }
  uint64_t& counter = collective ? next_sequence : algorithm == &send_one ? next_sent[arguments.root] : next_received[arguments.root];
  const uint64_t sequence = counter++;
  const Envelope envelope = addressed(*this, signature, sequence, label.what);
  auto operation = std::make_shared<Operation>(*this, signature, sequence, label, std::move(arguments), envelope);
  if (collective) {
    past.push_back(
        {.sequence = sequence, .signature = signature, .what = operation->what, .purpose = label.purpose, .begun = operation->begun});
    const uint64_t oldest = collectives.empty() ? sequence : collectives.front()->sequence;
    while (past.size() > kPastMax && past.front().sequence < oldest) past.pop_front();
    if (!broken) world.check_earlier(*this, sequence);
    if (mismatch) resolve_mismatch();
  }
  if (broken) {
    operation->end(broken_for(*operation));
    return Work(std::move(operation));
  }
  transport.publish_operation(envelope);
  record(*operation, envelope, algorithm == &send_one);
  operation->keep = std::exchange(keep_next, nullptr);
  if (device) {
    hand_over(*operation, algorithm == &send_one);
  } else {
    operation->task = algorithm(operation->exchange, operation->arguments);
  }
  collective ? collectives.push_back(operation) : point_to_point.push_back(operation);
  settle();
  return Work(std::move(operation));
}

void Group::State::record(Operation& operation, const Envelope& envelope, bool sends) {
  FlightRecorder* const recorder = transport.recorder();
  if (!recorder) return;
  const Signature& signature = operation.signature;
  const int place = signature.kind == OperationKind::send_recv ? operation.arguments.root : signature.root;
  const int peer = place >= 0 ? ranks[place] : -1;
  operation.flight =
      recorder->begin_operation(envelope, operation.purpose, signature.count * size_of(signature.dtype), peer, sends, operation.begun);
  operation.exchange.record(recorder, *operation.flight);
}

void Group::State::settle() {
  if (broken && (!collectives.empty() || !point_to_point.empty())) return fail_all(*broken);
  if (mismatch) resolve_mismatch();
  if (!check_lost_peers(/*only_tainted=*/true)) return;
  for (const auto& operation : collectives) {
    const auto error = operation->failure();
    if (!error) continue;
    // While a mismatch waits for reports, its consequences (mismatch errors, peers that left) are not reported.
    if (!mismatch_pending() || (!is_mismatch(*error) && error->kind() != Error::Kind::lost_peer)) return give_up(*operation, *error);
  }
  for (const auto& operation : point_to_point) {
    if (const auto error = operation->failure()) return give_up(*operation, *error);
  }
  while (!collectives.empty() && collectives.front()->finished()) {
    const auto operation = std::move(collectives.front());
    collectives.pop_front();
    operation->end(std::nullopt);
  }
  for (size_t i = 0; i < point_to_point.size();) {
    if (point_to_point[i]->finished()) {
      const auto operation = std::exchange(point_to_point[i], std::move(point_to_point.back()));
      point_to_point.pop_back();
      operation->end(std::nullopt);
    } else {
      ++i;
    }
  }
  check_lost_peers(/*only_tainted=*/false);
}

// A device operation that was aborted at its deadline does not know who was late.
void Group::State::give_up(const Operation& operation, const Error& error) {
  const auto waited = transport.clock().now() - operation.begun;
  if (operation.job && waited >= operation.deadline) return fail_all(operation.timed_out(waited));
  fail_all(Error(error).with(where(operation)));
}

// Returns whether this group goes on. Messages that a lost member sent before count, so finished operations complete first, except after a
// tainted loss (its last message may be wrong). A rank that withdrew a message had a reason; wait a moment for the report of it.
bool Group::State::check_lost_peers(bool only_tainted) {
  const LostPeer *tainted = nullptr, *told = nullptr;
  for (size_t i = lost_peers_seen; i < transport.lost_peers().size(); ++i) {
    const LostPeer& loss = transport.lost_peers()[i];
    if (!contains(ranks, loss.rank)) continue;
    const LostPeer*& first = loss.tainted ? tainted : told;
    if (!first) first = &loss;
  }
  if (tainted && !told) {
    const auto now = transport.clock().now();
    if (!tainted_since) tainted_since = now;
    if (now - *tainted_since < kWordAfter) return false;
  }
  if (tainted || (told && !only_tainted)) {
    const LostPeer& loss = told ? *told : *tainted;
    // The reporting rank's own text describes the loss of a third rank.
    const bool told_of = loss.culprit >= 0 && loss.culprit != loss.rank && loss.reason.starts_with("rank ");
    Error error(Error::Kind::lost_peer, told_of ? fmt::format("{} (as rank {} says)", loss.reason, loss.rank)
                                                : fmt::format("rank {} lost: {}", loss.rank, loss.reason));
    error.about_peer(loss.culprit);
    fail_all(error);
    return false;
  }
  if (!only_tainted) lost_peers_seen = transport.lost_peers().size();
  return true;
}

void Group::State::fail_all(const Error& error) {
  if (!broken) broken = error;
  auto first = std::exchange(collectives, {});
  const auto second = std::exchange(point_to_point, {});
  first.insert(first.end(), second.begin(), second.end());
  for (const auto& operation : first) {
    operation->end(broken_for(*operation));
  }
}

Error Group::State::broken_for(const Operation& operation) const {
  Error own = *broken;
  if (own.context().empty()) own.with(fmt::format("in {}, {}", operation.describe(), where(operation)));
  return own;
}

void Group::State::check_early(int from, const Envelope& envelope) {
  if (broken || envelope.group != id || !contains(ranks, from)) return;
  const Past* ours = called(envelope.sequence);
  if (!ours) return;
  if (ours->signature != envelope.signature || envelope.step == kSignatureReport) {
    note_mismatch(*ours, from, envelope);
  } else if (mismatch && mismatch->sequence() == envelope.sequence) {
    mismatch->agrees(from);
  }
}

const Group::State::Past* Group::State::called(uint64_t sequence) const {
  if (past.empty() || sequence < past.front().sequence || sequence > past.back().sequence) return nullptr;
  return &past[sequence - past.front().sequence];
}

void Group::State::note_mismatch(const Past& ours, int from, const Envelope& theirs) {
  if (mismatch && mismatch->sequence() < ours.sequence) return;
  if (!mismatch || mismatch->sequence() > ours.sequence) {
    const Envelope own = addressed(*this, ours.signature, ours.sequence, ours.what);
    mismatch.emplace(ranks, transport.rank(), own);
    signature_reports.push_back(report_signature(transport, ranks, own));
  }
  mismatch->hear(from, theirs);
}

void Group::State::resolve_mismatch() {
  if (!mismatch || broken) return;
  for (const auto& operation : collectives) {
    if (operation->sequence != mismatch->sequence()) continue;
    for (const int rank : operation->exchange.heard()) mismatch->agrees(rank);
  }
  for (const int rank : ranks) {
    const auto theirs = rank == transport.rank() ? std::nullopt : transport.last_started(rank);
    if (theirs && theirs->group == id && theirs->sequence == mismatch->sequence()) mismatch->hear(rank, *theirs);
  }
  if (const auto decided = mismatch->decide([this](int rank) { return transport.left(rank); })) fail_all(*decided);
}

bool Group::State::mismatch_pending() const {
  return mismatch && mismatch->waits([this](int rank) { return transport.left(rank); });
}

void Group::State::check_statuses(const Operation& operation) {
  if (operation.signature.kind == OperationKind::send_recv) return;
  for (const int rank : ranks) {
    const auto theirs = rank == transport.rank() ? std::nullopt : transport.last_started(rank);
    const bool same = theirs && theirs->group == id && theirs->sequence == operation.sequence;
    if (same && theirs->signature != operation.signature) note_mismatch(*called(operation.sequence), rank, *theirs);
  }
}

void Group::State::note_end(const Operation& operation) {
  if (operation.flight) transport.recorder()->end_operation(*operation.flight, operation.error.has_value());
  if (operation.signature.kind == OperationKind::send_recv) return;
  for (auto one = past.rbegin(); one != past.rend(); ++one) {
    if (one->sequence != operation.sequence) continue;
    one->ended = transport.clock().now();
    one->failed = operation.error.has_value();
    return;
  }
}

std::string Group::State::where(const Operation& operation) const {
  const char* kind = operation.signature.kind == OperationKind::send_recv ? "message" : "operation";
  return fmt::format("{} {} of ranks {}", kind, operation.sequence, fmt::join(ranks, " "));
}

}  // namespace cairn::comm
