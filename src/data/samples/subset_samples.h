// Samples of some documents of a source, with the held-out part of the whole source (data.subset).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/samples/packing.h"
#include "data/samples/token_samples.h"

namespace cairn::data {

// The chosen documents of one source, ascending, with a weight for each, or none.
struct ChosenDocuments {
  std::vector<int64_t> documents = {};
  std::vector<float> weights = {};
};

// All samples of a source of which some documents were chosen, for its held-out part. Drops the chosen documents that this part reaches
// into, and counts them in `left_out`.
std::unique_ptr<TokenSamples> whole_samples(Packing packing, std::shared_ptr<const TokenStream> stream, ChosenDocuments& chosen,
                                            const SampleOptions& options, const std::string& origin, int64_t& left_out);

// Training samples are packed from `training` alone, the documents that were chosen (null: none), as if there were nothing else; held-out
// samples are those of `whole`. Weights, of each document of `training`, need samples of one document each (packing none or sequences).
std::unique_ptr<TokenSamples> make_subset_samples(Packing packing, std::shared_ptr<const TokenStream> training, std::vector<float> weights,
                                                  std::unique_ptr<TokenSamples> whole, const SampleOptions& options,
                                                  const std::string& origin);

// Appends these documents, ascending, to a writer of tokens.
void append_documents(const TokenStream& of, const std::vector<int64_t>& documents, TokenWriter& writer);

}  // namespace cairn::data
