#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
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

  // One of several connections of a pair (net, channels above 1).
  struct Channel {
    int plane = 0;           // the interface that it uses
    int64_t bytes = 0;       // of payload, written to its socket
    int64_t pieces = 0;      // likewise
    int64_t moved = 0;       // of these, sent again on others after it was lost
    double bytes_per_s = 0;  // measured last; 0: never
    std::string lost_because = {};
  };

  explicit Ledger(int64_t recent_max = 4096);

  void book(const Message& message);
  void set_channel(int from, int to, int channel, Channel state) { channels_[{from, to, channel}] = std::move(state); }
  void merge(const Ledger& other);

  int64_t bytes_sent(int rank, Purpose purpose) const;
  int64_t messages_sent(int rank, Purpose purpose) const;
  Total total(Purpose purpose) const;
  Total total() const;
  Total between(int from, int to, Purpose purpose) const;
  const std::map<std::tuple<int, int, int>, Channel>& channels() const { return channels_; }  // by from, to, number
  const std::deque<Message>& recent() const { return recent_; }                               // the last messages, oldest first

  // {"by_purpose": {"gradient": {"bytes", "messages"}, ...}, "pairs": [{"from", "to", "purpose", "bytes", "messages"}, ...]}; with channels
  // also "channels": [{"from", "to", "channel", "interface", "bytes", "pieces", "moved", "bytes_per_s", "lost"}, ...]
  std::string json() const;

 private:
  int64_t recent_max_;
  std::map<std::pair<int, int>, std::array<Total, kPurposes>> pairs_;
  std::map<std::tuple<int, int, int>, Channel> channels_;
  std::deque<Message> recent_;
};

}  // namespace cairn::comm
