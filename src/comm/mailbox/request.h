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

// A received message.
struct MailboxMessage {
  std::string from, to, tag;
  uint64_t epoch = 0;
  Purpose purpose = Purpose::control;
  std::vector<std::byte> body = {};
  std::string_view text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
};

// A handle on a send, a receive, a timer or a fetch; cheap to copy. It is a Work with its own time limit that can be cancelled. Dropping
// the last handle cancels a receive or a fetch; a send goes on.
class Request {
 public:
  struct State;
  Request() = default;  // done already
  explicit Request(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool ready() const;              // done, failed or timed out; makes no progress
  void wait() const;               // throws the error
  bool timed_out() const;          // it failed at its time limit
  void cancel() const;             // wait() then throws Error::Kind::cancelled; no effect if it is done
  MailboxMessage message() const;  // of a receive: waits and returns the message, once
  Work work() const;               // as a Work, for Work::all

 private:
  friend class Mailbox;
  std::shared_ptr<State> state_;
};

}  // namespace cairn::comm
