// The seam between the tokens of a source and its samples: how documents are windowed or packed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/token_stream.h"
#include "data/samples/packing.h"

namespace cairn::data {

struct SampleOptions {
  int64_t length = 128;            // tokens of one sample
  double held_out_fraction = 0.0;  // the end of the source; above 0, at least one sample is held out
  int32_t padding = 0;             // the id that pads a sample
};

// Where one sample is written: buffers of `length` elements. `documents` and `positions` are null where they are not needed.
struct SampleBuffers {
  int64_t* tokens = nullptr;
  int64_t* targets = nullptr;    // kIgnoreIndex where there is no target
  int64_t* documents = nullptr;  // the document's number in its source; -1 for padding
  int64_t* positions = nullptr;  // from 0 in each document, and at the beginning of each sample
};

// Samples 0 .. count() - 1 of one source, the last held_out() of them not for training. Immutable; filling allocates nothing.
class TokenSamples {
 public:
  virtual ~TokenSamples() = default;
  virtual int64_t count() const = 0;
  virtual int64_t held_out() const = 0;
  virtual bool separates() const = 0;  // attention and loss stay within documents: `documents` and `positions` are needed
  // Tokens of one sample where samples have lengths of their own; 0: all have SampleOptions::length.
  virtual int64_t length_of(int64_t /*sample*/) const { return 0; }
  virtual int64_t targets_in(int64_t sample) const = 0;
  virtual void fill(int64_t sample, const SampleBuffers& into) const = 0;
  // The document of the stream that a sample is a part of; -1: samples have several.
  virtual int64_t document_of(int64_t /*sample*/) const { return -1; }
  // Weights of the samples, where data.subset gives some.
  virtual bool weighted() const { return false; }
  virtual float weight_of(int64_t /*sample*/) const { return 1; }
};

// Windows of equal length: the inputs of sample i are tokens [i*length, (i+1)*length), the target of each is the next token. The last
// window may be shorter. With `separate` no target lies in another document than its input. Refused, naming `origin`: a stream too short
// for one whole window (two where some are held out).
std::unique_ptr<TokenSamples> make_windows(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, bool separate,
                                           const std::string& origin);

// Whole documents, several to a sample where they fit (`pack`) or one each. A longer document becomes several
// independent pieces. No document is both trained on and held out. Refused: too few documents for that.
std::unique_ptr<TokenSamples> make_packed(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, bool pack,
                                          const std::string& origin);

// Whole documents, one to a sample, neither cut nor padded: buffers for sample i have length_of(i) elements. Documents without a target are
// left out. Refused: a document longer than `length`, for which models and positions are made; too few documents to hold some out.
std::unique_ptr<TokenSamples> make_sequences(std::shared_ptr<const TokenStream> stream, const SampleOptions& options,
                                             const std::string& origin);

// The first of the held-out documents: they are the last ones, about `fraction` of the tokens, one at least and not all. Refuses a stream
// with too few documents, naming `origin`.
int64_t first_held_out_document(const TokenStream& stream, double fraction, const std::string& origin);

std::unique_ptr<TokenSamples> make_samples(Packing packing, std::shared_ptr<const TokenStream> stream, const SampleOptions& options,
                                           const std::string& origin);

}  // namespace cairn::data
