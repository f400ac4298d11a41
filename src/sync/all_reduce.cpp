// Synchronous data parallelism: every gradient is summed over the replicas in every step, in buckets, while backward still runs.
//
//   g <- sum over replicas r of g_r       a sum, since the loss is already divided by the global token count
//
// Buckets are filled from the last gradient to the first, the order in which backward completes them (as PyTorch DDP does). Neighbouring
// gradients in one storage form one bucket, so a bucket is reduced in place. Buckets leave in one order on all ranks, whatever the order of
// completion, because collectives pair up by order. Frozen parameters are in no bucket.
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

// Neighbouring gradients that are reduced by one collective.
struct Bucket {
  std::string name = {};  // of its first gradient, for error messages
  at::Tensor flat = {};
  int64_t pieces = 0;
  int64_t missing = 0;  // gradients of this step that are not complete yet
};

bool touch(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.is_contiguous() && b.is_contiguous() && a.storage().is_alias_of(b.storage()) &&
         a.storage_offset() + a.numel() == b.storage_offset();
}

class AllReduce final : public Sync {
 public:
  AllReduce(const SyncOptions& options, Replica replica)
      : replica_(replica), bytes_max_(static_cast<int64_t>(options.bucket_mib * (1 << 20))) {
    make_buckets({});
  }

  void set_frozen(const std::vector<bool>& frozen) override { make_buckets(frozen); }

  void gradient_ready(int64_t index) override {
    ++announced_;
    if (const size_t bucket = bucket_of_[static_cast<size_t>(index)]; bucket != kFrozen) --buckets_[bucket].missing;
    while (next_ < buckets_.size() && buckets_[next_].missing == 0) {
      const Bucket& bucket = buckets_[next_++];
      pending_.push_back(replica_.replica_group.all_reduce(bucket.flat, comm::Reduce::sum, {comm::Purpose::gradient, bucket.name}));
    }
    replica_.replica_group.progress();
  }

  comm::Work after_backward(const StepFacts& facts) override {
    CAIRN_CHECK(announced_ == static_cast<int64_t>(replica_.gradients.size()), "{} of {} gradients announced at step {}", announced_,
                replica_.gradients.size(), facts.step);
    begin_step();
    return comm::Work::all(std::exchange(pending_, {}));
  }

  void on_membership(const Membership&) override {}  // keeps nothing per peer; the group itself has shrunk

 private:
  static constexpr size_t kFrozen = std::numeric_limits<size_t>::max();  // in no bucket

  // `frozen`: by gradient; empty: none is.
  void make_buckets(const std::vector<bool>& frozen) {
    buckets_.clear();
    bucket_of_.assign(replica_.gradients.size(), kFrozen);
    for (size_t i = replica_.gradients.size(); i-- > 0;) {
      if (!frozen.empty() && frozen[i]) continue;
      const mesh::NamedTensor& g = replica_.gradients[i];
      Bucket* open = buckets_.empty() ? nullptr : &buckets_.back();
      if (open && touch(g.tensor, open->flat) && static_cast<int64_t>(open->flat.nbytes() + g.tensor.nbytes()) <= bytes_max_) {
        open->flat = g.tensor.as_strided({g.tensor.numel() + open->flat.numel()}, {1}, g.tensor.storage_offset());
      } else {
        buckets_.push_back({.flat = g.tensor.view({-1})});
        open = &buckets_.back();
      }
      open->name = g.name;
      ++open->pieces;
      bucket_of_[i] = buckets_.size() - 1;
    }
    begin_step();
  }

  void begin_step() {
    for (Bucket& bucket : buckets_) bucket.missing = bucket.pieces;
    next_ = 0;
    announced_ = 0;
  }

  Replica replica_;
  const int64_t bytes_max_;
  std::vector<Bucket> buckets_;    // in the order in which they leave
  std::vector<size_t> bucket_of_;  // by gradient; kFrozen: in none
  size_t next_ = 0;                // first bucket that has not left in this step
  int64_t announced_ = 0;
  std::vector<comm::Work> pending_;
};

}  // namespace

std::unique_ptr<Sync> make_all_reduce(const SyncOptions& options, Replica replica) { return std::make_unique<AllReduce>(options, replica); }

}  // namespace cairn::sync
