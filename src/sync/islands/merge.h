#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/islands/compressor.h"
#include "sync/islands/merge_rule.h"
#include "sync/islands/quorum.h"

namespace cairn::sync {

// What the islands' versions of a tensor come to, with codes on the wire: the same bits on all islands that live, in spite of losses on
// the way. Nobody sums codes: they are decoded, and merged in fp32 in the order of the islands.
//
// Up to as many islands as the wire says, each sends its code to all. Beyond, each of them merges one part of the tensor, for which it gets
// the code of all, and sends what came of it to all by the wire for results, which everybody, itself included, then uses.
class IslandMerge {
 public:
  struct Parts {
    Quorum& quorum;
    const Compressor& compressor;
    const MergeRule& rule;
    int64_t step = 0;
    int32_t part = 0;  // of this step
    double weight = 1;
    double note = 0;  // travels along as it is
    bool wants_to_stop = false;
    // Codes are made, cut and read by another thread, while this one goes on; on a GPU beside what it computes. Else here and now.
    bool in_background = false;
  };

  // `values` (fp32, one dim) stay as they are until `wait`, where this is done in the background; what that gives is on the same device, or
  // on the host.
  IslandMerge(const Parts& parts, const at::Tensor& values);
  ~IslandMerge();
  IslandMerge(const IslandMerge&) = delete;
  IslandMerge& operator=(const IslandMerge&) = delete;

  // Goes on as far as it can without waiting. True: `wait` will not have to.
  bool progress();
  // The merged values; undefined: the round came to nothing, on all islands alike. Concludes the round: waits are in one order on all.
  at::Tensor wait();

  int64_t bytes_sent() const { return bytes_sent_; }  // codes, by this island
  int counted() const { return counted_; }            // islands, after `wait`
  bool stop() const { return stop_; }                 // after `wait`: some island would like to end
  double note() const { return note_; }               // after `wait`: the mean of those that count
  double least_note() const { return least_note_; }   // after `wait`: of those above 0; 0: none is
  bool is_member(int island) const { return round_->members()[static_cast<size_t>(island)]; }  // of this round, after `wait`
  // What the wire left of this island's values.
  at::Tensor as_sent();
  int64_t step() const { return parts_.step; }

 private:
  // What one island says of a piece.
  struct Code {
    std::span<const std::byte> bytes;
    double weight = 1;
  };

  // What this island makes of its part: for the others, and as they read it.
  struct Result {
    at::Tensor mine = {};
    std::vector<std::byte> message = {};
  };

  void pack(const at::Tensor& values);
  bool send_packed(bool waits);
  std::vector<std::byte> with_head(std::vector<std::byte> body) const;
  std::span<const std::byte> own_code(size_t piece) const;
  MessageTag chunk_tag() const;
  bool all_chunks_arrived() const;
  void begin_merging();
  void send_result(Result result);
  void keep_for_stream(const at::Tensor& made) const;
  Compressor::Slice slice(size_t piece) const { return {parts_.step, parts_.part, first_[piece]}; }
  int64_t count(size_t piece) const { return first_[piece + 1] - first_[piece]; }
  std::vector<Code> codes_of(const MessageTag& tag, size_t piece, const IslandSet& counted) const;
  at::Tensor merged(const std::vector<Code>& codes, size_t piece) const;
  void begin_result();
  at::Tensor put_together(const std::vector<std::span<const std::byte>>& results) const;
  template <typename Made>
  std::future<Made> start(std::function<Made()> work) const;

  Parts parts_;
  at::Device device_;
  int64_t elements_;
  std::chrono::nanoseconds begun_;
  std::vector<int> owners_;                        // islands that each merge a part; empty: all merge all
  std::vector<int64_t> first_;                     // of each owner's piece, or of the one that all merge, and the end
  std::vector<std::vector<std::byte>> own_;        // this island's message of each piece
  std::vector<IslandMessenger::Pieces> outgoing_;  // by island: what it gets
  int64_t bytes_sent_ = 0;
  int counted_ = 0;
  bool stop_ = false;
  double note_ = 0, least_note_ = 0;
  std::optional<Quorum::Round> round_;
  at::Tensor mine_;                 // what this island's part came to
  std::future<void> packing_;       // of own_ and outgoing_; not valid: they have been sent
  std::future<Result> merging_;     // of this island's part
  std::future<at::Tensor> result_;  // what all came to
};

}  // namespace cairn::sync
