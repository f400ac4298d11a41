#include "comm/mailbox/request.h"

#include <utility>

#include "base/check.h"
#include "comm/mailbox/state.h"

namespace cairn::comm {

Request::State::State(std::shared_ptr<Mailbox::State> of, Kind what_kind, std::chrono::nanoseconds within, std::string description)
    : owner(std::move(of)), kind(what_kind), begun(owner->now()), due(begun + within), what(std::move(description)) {}

bool Request::State::ready() const { return complete || owner->closed || owner->now() >= due; }

void Request::State::wait() {
  while (!complete && !owner->closed && owner->now() < due) {  // a fetch that advances moves its due time
    owner->drive([this] { return ready(); }, due, what);
  }
  if (!complete) owner->expire(*this);
  if (error) throw Error(*error);
}

void Request::State::succeed() { complete = true; }

void Request::State::fail(Error failure) {
  if (complete) return;
  complete = true;
  error = std::move(failure.with("as " + what));
}

bool Request::ready() const { return !state_ || state_->ready(); }

void Request::wait() const {
  if (state_) state_->wait();
}

bool Request::timed_out() const { return state_ && state_->timed_out; }

void Request::cancel() const {
  if (!state_ || state_->complete) return;
  state_->fail(Error(Error::Kind::cancelled, "cancelled by its owner"));
}

MailboxMessage Request::message() const {
  CAIRN_CHECK(state_ && state_->kind == State::Kind::receive, "message() of a request that receives none");
  state_->wait();
  CAIRN_CHECK(state_->message, "the message of one receive is taken twice");
  MailboxMessage message = std::move(*state_->message);
  state_->message.reset();
  return message;
}

Work Request::work() const { return state_ ? Work(state_) : Work(); }

}  // namespace cairn::comm
