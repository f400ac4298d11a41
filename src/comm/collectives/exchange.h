#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/envelope.h"
#include "comm/transport.h"

namespace cairn::comm {

// One operation's view of the transport: peers are positions in the group, and a step number tells messages apart.
class Exchange {
 public:
  Exchange(Transport& transport, const std::vector<int>& ranks, int me, Envelope envelope, Purpose purpose);

  int rank() const { return me_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  Completion send(int peer, uint32_t step, const void* data, int64_t bytes);
  Completion recv(int peer, uint32_t step, void* into, int64_t bytes);
  Completion recv_view(int peer, uint32_t step, int64_t bytes);  // read in place

  // The shared-memory group of these ranks; null: they do not all share memory.
  ShmGroup* shm_group() const { return transport_.shm_group(ranks_, envelope_.group); }
  Completion watch(uint32_t step, Completion completion);  // registers a wait, so that late() can name whom this operation waits for
  uint64_t& matched() { return matched_; }                 // bit i: position i was seen in this operation, in shared memory
  const Envelope& envelope() const { return envelope_; }
  Purpose purpose() const { return purpose_; }
  std::chrono::nanoseconds begun() const { return begun_; }
  // From now on the transfers are recorded as those of this operation.
  void record(FlightRecorder* recorder, uint64_t operation) { recorder_ = recorder, flight_ = operation; }
  Transport& transport() const { return transport_; }

  Chunking chunking() const { return transport_.chunking(ranks_); }
  LinkFacts link_facts() const { return transport_.link_facts(ranks_); }

  // World ranks whose messages of the earliest unfinished step are missing; if none, those that do not receive ours.
  std::vector<int> late() const;
  // World ranks from which a message of this operation has come: they are in the same operation.
  std::vector<int> heard() const;

 private:
  Completion recorded(Completion completion, int64_t bytes, std::chrono::nanoseconds begun) const;
  std::chrono::nanoseconds now() const { return recorder_ ? transport_.clock().now() : std::chrono::nanoseconds(); }

  Transport& transport_;
  const std::vector<int>& ranks_;
  int me_;
  Envelope envelope_;
  Purpose purpose_;
  std::chrono::nanoseconds begun_;  // on the transport's clock
  uint64_t matched_ = 0;
  FlightRecorder* recorder_ = nullptr;
  uint64_t flight_ = 0;
  std::vector<std::pair<uint32_t, std::shared_ptr<Transfer>>> watched_;  // with their steps
};

}  // namespace cairn::comm
