#include "comm/mailbox_errand.h"

#include <utility>

#include "base/check.h"
#include "comm/mailbox_state.h"

namespace cairn::comm {

Errand::State::State(std::shared_ptr<Mailbox::State> of, Kind what_kind, std::chrono::nanoseconds within, std::string description)
    : owner(std::move(of)), kind(what_kind), begun(owner->now()), due(begun + within), what(std::move(description)) {}

bool Errand::State::ready() const { return complete || owner->closed || owner->now() >= due; }

void Errand::State::wait() {
  while (!complete && !owner->closed && owner->now() < due) {  // a fetch that goes on moves its due time
    owner->drive([this] { return ready(); }, due, what);
  }
  if (!complete) owner->expire(*this);
  if (error) throw Error(*error);
}

void Errand::State::succeed() { complete = true; }

void Errand::State::fail(Error failure) {
  if (complete) return;
  complete = true;
  error = std::move(failure.with("as " + what));
}

bool Errand::ready() const { return !state_ || state_->ready(); }

void Errand::wait() const {
  if (state_) state_->wait();
}

bool Errand::timed_out() const { return state_ && state_->timed_out; }

void Errand::cancel() const {
  if (!state_ || state_->complete) return;
  state_->fail(Error(Error::Kind::cancelled, "called off by the one who asked for it"));
}

Mail Errand::mail() const {
  CAIRN_CHECK(state_ && state_->kind == State::Kind::receive, "mail() of an errand that receives none");
  state_->wait();
  CAIRN_CHECK(state_->mail, "the mail of one receive is taken twice");
  Mail mail = std::move(*state_->mail);
  state_->mail.reset();
  return mail;
}

Work Errand::work() const { return state_ ? Work(state_) : Work(); }

}  // namespace cairn::comm
