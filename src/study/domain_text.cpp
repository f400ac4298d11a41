#include "study/domain_text.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/check.h"
#include "base/log.h"
#include "data/options.h"
#include "kernels/aten.h"
#include "train/options.h"

namespace cairn::study {
namespace {

constexpr int64_t kRun = 32;      // tokens in a row that count as the same text
constexpr int64_t kAtOnce = 256;  // samples read together
constexpr uint64_t kBase = 0x9e3779b97f4a7c15;

// Calls `take` with the tokens of each sample of the range, including the last target; padding is cut off.
template <typename Take>
void each_sample(const data::Dataset& samples, data::SampleRange of, const Take& take) {
  for (int64_t done = 0; done < of.count; done += kAtOnce) {
    std::vector<int64_t> ids(static_cast<size_t>(std::min(kAtOnce, of.count - done)));
    std::iota(ids.begin(), ids.end(), of.first + done);
    mesh::Batch batch;
    samples.fill(ids, batch);
    const at::Tensor tokens = batch.field("tokens").contiguous(), targets = batch.field("targets").contiguous();
    const int64_t length = tokens.size(1);
    for (int64_t row = 0; row < tokens.size(0); ++row) {
      const int64_t *token = tokens.const_data_ptr<int64_t>() + row * length, *target = targets.const_data_ptr<int64_t>() + row * length;
      int64_t end = length;
      while (end > 0 && target[end - 1] < 0) --end;  // padding
      if (end == 0) continue;
      std::vector<int32_t> all(token, token + end);
      all.push_back(static_cast<int32_t>(target[end - 1]));
      take(std::move(all));
    }
  }
}

// Calls `take` with a rolling hash of every run of kRun tokens whose start is a multiple of `step`.
template <typename Take>
void each_run(const std::vector<int32_t>& tokens, int64_t step, const Take& take) {
  if (static_cast<int64_t>(tokens.size()) < kRun) return;
  uint64_t hash = 0, top = 1;
  for (int64_t i = 0; i < kRun; ++i) {
    hash = hash * kBase + static_cast<uint64_t>(tokens[static_cast<size_t>(i)]) + 1;
    if (i > 0) top *= kBase;
  }
  for (int64_t first = 0;; ++first) {
    if (first % step == 0) take(hash);
    const auto next = static_cast<size_t>(first + kRun);
    if (next >= tokens.size()) return;
    hash = (hash - top * (static_cast<uint64_t>(tokens[static_cast<size_t>(first)]) + 1)) * kBase + static_cast<uint64_t>(tokens[next]) + 1;
  }
}

}  // namespace

std::vector<DomainText> open_domains(const HdeeRecipe& recipe, const DomainSetup& setup, base::Log& log) {
  std::vector<DomainText> domains;
  std::vector<data::OpenedData> opened;
  for (const auto& [name, options] : recipe.domains) {
    base::Recipe own = recipe.training_with({{"data.path", options.path}, {"data.tokenizer_file", setup.tokenizer_file}});
    const data::DataOptions data = own.read(data::data_schema());
    const double fraction = own.read(train::eval_schema()).fraction;
    if (!data.needs().is_text()) base::fail_input("data.kind = {}: experts of a study read text; leave it out", data.kind);
    if (fraction <= 0) base::fail_input("eval.fraction = 0: a study measures on what is held out; 0.05 is a good start");
    opened.push_back(
        data::open_data(data, {.held_out_fraction = fraction, .cache_folder = setup.cache_folder, .threads = setup.threads}, log));
    DomainText domain{.name = name};
    const data::Dataset& samples = *opened.back().samples;
    const data::SampleRange training = samples.training(), held = samples.held_out();
    for (int64_t i = 0; i < training.count; ++i) domain.training_tokens += samples.tokens_in(training.first + i);
    int64_t place = 0;
    each_sample(samples, held, [&](std::vector<int32_t> tokens) {
      (place++ % 2 == 0 ? domain.development : domain.test).push_back({std::move(tokens), 1});
    });
    if (domain.test.empty())
      base::fail_input("study.domain.{}: {} samples are held out, and 2 are needed at least: more text, or a larger eval.fraction", name,
                       held.count);
    if (static_cast<int64_t>(domain.test.size()) > recipe.ensemble.test_sequences)
      domain.test.resize(static_cast<size_t>(recipe.ensemble.test_sequences));
    if (static_cast<int64_t>(domain.development.size()) > recipe.ensemble.prior_sequences)
      domain.development.resize(static_cast<size_t>(recipe.ensemble.prior_sequences));
    domains.push_back(std::move(domain));
  }
  // Contamination: held-out text that also occurs in training text makes results look better than they are.
  std::unordered_set<uint64_t> wanted, found;
  for (const DomainText& domain : domains)
    for (const evaluate::ScoredTokens& one : domain.test) each_run(one.tokens, kRun, [&](uint64_t hash) { wanted.insert(hash); });
  for (const data::OpenedData& one : opened)
    each_sample(*one.samples, one.samples->training(), [&](const std::vector<int32_t>& tokens) {
      each_run(tokens, 1, [&](uint64_t hash) {
        if (wanted.contains(hash)) found.insert(hash);
      });
    });
  for (DomainText& domain : domains) {
    int64_t all = 0, seen = 0;
    for (const evaluate::ScoredTokens& one : domain.test)
      each_run(one.tokens, kRun, [&](uint64_t hash) {
        ++all;
        seen += found.contains(hash) ? 1 : 0;
      });
    domain.contaminated = all == 0 ? 0 : static_cast<double>(seen) / static_cast<double>(all);
    if (domain.contaminated > 0.01)
      log.warn("domain {}: {:.0f} % of what is held out stands in training text too ({} tokens in a row): its figures flatter", domain.name,
               100 * domain.contaminated, kRun);
  }
  return domains;
}

}  // namespace cairn::study
