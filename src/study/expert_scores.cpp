#include "study/expert_scores.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "data/tokenizer/open_tokenizer.h"
#include "evaluate/evaluated_model.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "snapshot/pretrained.h"

namespace cairn::study {
namespace {

constexpr int64_t kBatch = 16;  // sequences read together

TokenLogProbs score(const evaluate::EvaluatedModel& evaluated, const std::vector<evaluate::ScoredTokens>& sequences) {
  TokenLogProbs logs;
  for (const std::vector<float>& losses : evaluate::token_losses(evaluated, sequences, kBatch)) {
    logs.emplace_back(losses.begin(), losses.end());
    for (double& one : logs.back()) one = -one;
  }
  return logs;
}

// One sequence of each domain, then the next of each.
TokenLogProbs in_turn(const std::vector<const TokenLogProbs*>& all) {
  TokenLogProbs mixed;
  size_t longest = 0;
  for (const TokenLogProbs* one : all) longest = std::max(longest, one->size());
  for (size_t i = 0; i < longest; ++i)
    for (const TokenLogProbs* one : all)
      if (i < one->size()) mixed.push_back((*one)[i]);
  return mixed;
}

std::vector<double> sums_of(const std::vector<const DomainLogProbs*>& experts, size_t sequence) {
  std::vector<double> sums;
  for (const DomainLogProbs* expert : experts) {
    double sum = 0;
    for (const double one : expert->development[sequence]) sum += one;
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace

std::map<std::string, DomainLogProbs> score_model(const std::filesystem::path& path, const std::vector<DomainText>& domains,
                                                  uint64_t tokenizer, int64_t parameters, const at::Device& device, base::Log& log) {
  const snapshot::Pretrained opened = snapshot::open_pretrained(path.string(), log);
  const auto model = model::make_decoder(opened.shape);
  if (model->elements() != parameters)
    base::fail_input("{}: {} parameters, and its size says {}: another run has written there", path.string(), model->elements(),
                     parameters);
  const at::TensorOptions there = at::TensorOptions().dtype(at::kFloat).device(device);
  const model::FlatWeights weights(model->layout(), at::empty({model->elements()}, there));
  opened.load_into(weights.layout().views(weights.flat()));
  const auto words = data::open_tokenizer(opened.path);
  if (const uint64_t hash = data::hash(*words); hash != tokenizer)
    base::fail_input("{}: its tokenizer ({:016x}) is not the study's ({:016x}): perplexities could not be compared", path.string(), hash,
                     tokenizer);
  model::Buffers buffers = model->make_buffers(there);
  const evaluate::EvaluatedModel evaluated{.model = *model,
                                           .weights = weights,
                                           .buffers = buffers,
                                           .tokenizer = *words,
                                           .vocab = opened.shape.vocab,
                                           .length = opened.shape.length};
  std::map<std::string, DomainLogProbs> found;
  for (const DomainText& domain : domains) found[domain.name] = {score(evaluated, domain.development), score(evaluated, domain.test)};
  return found;
}

void add_mixture(std::map<std::string, DomainLogProbs>& by_domain) {
  std::vector<const TokenLogProbs*> development, test;
  for (const auto& [name, logs] : by_domain) development.push_back(&logs.development), test.push_back(&logs.test);
  DomainLogProbs mixture{in_turn(development), in_turn(test)};
  by_domain[kMixture] = std::move(mixture);
}

double loss_of(const TokenLogProbs& logs) {
  double sum = 0, count = 0;
  for (const std::vector<double>& sequence : logs) {
    for (const double one : sequence) sum -= one;
    count += static_cast<double>(sequence.size());
  }
  return sum / count;
}

DomainResult score_ensemble(const std::vector<const DomainLogProbs*>& experts, const EnsembleOptions& options) {
  evaluate::MixtureOptions mix{.prior = std::vector<double>(experts.size(), 1.0 / static_cast<double>(experts.size())),
                               .average = options.prior == "simple_average",
                               .top_k = options.top_k,
                               .refresh = options.refresh};
  if (options.prior == "cached") {
    evaluate::CachedPrior cached(static_cast<int64_t>(experts.size()), options.decay, options.decay_by_power);
    for (size_t i = 0; i < experts.front()->development.size(); ++i) cached.add(sums_of(experts, i));
    mix.prior = cached.prior();
  }
  DomainResult result{.prior = mix.prior, .posterior = std::vector<double>(experts.size(), 0.0)};
  std::vector<double> sequences;  // that reach each position
  double tokens = 0;
  for (size_t i = 0; i < experts.front()->test.size(); ++i) {
    std::vector<std::vector<double>> logs;
    for (const DomainLogProbs* expert : experts) logs.push_back(expert->test[i]);
    const evaluate::Mixed mixed = evaluate::mix(mix, logs);
    std::vector<int64_t> likeliest;
    for (size_t t = 0; t < mixed.log_p.size(); ++t) {
      result.loss -= mixed.log_p[t];
      if (t >= result.by_position.size()) result.by_position.emplace_back(experts.size(), 0.0), sequences.push_back(0);
      for (size_t j = 0; j < experts.size(); ++j) {
        const double weight = std::exp(mixed.log_q[t][j]);
        result.posterior[j] += weight;
        result.by_position[t][j] += weight;
      }
      ++sequences[t];
      ++tokens;
      likeliest.push_back(std::max_element(mixed.log_q[t].begin(), mixed.log_q[t].end()) - mixed.log_q[t].begin());
    }
    result.likeliest.push_back(std::move(likeliest));
  }
  result.loss /= tokens;
  for (double& one : result.posterior) one /= tokens;
  for (size_t t = 0; t < sequences.size(); ++t)
    for (double& one : result.by_position[t]) one /= sequences[t];
  return result;
}

}  // namespace cairn::study
