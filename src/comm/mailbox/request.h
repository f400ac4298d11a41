#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/label.h"
#include "comm/work.h"

namespace cairn::comm {

// A message as its reader gets it.
struct MailboxMessage {
  std::string from, to, tag;
  uint64_t epoch = 0;
  Purpose purpose = Purpose::control;
  std::vector<std::byte> body = {};
  std::string_view text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
};

// Something a node waits for: a message to go or to come, a time, bytes to be fetched. A Work with a time limit of its own, that can be
// called off. A handle, cheap to copy; a receive or a fetch is given up with its last handle, a message to be sent goes all the same.
class Request {
 public:
  struct State;
  Request() = default;  // done already
  explicit Request(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool ready() const;              // done, failed, or its time is over; makes no progress
  void wait() const;               // throws what went wrong
  bool timed_out() const;          // it failed because its time was over
  void cancel() const;             // who waits for it gets Error::Kind::cancelled; nothing where it is done already
  MailboxMessage message() const;  // of a receive: waits, and hands the message over, once
  Work work() const;               // the same, for Work::all

 private:
  friend class Mailbox;
  std::shared_ptr<State> state_;
};

}  // namespace cairn::comm
