#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "comm/label.h"

namespace cairn::comm {

// Counts what was really sent. The transport of the sending rank books every message; every claim about communication is read from here.
// Bytes are payload without headers. A rank's ledger holds what that rank sent; merged ledgers hold the traffic of the world.
class Ledger {
 public:
  struct Message {
    int from = 0;
    int to = 0;
    int64_t bytes = 0;
    Purpose purpose = Purpose::control;
    std::chrono::nanoseconds begun{};  // passed to the transport
    std::chrono::nanoseconds ended{};  // left this rank (net), arrived (local)
  };
  struct Total {
    int64_t bytes = 0;
    int64_t messages = 0;
    bool operator==(const Total&) const = default;
  };

  explicit Ledger(int64_t recent_max = 4096);

  void book(const Message& message);
  void merge(const Ledger& other);

  int64_t bytes_sent(int rank, Purpose purpose) const;
  int64_t messages_sent(int rank, Purpose purpose) const;
  Total total(Purpose purpose) const;
  Total total() const;
  Total between(int from, int to, Purpose purpose) const;
  const std::deque<Message>& recent() const { return recent_; }  // the last messages, oldest first

  // {"by_purpose": {"gradient": {"bytes", "messages"}, ...}, "pairs": [{"from", "to", "purpose", "bytes", "messages"}, ...]}
  std::string json() const;

 private:
  int64_t recent_max_;
  std::map<std::pair<int, int>, std::array<Total, kPurposes>> pairs_;
  std::deque<Message> recent_;
};

}  // namespace cairn::comm
