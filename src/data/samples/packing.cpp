// From a packing to its samples. A new one is a word in packing.h, an implementation of TokenSamples and a case here.
#include "data/samples/packing.h"

#include "base/check.h"
#include "data/samples/token_samples.h"

namespace cairn::data {

std::unique_ptr<TokenSamples> make_samples(Packing packing, std::shared_ptr<const TokenStream> stream, const SampleOptions& options,
                                           const std::string& origin) {
  switch (packing) {
    case Packing::stream:
      return make_windows(std::move(stream), options, false, origin);
    case Packing::separate:
      return make_windows(std::move(stream), options, true, origin);
    case Packing::documents:
      return make_packed(std::move(stream), options, true, origin);
    case Packing::none:
      return make_packed(std::move(stream), options, false, origin);
    case Packing::sequences:
      return make_sequences(std::move(stream), options, origin);
  }
  CAIRN_CHECK(false, "packing {}", static_cast<int>(packing));
}

}  // namespace cairn::data
