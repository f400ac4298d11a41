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

// Merges the islands' versions of one tensor into one, by compressed messages: an all-reduce that survives lost islands. The result is
// bitwise identical on all live islands. Codes are never summed: they are decoded and merged in fp32, in the order of the islands. The two
// ways to do it are described in merge.cpp.
//
// Lifecycle: the constructor compresses and sends; `progress` advances; `wait` concludes the round and returns the result.
class IslandMerge {
 public:
  struct Parts {
    Quorum& quorum;
    const Compressor& compressor;
    const MergeRule& rule;
    int64_t step = 0;
    int32_t part = 0;   // tells several merges of one step apart
    double weight = 1;  // of this island
    double note = 0;    // a number that travels with the values
    bool wants_to_stop = false;
    bool admits = true;  // islands may join by this round
    // Compression, merging and decompression run on another thread, and on a stream of their own on a GPU. False: in the calls themselves.
    bool in_background = false;
  };

  // `values` (fp32, one dimension) must not change until `wait` if this runs in the background.
  IslandMerge(const Parts& parts, const at::Tensor& values);
  ~IslandMerge();
  IslandMerge(const IslandMerge&) = delete;
  IslandMerge& operator=(const IslandMerge&) = delete;

  // Advances without waiting. True: `wait` will return at once.
  bool progress();
  // Returns the merged values, on the device of `values` or on the host. Undefined: the round failed, on all islands, or ending() says why
  // there is no result. It concludes the round, so all islands must wait for their merges in one order.
  at::Tensor wait();
  RoundEnding ending() const { return ending_; }  // after `wait`

  int64_t bytes_sent() const { return bytes_sent_; }  // compressed values that this island sent
  // After `wait`:
  int included() const { return included_; }                // islands in the result
  bool stop() const { return stop_; }                       // some island was asked to stop
  double note() const { return note_; }                     // the mean note of these islands
  double least_note() const { return least_note_; }         // the least note above 0; 0: there is none
  const Incarnations& members() const { return members_; }  // of this round
  bool is_member(int island) const { return members_[static_cast<size_t>(island)] != 0; }
  // This island's values after compression.
  at::Tensor as_sent();
  int64_t step() const { return parts_.step; }

 private:
  // One island's version of a chunk.
  struct Code {
    std::span<const std::byte> bytes;
    double weight = 1;
  };

  // The merged chunk that this island owns: decoded as all islands read it, and the message for them.
  struct Result {
    at::Tensor mine = {};
    std::vector<std::byte> message = {};
  };

  // The result of the round, if these updates count.
  struct Merged {
    at::Tensor values = {};
    uint64_t digest = 0;
  };

  void pack(const at::Tensor& values);
  bool send_packed(bool waits);
  void send_late();
  std::vector<std::byte> with_head(std::vector<std::byte> body) const;
  std::span<const std::byte> own_code(size_t chunk) const;
  MessageTag chunk_tag() const;
  bool all_chunks_arrived() const;
  void begin_merging();
  void send_result(Result result);
  void keep_for_stream(const at::Tensor& made) const;
  Compressor::Slice slice(size_t chunk) const { return {parts_.step, parts_.part, first_[chunk]}; }
  int64_t count(size_t chunk) const { return first_[chunk + 1] - first_[chunk]; }
  std::vector<Code> codes_of(const MessageTag& tag, size_t chunk, const Incarnations& included) const;
  at::Tensor merged(const std::vector<Code>& codes, size_t chunk) const;
  bool are_here(const Incarnations& included) const;
  bool merge_of(const Incarnations& included);
  at::Tensor put_together(const std::vector<std::span<const std::byte>>& results) const;
  bool wait_for_decision();
  void note_outcome();
  template <typename Made>
  std::future<Made> start(std::function<Made()> work) const;

  Parts parts_;
  at::Device device_;
  int64_t elements_;
  std::chrono::nanoseconds begun_;
  std::vector<int> owners_;                        // islands that own a chunk each; empty: every island merges everything
  std::vector<int64_t> first_;                     // first element of each chunk, and the end; one chunk if there are no owners
  std::vector<std::vector<std::byte>> own_;        // this island's compressed values of each chunk, with a header
  std::vector<IslandMessenger::Pieces> outgoing_;  // by island: its message
  std::vector<std::byte> own_result_;              // as an owner: the merged chunk, with a header
  Incarnations members_;                           // of this round
  IslandSet unsent_;                               // members that could not be reached when the update was sent
  int64_t bytes_sent_ = 0;
  int included_ = 0;
  bool stop_ = false;
  double note_ = 0, least_note_ = 0;
  std::optional<Quorum::Round> round_;
  at::Tensor mine_;              // the merged chunk that this island owns
  std::future<void> packing_;    // fills own_ and outgoing_; not valid: they have been sent
  std::future<Result> merging_;  // of the chunk that this island owns
  std::future<Merged> result_;   // of the updates `tried_`
  Incarnations tried_;
  Merged found_;                                           // what result_ was
  std::optional<std::chrono::nanoseconds> missing_since_;  // updates that count are not here
  bool differs_ = false;                                   // the merge is not what was decided
  RoundEnding ending_ = RoundEnding::decided;
};

}  // namespace cairn::sync
