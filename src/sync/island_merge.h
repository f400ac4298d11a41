#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/council.h"
#include "sync/merge.h"

namespace cairn::comm {
class Codec;
}

namespace cairn::sync {

// What the islands' versions of a tensor come to, with codes on the wire: the same bits on all islands that live, in spite of losses on
// the way. Nobody sums codes: they are decoded, and merged in fp32 in the order of the islands.
//
// Up to gather_most islands each sends its code to all. Beyond, each of them merges one part of the tensor, for which it gets the code of
// all, and sends what came of it to all, as bf16 unless values travel as fp32, which everybody, itself included, then uses.
class IslandMerge {
 public:
  // Islands up to which each sends its code to all. Beyond, or where codes are long, that would cost more than it saves.
  static int gather_most(const comm::Codec& codec);

  struct Parts {
    Council& council;
    const comm::Codec& codec;
    const MergeRule& rule;
    int64_t step = 0;
    int32_t part = 0;  // of this step
    double weight = 1;
    double note = 0;  // travels along as it is
    bool wants_to_stop = false;
  };

  // `values` (fp32, host, one dim) is read here and now.
  IslandMerge(const Parts& parts, const at::Tensor& values);

  // Goes on as far as it can without waiting. True: `wait` will not have to.
  bool progress();
  // The merged values; undefined: the round came to nothing, on all islands alike. Concludes the round: waits are in one order on all.
  at::Tensor wait();

  int64_t bytes_sent() const { return bytes_sent_; }                // codes, by this island
  int counted() const { return counted_; }                          // islands, after `wait`
  bool stop() const { return stop_; }                               // after `wait`: some island would like to end
  double note() const { return note_; }                             // after `wait`: the mean of those that count
  double least_note() const { return least_note_; }                 // after `wait`: of those above 0; 0: none is
  const IslandSet& come() const { return round_->verdict().come; }  // after `wait`: who takes part from now on
  bool is_member(int island) const { return round_->members()[static_cast<size_t>(island)]; }  // of this round, once it has begun
  // What the wire left of this island's values.
  at::Tensor as_sent() const;
  int64_t step() const { return parts_.step; }

 private:
  std::vector<std::byte> body(const std::byte* code, int64_t bytes) const;
  void hand_out();
  Subject share_of_step() const;
  bool shares_are_here() const;
  void give_result();
  at::Tensor merged(const Subject& subject, int64_t first, int64_t count, const IslandSet& counted) const;
  at::Tensor put_together(const IslandSet& counted) const;

  Parts parts_;
  std::unique_ptr<const comm::Codec> results_;
  int64_t elements_;
  std::chrono::nanoseconds begun_;
  std::vector<int> owners_;     // islands that each merge a part; empty: all merge all
  std::vector<int64_t> first_;  // of each owner's part, and the end
  std::vector<std::byte> own_;  // this island's code of everything
  int64_t bytes_sent_ = 0;
  int counted_ = 0;
  bool stop_ = false;
  double note_ = 0, least_note_ = 0;
  std::optional<Council::Round> round_;
  at::Tensor mine_;  // what this island's part came to
};

}  // namespace cairn::sync
