#include "comm/operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr size_t kPastMax = 256;  // records kept per group

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
      begun(owner.transport.clock().now()),
      deadline(owner.deadline) {}

std::string Operation::describe() const { return comm::describe(signature, what); }

void Operation::wait() {
  if (!complete) {
    Transport& transport = group->transport;
    const auto from = transport.clock().now();
    const auto warn_at = from + group->world.warn_after();
    const auto until = from + deadline;
    const auto done = [this] {
      if (group) group->settle();
      return complete;
    };
    try {
      bool in_time = transport.drive(done, std::min(warn_at, until), describe());
      if (!in_time && warn_at < until) {
        warn(transport.clock().now() - from);
        in_time = transport.drive(done, until, describe());
      }
      if (!in_time) group->fail_all(timed_out(transport.clock().now() - from));
    } catch (const Error& stuck) {
      if (group) group->fail_all(Error(stuck).with(group->where(*this)));
    }
  }
  if (error) throw Error(*error);
}

Error Operation::timed_out(std::chrono::nanoseconds waited) const {
  const std::vector<int> late = exchange.late();
  Error failure(Error::Kind::lost_peer,
                fmt::format("rank {} lost: silent for {:.1f} s in {}", fmt::join(late, ", "), base::seconds(waited), describe()));
  failure.about_peer(late.empty() ? -1 : late.front()).with(group->where(*this));
  return failure;
}

void Operation::warn(std::chrono::nanoseconds waited) const {
  group->world.log().warn("waiting for rank {} waited_s={:.1f} in {} ({})", fmt::join(exchange.late(), ", "), base::seconds(waited),
                          describe(), group->where(*this));
}

void Operation::end(std::optional<Error> failure) {
  if (complete) return;
  error = std::move(failure);
  complete = true;
  task.destroy();
  keep.reset();
  group->note_end(*this);
  group = nullptr;
}

Work Group::State::start(const Signature& signature, Label label, Arguments arguments, Task (*algorithm)(Exchange&, const Arguments&)) {
  const bool collective = signature.kind != OperationKind::send_recv;
  if (collective) world.before_collective();
  uint64_t& counter = collective ? next_sequence : algorithm == &send_one ? next_sent[arguments.root] : next_received[arguments.root];
  const uint64_t sequence = counter++;
  const Envelope envelope = addressed(*this, signature, sequence, label.what);
  auto operation = std::make_shared<Operation>(*this, signature, sequence, label, std::move(arguments), envelope);
  if (collective) {
    OperationRecord record{sequence, operation->describe(), label.purpose, operation->begun, {}, false};
    past.push_back({std::move(record), signature, operation->what});
    if (past.size() > kPastMax) past.pop_front();
    if (!broken) world.check_earlier(*this, sequence);
  }
  if (broken) {
    operation->end(broken_for(*operation));
    return Work(std::move(operation));
  }
  operation->keep = std::exchange(keep_next, nullptr);
  operation->task = algorithm(operation->exchange, operation->arguments);
  collective ? collectives.push_back(operation) : point_to_point.push_back(operation);
  settle();
  return Work(std::move(operation));
}

void Group::State::settle() {
  const auto failed = [](const Operation& operation) { return operation.task.done() && operation.task.error(); };
  for (const auto& operation : collectives) {
    if (failed(*operation)) return fail_all(as_error(operation->task.error()).with(where(*operation)));
  }
  for (const auto& operation : point_to_point) {
    if (failed(*operation)) return fail_all(as_error(operation->task.error()).with(where(*operation)));
  }
  while (!collectives.empty() && collectives.front()->task.done()) {
    const auto operation = std::move(collectives.front());
    collectives.pop_front();
    operation->end(std::nullopt);
  }
  for (size_t i = 0; i < point_to_point.size();) {
    if (point_to_point[i]->task.done()) {
      const auto operation = std::exchange(point_to_point[i], std::move(point_to_point.back()));
      point_to_point.pop_back();
      operation->end(std::nullopt);
    } else {
      ++i;
    }
  }
  if (broken && (!collectives.empty() || !point_to_point.empty())) return fail_all(*broken);
  for (; losses_seen < transport.losses().size(); ++losses_seen) {
    const Loss& loss = transport.losses()[losses_seen];
    if (std::find(ranks.begin(), ranks.end(), loss.rank) == ranks.end()) continue;
    Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: {}", loss.rank, loss.reason));
    error.about_peer(loss.culprit);
    return fail_all(error);
  }
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
  if (broken || envelope.group != id) return;
  for (const Past& one : past) {
    if (one.record.sequence != envelope.sequence || one.signature == envelope.signature) continue;
    broken = mismatch(from, envelope, transport.rank(), one.signature, one.what);
    broken->with(fmt::format("operation {} of ranks {}", envelope.sequence, fmt::join(ranks, " ")));
    return;
  }
}

void Group::State::note_end(const Operation& operation) {
  if (operation.signature.kind == OperationKind::send_recv) return;
  for (auto one = past.rbegin(); one != past.rend(); ++one) {
    if (one->record.sequence != operation.sequence) continue;
    one->record.ended = transport.clock().now();
    one->record.failed = operation.error.has_value();
    return;
  }
}

std::string Group::State::where(const Operation& operation) const {
  const char* kind = operation.signature.kind == OperationKind::send_recv ? "message" : "operation";
  return fmt::format("{} {} of ranks {}", kind, operation.sequence, fmt::join(ranks, " "));
}

}  // namespace cairn::comm
