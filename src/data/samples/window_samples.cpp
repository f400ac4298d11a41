// Samples as windows of equal length over the stream of tokens.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "data/samples/token_samples.h"

namespace cairn::data {
namespace {

class Windows final : public TokenSamples {
 public:
  Windows(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, bool separate, const std::string& origin)
      : stream_(std::move(stream)), options_(options), separate_(separate) {
    const double fraction = options_.held_out_fraction;
    CAIRN_CHECK(options_.length >= 1 && fraction >= 0 && fraction < 1, "length {}, held-out fraction {}", options_.length, fraction);
    const int64_t windows = fraction > 0 ? 2 : 1;
    const int64_t needed = windows * options_.length + 1;
    if (stream_->size() < needed) {
      base::fail_input("{}: {} tokens are too few; {} of data.length = {} needs {}: give more text or set data.length to {} or less",
                       origin, stream_->size(), windows == 2 ? "a training sample and a held-out sample" : "one sample", options_.length,
                       needed, std::max<int64_t>((stream_->size() - 1) / windows, 1));
    }
    count_ = (stream_->size() - 1 + options_.length - 1) / options_.length;
    if (fraction > 0) held_out_ = std::clamp<int64_t>(std::llround(fraction * static_cast<double>(count_)), 1, count_ - 1);
  }

  int64_t count() const override { return count_; }
  int64_t held_out() const override { return held_out_; }
  bool separates() const override { return separate_; }

  int64_t targets_in(int64_t sample) const override {
    const auto [first, read] = window(sample);
    int64_t targets = stream_->targets_in(first + 1, read);
    if (!separate_) return targets;
    // The first token of a document is not a target.
    const int64_t last = stream_->document_of(first + read);
    if (!stream_->masked()) return targets - (last - stream_->document_of(first));
    for (int64_t document = stream_->document_of(first) + 1; document <= last; ++document)
      targets -= stream_->targets_in(stream_->document_begin(document), 1);
    return targets;
  }

  void fill(int64_t sample, const SampleBuffers& into) const override {
    const auto [first, read] = window(sample);
    const int64_t length = options_.length;
    stream_->copy(first, read, into.tokens);
    stream_->copy(first + 1, read, into.targets);
    stream_->mask_non_targets(first + 1, read, into.targets);
    std::fill(into.tokens + read, into.tokens + length, options_.padding);
    std::fill(into.targets + read, into.targets + length, kIgnoreIndex);
    if (separate_) mark_documents(first, read, into.targets);
    if (into.documents == nullptr) return;
    std::fill(into.documents + read, into.documents + length, -1);
    std::fill(into.positions + read, into.positions + length, 0);
    for_each_document(first, read, [&](int64_t document, int64_t begin, int64_t end) {
      std::fill(into.documents + begin, into.documents + end, document);
      for (int64_t i = begin; i < end; ++i) into.positions[i] = i - begin;
    });
  }

 private:
  struct Window {
    int64_t first, read;
  };
  Window window(int64_t sample) const {
    CAIRN_CHECK(sample >= 0 && sample < count_, "sample {} of {}", sample, count_);
    const int64_t first = sample * options_.length;
    return {first, std::min(options_.length, stream_->size() - 1 - first)};
  }

  // act(document, begin, end): the part of each document in the window, counted from its first token.
  template <typename Act>
  void for_each_document(int64_t first, int64_t read, Act&& act) const {
    int64_t document = stream_->document_of(first);
    for (int64_t begin = 0; begin < read; ++document) {
      const int64_t end = std::min(read, stream_->document_begin(document + 1) - first);
      act(document, begin, end);
      begin = end;
    }
  }

  void mark_documents(int64_t first, int64_t read, int64_t* targets) const {
    for_each_document(first, read, [&](int64_t document, int64_t, int64_t end) {
      if (stream_->document_begin(document + 1) == first + end) targets[end - 1] = kIgnoreIndex;
    });
  }

  std::shared_ptr<const TokenStream> stream_;
  SampleOptions options_;
  bool separate_;
  int64_t count_ = 0;
  int64_t held_out_ = 0;
};

}  // namespace

std::unique_ptr<TokenSamples> make_windows(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, bool separate,
                                           const std::string& origin) {
  return std::make_unique<Windows>(std::move(stream), options, separate, origin);
}

}  // namespace cairn::data
