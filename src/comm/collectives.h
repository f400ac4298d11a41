#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/envelope.h"
#include "comm/group.h"
#include "comm/task.h"
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

  Pieces pieces() const { return transport_.pieces(ranks_); }

  // The world's numbers of those whose messages of the earliest step are still missing; else of those who do not take ours.
  std::vector<int> late() const;
  // The world's numbers of those from whom a message of this operation has come, so that they are in the same one.
  std::vector<int> heard() const;

 private:
  Completion watch(uint32_t step, Completion completion);

  Transport& transport_;
  const std::vector<int>& ranks_;
  int me_;
  Envelope envelope_;
  Purpose purpose_;
  std::vector<std::pair<uint32_t, std::shared_ptr<Transfer>>> watched_;  // with their steps
};

// What a collective works on; which fields count depends on the kind.
struct Arguments {
  Span out = {};
  Span in = {};
  Reduce reduce = Reduce::sum;
  int root = 0;
  std::vector<int64_t> counts = {};     // elements per rank: of out (gathering, all_to_all), of in (scattering)
  std::vector<int64_t> in_counts = {};  // all_to_all
};

// The algorithms, written once for every transport that offers point-to-point. Both references must outlive the task.
// Direct exchange throughout: each rank talks to each, so that whoever waits knows for whom.
Task all_reduce(Exchange& exchange, const Arguments& arguments);  // in place on `out`
Task broadcast(Exchange& exchange, const Arguments& arguments);   // in place on `out`
Task all_gather(Exchange& exchange, const Arguments& arguments);
Task reduce_scatter(Exchange& exchange, const Arguments& arguments);
Task gather(Exchange& exchange, const Arguments& arguments);
Task scatter(Exchange& exchange, const Arguments& arguments);
Task all_to_all(Exchange& exchange, const Arguments& arguments);
Task barrier(Exchange& exchange, const Arguments& arguments);
Task send_one(Exchange& exchange, const Arguments& arguments);  // `out`, to position `root`
Task recv_one(Exchange& exchange, const Arguments& arguments);  // `out`, from position `root`

}  // namespace cairn::comm
