// Data Shapley of sources: a text in four parts, one of them with its letters in a random order.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "base/text.h"
#include "data/stories/stories.h"
#include "proofs/data_shapley_parts.h"
#include "study/value.h"

namespace cairn::study {
namespace {

// The text of --data, or stories.
std::string text_to_value(const ProofOptions& options) {
  if (options.data.empty()) return data::stories(options.seed, 0, 4000);
  return base::valid_utf8(base::read_file(options.data, int64_t{1} << 30));
}

// About so many bytes, to the end of a character; `rest` begins after them.
std::string take_part(std::string_view& rest, size_t bytes) {
  size_t end = std::min(bytes, rest.size());
  while (end < rest.size() && (static_cast<unsigned char>(rest[end]) & 0xc0) == 0x80) ++end;
  const std::string part(rest.substr(0, end));
  rest.remove_prefix(end);
  return part;
}

// The characters of a well-formed text in a random order.
std::string with_letters_shuffled(std::string_view text, const base::Random& random) {
  std::vector<std::string_view> letters;
  for (size_t at = 0; at < text.size(); at += letters.back().size()) letters.push_back(text.substr(at, base::utf8_length(text, at)));
  for (size_t k = letters.size(); k > 1; --k) std::swap(letters[k - 1], letters[random.below(k, k)]);
  std::string shuffled;
  for (const std::string_view one : letters) shuffled += one;
  return shuffled;
}

// 7. A text in four parts, one with its letters shuffled: the value of sources, by training a small decoder on every subset.
void sources_of_text(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr size_t kPart = 60'000, kMeasured = 20'000;
  constexpr size_t kTextMin = 26'000;
  const std::string text = text_to_value(options);
  if (text.size() < kTextMin)
    base::fail_input("--data {}: {} bytes of text are too few for four parts and a held-out one. Give a text of at least {} bytes.",
                     options.data, text.size(), kTextMin);
  const size_t part = std::min(kPart, text.size() * 3 / 13), measured = std::min(kMeasured, text.size() / 13);
  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "sources";
  base::make_folder(folder);
  const size_t shuffled = options.seed % 4;
  const base::Random random = base::Random(options.seed).for_purpose("letters");
  std::string names;
  std::string_view rest = text;
  for (size_t i = 0; i < 4; ++i) {
    const std::string one = take_part(rest, part), file = (folder / fmt::format("part-{}.txt", i)).string();
    base::write_atomically(file, i == shuffled ? with_letters_shuffled(one, random) : one);
    names += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", file);
  }
  base::write_atomically(folder / "measured.txt", take_part(rest, measured));
  const ValueRecipe recipe = read_value({.text = fmt::format(R"(
[study]
kind = "value"
method = "exact"
players = "source"
learner = "recipe"
metric = "neg_loss"
curves = false
validation_source = "{}"
[model]
layers = 1
embed = 32
heads = 2
kv_heads = 2
mlp = 64
[data]
sources = [{}]
tokenizer = "bytes"
length = 64
[train]
steps = 200
global_batch = 16
micro_batch = 16
seed = {}
[optim]
learning_rate = 0.01
warmup_steps = 10
)",
                                                             (folder / "measured.txt").string(), names, options.seed),
                                         .name = "the proof"},
                                        {});
  base::Log quiet = base::Log::quiet();
  base::Stop never;
  const ValueResult result = run_value(recipe, {.out = folder / "out", .processes = 2}, quiet, never);
  const auto lowest = static_cast<size_t>(std::min_element(result.values.begin(), result.values.end()) - result.values.begin());
  double others = INFINITY;
  for (size_t i = 0; i < 4; ++i)
    if (i != shuffled) others = std::min(others, result.values[i]);
  log.info("values of the four parts: {:.3f} {:.3f} {:.3f} {:.3f}; {} is shuffled; {:.1f} s for a training", result.values[0],
           result.values[1], result.values[2], result.values[3], shuffled, result.training_s);
  findings.at_most(fmt::format("7. {} in four parts, one with shuffled letters: how far its rank is from the lowest",
                               options.data.empty() ? "stories" : "your text"),
                   0, lowest == shuffled ? 0 : 1, 0);
  findings.at_least("7. likewise: value of the next lowest part, beyond it", 0, others - result.values[shuffled], 0.01);
}

}  // namespace

void prove_data_shapley_text(const ProofOptions& options, Findings& findings, base::Log& log) { sources_of_text(options, findings, log); }

}  // namespace cairn::study
