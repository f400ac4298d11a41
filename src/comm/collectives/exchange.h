#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/envelope.h"
#include "comm/transport.h"

namespace cairn::comm {

// One operation's view of the transport: peers are positions in the group, messages are told apart by a step number.
class Exchange {
 public:
  Exchange(Transport& transport, const std::vector<int>& ranks, int me, Envelope envelope, Purpose purpose);

  int rank() const { return me_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  Completion send(int peer, uint32_t step, const void* data, int64_t bytes);
  Completion recv(int peer, uint32_t step, void* into, int64_t bytes);
  Completion recv_view(int peer, uint32_t step, int64_t bytes);  // read where it lies

  // Where all of these ranks share memory, they need no messages; null where they do not.
  ShmGroup* shm_group() const { return transport_.shm_group(ranks_, envelope_.group); }
  Completion watch(uint32_t step, Completion completion);  // so that it is known for whom this operation waits
  uint64_t& matched() { return matched_; }                 // positions of those who were met in this operation, as bits
  const Envelope& envelope() const { return envelope_; }
  Purpose purpose() const { return purpose_; }
  std::chrono::nanoseconds begun() const { return begun_; }
  Transport& transport() const { return transport_; }

  Chunking chunking() const { return transport_.chunking(ranks_); }
  LinkFacts link_facts() const { return transport_.link_facts(ranks_); }

  // The world's numbers of those whose messages of the earliest step are still missing; else of those who do not take ours.
  std::vector<int> late() const;
  // The world's numbers of those from whom a message of this operation has come, so that they are in the same one.
  std::vector<int> heard() const;

 private:
  Transport& transport_;
  const std::vector<int>& ranks_;
  int me_;
  Envelope envelope_;
  Purpose purpose_;
  std::chrono::nanoseconds begun_;  // by the transport's clock
  uint64_t matched_ = 0;
  std::vector<std::pair<uint32_t, std::shared_ptr<Transfer>>> watched_;  // with their steps
};

}  // namespace cairn::comm
