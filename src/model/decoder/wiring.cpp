// The three wirings as lists of values: "hidden.0" is the embedding, "hidden.3" the stream after three layers, "hidden.3.5" the stream
// between attention and MLP of layer 3. The pipeline and the executor see nothing but these names, so a wiring needs no other code.
#include "model/decoder/wiring.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include <fmt/ranges.h>

#include "base/check.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/shape.h"

namespace cairn::model {
namespace {

constexpr std::string_view kStandardWiring = "standard", kLadderWiring = "ladder", kParallelWiring = "parallel";

int64_t number_in(std::string_view word, const std::string& text, const std::string& key) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number < 0)
    base::fail_input("{} = \"{}\": write \"all\", \"last 4\", or the numbers of layers from 0 on: \"0,2,5\"", key, text);
  return number;
}

}  // namespace

bool is_standard(const std::string& wiring) { return wiring == kStandardWiring; }
bool is_ladder(const std::string& wiring) { return wiring == kLadderWiring; }
std::string architecture_prefix(const std::string& wiring) { return is_standard(wiring) ? "" : is_ladder(wiring) ? "Ladder" : "Parallel"; }

std::vector<int64_t> parse_layers(const std::string& text, int64_t layers, const std::string& key) {
  std::set<int64_t> named;
  if (text == "all" || text.starts_with("last ")) {
    const int64_t count = text == "all" ? layers : number_in(std::string_view(text).substr(5), text, key);
    if (count > layers) base::fail_input("{} = \"{}\": the model has {} layers", key, text, layers);
    for (int64_t layer = layers - count; layer < layers; ++layer) named.insert(layer);
  } else {
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      const int64_t layer = number_in(std::string_view(text).substr(at, end - at), text, key);
      if (layer >= layers) base::fail_input("{} = \"{}\": there is no layer {}, the last is {}", key, text, layer, layers - 1);
      named.insert(layer);
      at = end + 1;
    }
  }
  return {named.begin(), named.end()};
}

std::string format_layers(const std::vector<int64_t>& named, int64_t layers) {
  const auto count = static_cast<int64_t>(named.size());
  if (count == layers) return "all";
  if (count == 0 || named.front() == layers - count) return fmt::format("last {}", count);
  return fmt::format("{}", fmt::join(named, ","));
}

TokenLayout token_layout(const DecoderShape& shape) { return is_standard(shape.residual) ? TokenLayout::sharded : TokenLayout::replicated; }

std::vector<BranchWiring> branch_wiring(const DecoderShape& shape) {
  const auto stream = [](int64_t branches) {  // after so many of them: hidden.0, hidden.0.5, hidden.1
    return branches % 2 == 0 ? fmt::format("hidden.{}", branches / 2) : fmt::format("hidden.{}.5", branches / 2);
  };
  std::vector<BranchWiring> all;
  for (int64_t i = 1; i <= 2 * shape.layers; ++i) {
    const int64_t layer = (i - 1) / 2;
    const bool ladder = std::binary_search(shape.ladder_layers.begin(), shape.ladder_layers.end(), layer);
    if (shape.residual == kParallelWiring) {
      const std::string terms = fmt::format("terms.{}", layer);
      if (i % 2 == 1)
        all.push_back({.reads = stream(2 * layer), .onto = "", .writes = terms, .sums = false});
      else
        all.push_back({.reads = stream(2 * layer), .onto = stream(2 * layer), .writes = stream(i), .with = terms});
    } else {
      const int64_t before = is_ladder(shape.residual) && ladder ? std::max<int64_t>(0, i - 2) : i - 1;
      all.push_back({.reads = stream(before), .onto = stream(i - 1), .writes = stream(i)});
    }
  }
  return all;
}

}  // namespace cairn::model
