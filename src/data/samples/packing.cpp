// The list of packings. A new one is an implementation of TokenSamples and one line in each list.
#include "data/samples/packing.h"

#include <algorithm>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "data/samples/token_samples.h"

namespace cairn::data {

std::vector<std::string> packing_names() { return {"stream", "separate", "documents", "none"}; }

Packing parse_packing(const std::string& word) {
  const std::vector<std::string> names = packing_names();
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) base::fail_unknown("data.packing", word, names);
  return static_cast<Packing>(found - names.begin());
}

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
  }
  CAIRN_CHECK(false, "packing {}", static_cast<int>(packing));
}

}  // namespace cairn::data
