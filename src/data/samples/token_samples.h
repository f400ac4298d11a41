// The seam between one source's tokens and its samples: how a row of documents is cut or packed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/token_stream.h"
#include "data/samples/packing.h"

namespace cairn::data {

struct SampleOptions {
  int64_t length = 128;            // tokens that a model reads of one sample
  double held_out_fraction = 0.0;  // at the end of the source; more than 0 holds out one sample at least
  int32_t padding = 0;             // the id that fills up a sample
};

// Where one sample is written: `length` places each. `documents` and `positions` are null where nobody asks for them.
struct SampleBuffers {
  int64_t* tokens = nullptr;
  int64_t* targets = nullptr;    // kIgnoreIndex where nothing is asked for
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
  virtual int64_t targets_in(int64_t sample) const = 0;
  virtual void fill(int64_t sample, const SampleBuffers& into) const = 0;
};

// Windows of equal length over the row: sample i reads tokens [i*length, (i+1)*length) and is asked for the token after each. The last
// may be shorter. With `separate` nothing is asked for across documents. Refused with `origin` named: a row too short for one whole
// window (and one more where some are held out).
std::unique_ptr<TokenSamples> make_windows(std::shared_ptr<const TokenStream> row, const SampleOptions& options, bool separate,
                                           const std::string& origin);

// Whole documents, several to a sample where they fit (`pack`) or one each. One longer than a sample becomes several pieces that know
// nothing of each other. No document is both trained on and held out. Refused: too few documents for that.
std::unique_ptr<TokenSamples> make_packed(std::shared_ptr<const TokenStream> row, const SampleOptions& options, bool pack,
                                          const std::string& origin);

std::unique_ptr<TokenSamples> make_samples(Packing packing, std::shared_ptr<const TokenStream> row, const SampleOptions& options,
                                           const std::string& origin);

}  // namespace cairn::data
