// Samples of some documents of a source, with the held-out part of the whole source (data.subset).
#pragma once
#include <cstdint>
#include <functional>
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

// Makes a stream of those documents of another stream. It may keep the tokens on disk.
using CopyDocuments = std::function<std::shared_ptr<const TokenStream>(const TokenStream& of, const std::vector<int64_t>& documents)>;

// Training samples are packed from the chosen documents alone, as if the source held nothing else; `left_out` counts those that are not
// trained on because the source's held-out part reaches into them. Held-out samples are those of the whole source. Weights need samples of
// one document each (packing none or sequences).
std::unique_ptr<TokenSamples> make_subset_samples(Packing packing, std::shared_ptr<const TokenStream> stream, ChosenDocuments chosen,
                                                  const SampleOptions& options, const std::string& origin, const CopyDocuments& copy,
                                                  int64_t& left_out);

// Appends these documents, ascending, to a writer of tokens.
void append_documents(const TokenStream& of, const std::vector<int64_t>& documents, TokenWriter& writer);

}  // namespace cairn::data
