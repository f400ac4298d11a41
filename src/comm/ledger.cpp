#include "comm/ledger.h"

#include <fmt/format.h>

namespace cairn::comm {

Ledger::Ledger(int64_t recent_max) : recent_max_(recent_max) {}

void Ledger::book(const Message& message) {
  Total& total = pairs_[{message.from, message.to}][static_cast<size_t>(message.purpose)];
  total.bytes += message.bytes;
  total.messages += 1;
  recent_.push_back(message);
  if (static_cast<int64_t>(recent_.size()) > recent_max_) recent_.pop_front();
}

void Ledger::merge(const Ledger& other) {
  for (const auto& [pair, totals] : other.pairs_) {
    auto& mine = pairs_[pair];
    for (size_t p = 0; p < totals.size(); ++p) {
      mine[p].bytes += totals[p].bytes;
      mine[p].messages += totals[p].messages;
    }
  }
  channels_.insert(other.channels_.begin(), other.channels_.end());
  recent_.insert(recent_.end(), other.recent_.begin(), other.recent_.end());
  while (static_cast<int64_t>(recent_.size()) > recent_max_) recent_.pop_front();
}

int64_t Ledger::bytes_sent(int rank, Purpose purpose) const {
  int64_t bytes = 0;
  for (const auto& [pair, totals] : pairs_) {
    if (pair.first == rank) bytes += totals[static_cast<size_t>(purpose)].bytes;
  }
  return bytes;
}

int64_t Ledger::messages_sent(int rank, Purpose purpose) const {
  int64_t messages = 0;
  for (const auto& [pair, totals] : pairs_) {
    if (pair.first == rank) messages += totals[static_cast<size_t>(purpose)].messages;
  }
  return messages;
}

Ledger::Total Ledger::total(Purpose purpose) const {
  Total sum;
  for (const auto& [pair, totals] : pairs_) {
    sum.bytes += totals[static_cast<size_t>(purpose)].bytes;
    sum.messages += totals[static_cast<size_t>(purpose)].messages;
  }
  return sum;
}

Ledger::Total Ledger::total() const {
  Total sum;
  for (int p = 0; p < kPurposes; ++p) {
    const Total part = total(static_cast<Purpose>(p));
    sum.bytes += part.bytes;
    sum.messages += part.messages;
  }
  return sum;
}

Ledger::Total Ledger::between(int from, int to, Purpose purpose) const {
  const auto found = pairs_.find({from, to});
  return found == pairs_.end() ? Total{} : found->second[static_cast<size_t>(purpose)];
}

std::string Ledger::json() const {
  std::string purposes, pairs;
  for (int p = 0; p < kPurposes; ++p) {
    const auto purpose = static_cast<Purpose>(p);
    const Total sum = total(purpose);
    purposes +=
        fmt::format("{}\n    \"{}\": {{\"bytes\": {}, \"messages\": {}}}", p == 0 ? "" : ",", name(purpose), sum.bytes, sum.messages);
  }
  for (const auto& [pair, totals] : pairs_) {
    for (int p = 0; p < kPurposes; ++p) {
      if (totals[p].messages == 0) continue;
      pairs += fmt::format("{}\n    {{\"from\": {}, \"to\": {}, \"purpose\": \"{}\", \"bytes\": {}, \"messages\": {}}}",
                           pairs.empty() ? "" : ",", pair.first, pair.second, name(static_cast<Purpose>(p)), totals[p].bytes,
                           totals[p].messages);
    }
  }
  std::string channels;
  for (const auto& [which, one] : channels_) {
    const auto [from, to, number] = which;
    channels += fmt::format(
        "{}\n    {{\"from\": {}, \"to\": {}, \"channel\": {}, \"interface\": {}, \"bytes\": {}, \"pieces\": {}, \"moved\": {}, "
        "\"bytes_per_s\": {:.0f}, \"lost\": {}}}",
        channels.empty() ? "" : ",", from, to, number, one.plane, one.bytes, one.pieces, one.moved, one.bytes_per_s,
        one.lost_because.empty() ? "false" : "true");
  }
  if (!channels.empty()) channels = fmt::format(",\n  \"channels\": [{}\n  ]", channels);
  return fmt::format("{{\n  \"by_purpose\": {{{}\n  }},\n  \"pairs\": [{}\n  ]{}\n}}\n", purposes, pairs, channels);
}

}  // namespace cairn::comm
