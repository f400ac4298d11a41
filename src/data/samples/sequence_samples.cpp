// Samples of one whole document each, as long as it is (packing = sequences).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/samples/token_samples.h"

namespace cairn::data {
namespace {

class Sequences final : public TokenSamples {
 public:
  Sequences(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, const std::string& origin)
      : stream_(std::move(stream)) {
    const int64_t held = first_held_out_document(*stream_, options.held_out_fraction, origin);
    for (int64_t document = 0; document < stream_->documents(); ++document) {
      const int64_t begin = stream_->document_begin(document), reads = stream_->document_begin(document + 1) - 1 - begin;
      if (reads < 1 || stream_->targets_in(begin + 1, reads) == 0) continue;
      if (reads > options.length)
        base::fail_input("data.length = {}: {} has a document of {} tokens, and data.packing = sequences cuts none. Set data.length to at "
                         "least {}.",
                         options.length, origin, reads, reads);
      documents_.push_back(document);
      if (document >= held) ++held_out_;
    }
    const int64_t training = count() - held_out_;
    if (training == 0 || (options.held_out_fraction > 0 && held_out_ == 0))
      base::fail_input("{}: its {} documents have no targets in the {} part; give longer or more documents", origin, stream_->documents(),
                       training == 0 ? "training" : "held-out");
  }

  int64_t count() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t held_out() const override { return held_out_; }
  bool separates() const override { return true; }

  int64_t document_of(int64_t sample) const override {
    CAIRN_CHECK(sample >= 0 && sample < count(), "sample {} of {}", sample, count());
    return documents_[static_cast<size_t>(sample)];
  }

  int64_t length_of(int64_t sample) const override {
    const int64_t document = document_of(sample);
    return stream_->document_begin(document + 1) - 1 - stream_->document_begin(document);
  }

  int64_t targets_in(int64_t sample) const override {
    return stream_->targets_in(stream_->document_begin(document_of(sample)) + 1, length_of(sample));
  }

  void fill(int64_t sample, const SampleBuffers& into) const override {
    const int64_t document = document_of(sample), begin = stream_->document_begin(document), reads = length_of(sample);
    stream_->copy(begin, reads, into.tokens);
    stream_->copy(begin + 1, reads, into.targets);
    stream_->mask_non_targets(begin + 1, reads, into.targets);
    if (into.documents != nullptr) std::fill_n(into.documents, reads, document);
    for (int64_t i = 0; into.positions != nullptr && i < reads; ++i) into.positions[i] = i;
  }

 private:
  std::shared_ptr<const TokenStream> stream_;
  std::vector<int64_t> documents_;  // of each sample
  int64_t held_out_ = 0;
};

}  // namespace

std::unique_ptr<TokenSamples> make_sequences(std::shared_ptr<const TokenStream> stream, const SampleOptions& options,
                                             const std::string& origin) {
  return std::make_unique<Sequences>(std::move(stream), options, origin);
}

}  // namespace cairn::data
