#include "data/samples/subset_samples.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn::data {
namespace {

// Training samples of one stream, held-out samples of another.
class SubsetSamples final : public TokenSamples {
 public:
  SubsetSamples(std::unique_ptr<TokenSamples> training, std::unique_ptr<TokenSamples> whole, std::vector<float> weights)
      : training_(std::move(training)),
        whole_(std::move(whole)),
        weights_(std::move(weights)),
        trained_(training_ ? training_->count() : 0) {}

  int64_t count() const override { return trained_ + whole_->held_out(); }
  int64_t held_out() const override { return whole_->held_out(); }
  bool separates() const override { return whole_->separates(); }
  int64_t length_of(int64_t sample) const override {
    const Part at = part(sample);
    return at.samples->length_of(at.sample);
  }
  int64_t targets_in(int64_t sample) const override {
    const Part at = part(sample);
    return at.samples->targets_in(at.sample);
  }
  void fill(int64_t sample, const SampleBuffers& into) const override {
    const Part at = part(sample);
    at.samples->fill(at.sample, into);
  }
  int64_t document_of(int64_t sample) const override {
    const Part at = part(sample);
    return at.samples->document_of(at.sample);
  }
  bool weighted() const override { return !weights_.empty(); }
  float weight_of(int64_t sample) const override {
    return weights_.empty() || sample >= trained_ ? 1.0f : weights_[static_cast<size_t>(training_->document_of(sample))];
  }

 private:
  struct Part {
    const TokenSamples* samples;
    int64_t sample;
  };
  Part part(int64_t sample) const {
    CAIRN_CHECK(sample >= 0 && sample < count(), "sample {} of {}", sample, count());
    if (sample < trained_) return {training_.get(), sample};
    return {whole_.get(), whole_->count() - whole_->held_out() + sample - trained_};
  }

  std::unique_ptr<TokenSamples> training_, whole_;  // no chosen document: the first is null
  std::vector<float> weights_;                      // by document of the chosen ones
  int64_t trained_;
};

// The first token of the held-out part of a stream; its size where nothing is held out.
int64_t first_held_out_token(Packing packing, const TokenStream& stream, const TokenSamples& samples, const SampleOptions& options,
                             const std::string& origin) {
  if (samples.held_out() == 0) return stream.size();
  if (packing == Packing::stream || packing == Packing::separate) return (samples.count() - samples.held_out()) * options.length;
  return stream.document_begin(first_held_out_document(stream, options.held_out_fraction, origin));
}

}  // namespace

void append_documents(const TokenStream& of, const std::vector<int64_t>& documents, TokenWriter& writer) {
  std::vector<int64_t> ids;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> targets;
  for (const int64_t document : documents) {
    const int64_t first = of.document_begin(document), count = of.document_begin(document + 1) - first;
    ids.resize(static_cast<size_t>(count));
    of.copy(first, count, ids.data());
    tokens.assign(ids.begin(), ids.end());
    targets.clear();
    if (of.targets_in(first, count) < count) {
      std::ranges::fill(ids, 0);
      of.mask_non_targets(first, count, ids.data());
      for (const int64_t one : ids) targets.push_back(one != kIgnoreIndex);
    }
    writer.add(tokens, std::span(&count, 1), targets);
  }
}

std::unique_ptr<TokenSamples> whole_samples(Packing packing, std::shared_ptr<const TokenStream> stream, ChosenDocuments& chosen,
                                            const SampleOptions& options, const std::string& origin, int64_t& left_out) {
  auto whole = make_samples(packing, stream, options, origin);
  const int64_t end = first_held_out_token(packing, *stream, *whole, options, origin);
  const auto is_free = [&](int64_t document) { return stream->document_begin(document + 1) <= end; };
  const auto free = static_cast<size_t>(std::ranges::partition_point(chosen.documents, is_free) - chosen.documents.begin());
  left_out += static_cast<int64_t>(chosen.documents.size() - free);
  chosen.documents.resize(free);
  if (!chosen.weights.empty()) chosen.weights.resize(free);
  return whole;
}

std::unique_ptr<TokenSamples> make_subset_samples(Packing packing, std::shared_ptr<const TokenStream> training, std::vector<float> weights,
                                                  std::unique_ptr<TokenSamples> whole, const SampleOptions& options,
                                                  const std::string& origin) {
  std::unique_ptr<TokenSamples> samples;
  if (training) {
    SampleOptions all = options;
    all.held_out_fraction = 0;
    samples = make_samples(packing, std::move(training), all, origin + ", of which data.subset chose documents");
  }
  return std::make_unique<SubsetSamples>(std::move(samples), std::move(whole), std::move(weights));
}

}  // namespace cairn::data
