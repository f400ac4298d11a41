// Samples of whole documents: several to a sample where they fit (packing = documents), or one each (packing = none).
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "data/samples/packer.h"
#include "data/samples/token_samples.h"

namespace cairn::data {
namespace {

// Open bins: enough that little room is wasted, few enough for a fast search.
constexpr int64_t kOpenBins = 512;

// Inputs are tokens begin .. begin + count - 1; the target of each is the next token.
struct PackedPiece {
  int64_t begin = 0;
  int32_t count = 0;
};

class Packed final : public TokenSamples {
 public:
  Packed(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, bool pack, const std::string& origin)
      : stream_(std::move(stream)), options_(options), packs_(pack) {
    const double fraction = options_.held_out_fraction;
    CAIRN_CHECK(options_.length >= 1 && options_.length <= INT32_MAX && fraction >= 0 && fraction < 1, "length {}, held-out fraction {}",
                options_.length, fraction);
    const int64_t documents = stream_->documents();
    const int64_t held = first_held_out_document(*stream_, fraction, origin);
    firsts_.push_back(0);
    add(0, held, pack);
    const int64_t training = count();
    add(held, documents, pack);
    held_out_ = count() - training;
    if (training == 0 || (fraction > 0 && held_out_ == 0))
      base::fail_input("{}: its {} documents have no targets in the {} part; give longer or more documents", origin, documents,
                       training == 0 ? "training" : "held-out");
  }

  int64_t count() const override { return static_cast<int64_t>(firsts_.size()) - 1; }
  int64_t held_out() const override { return held_out_; }
  bool separates() const override { return true; }
  int64_t document_of(int64_t sample) const override { return packs_ ? -1 : stream_->document_of(pieces_of(sample)[0].begin); }

  int64_t targets_in(int64_t sample) const override {
    int64_t targets = 0;
    for (const PackedPiece& piece : pieces_of(sample)) targets += stream_->targets_in(piece.begin + 1, piece.count);
    return targets;
  }

  void fill(int64_t sample, const SampleBuffers& into) const override {
    int64_t at = 0;
    for (const PackedPiece& piece : pieces_of(sample)) {
      stream_->copy(piece.begin, piece.count, into.tokens + at);
      stream_->copy(piece.begin + 1, piece.count, into.targets + at);
      stream_->mask_non_targets(piece.begin + 1, piece.count, into.targets + at);
      if (into.documents != nullptr) {
        std::fill_n(into.documents + at, piece.count, stream_->document_of(piece.begin));
        for (int64_t i = 0; i < piece.count; ++i) into.positions[at + i] = i;
      }
      at += piece.count;
    }
    const int64_t rest = options_.length - at;
    std::fill_n(into.tokens + at, rest, options_.padding);
    std::fill_n(into.targets + at, rest, kIgnoreIndex);
    if (into.documents == nullptr) return;
    std::fill_n(into.documents + at, rest, -1);
    std::fill_n(into.positions + at, rest, 0);
  }

 private:
  std::span<const PackedPiece> pieces_of(int64_t sample) const {
    CAIRN_CHECK(sample >= 0 && sample < count(), "sample {} of {}", sample, count());
    const int64_t first = firsts_[static_cast<size_t>(sample)];
    return std::span(pieces_).subspan(static_cast<size_t>(first), static_cast<size_t>(firsts_[static_cast<size_t>(sample) + 1] - first));
  }

  // Documents first .. end - 1 in samples of their own.
  void add(int64_t first, int64_t end, bool pack) {
    Packer packer(options_.length, kOpenBins);
    std::vector<PackedPiece> pieces;
    std::vector<int64_t> bins;
    for (int64_t document = first, begin = first < end ? stream_->document_begin(first) : 0; document < end; ++document) {
      const int64_t next = stream_->document_begin(document + 1);
      for (; begin + 1 < next; begin += options_.length) {
        const int64_t reads = std::min(options_.length, next - 1 - begin);
        if (stream_->targets_in(begin + 1, reads) == 0) continue;  // it has no target
        pieces.push_back({begin, static_cast<int32_t>(reads)});
        bins.push_back(pack ? packer.place(reads) : static_cast<int64_t>(bins.size()));
      }
      begin = next;
    }
    const int64_t count = pack ? packer.bins() : static_cast<int64_t>(bins.size());
    // Sorted by bin, within a bin in the order of the stream.
    const size_t before = pieces_.size();
    std::vector<int64_t> at(static_cast<size_t>(count) + 1, 0);
    for (const int64_t bin : bins) ++at[static_cast<size_t>(bin) + 1];
    for (size_t bin = 1; bin < at.size(); ++bin) at[bin] += at[bin - 1];
    for (size_t bin = 1; bin < at.size(); ++bin) firsts_.push_back(static_cast<int64_t>(before) + at[bin]);
    pieces_.resize(before + pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) pieces_[before + static_cast<size_t>(at[static_cast<size_t>(bins[i])]++)] = pieces[i];
  }

  std::shared_ptr<const TokenStream> stream_;
  SampleOptions options_;
  bool packs_;
  std::vector<PackedPiece> pieces_;  // sample by sample
  std::vector<int64_t> firsts_;      // of each sample among the pieces, and the end
  int64_t held_out_ = 0;
};

}  // namespace

int64_t first_held_out_document(const TokenStream& stream, double fraction, const std::string& origin) {
  const int64_t documents = stream.documents();
  if (documents == 0) base::fail_input("{}: it holds no document with text in it", origin);
  if (fraction == 0) return documents;
  if (documents < 2)
    base::fail_input(
        "{}: one document cannot be divided into a training and a held-out part; give more documents (in a text they end with "
        "<|endoftext|>), or set data.packing to stream",
        origin);
  const auto kept = static_cast<int64_t>(std::llround((1 - fraction) * static_cast<double>(stream.size())));
  const int64_t at = stream.document_of(std::clamp<int64_t>(kept, 0, stream.size() - 1));
  return std::clamp<int64_t>(at, 1, documents - 1);
}

std::unique_ptr<TokenSamples> make_packed(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, bool pack,
                                          const std::string& origin) {
  return std::make_unique<Packed>(std::move(stream), options, pack, origin);
}

}  // namespace cairn::data
