// The ensemble against brute force in double, and the ways in which it could be wrong.
#include <algorithm>
#include <cmath>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "evaluate/ensemble/ensemble_model.h"
#include "evaluate/ensemble/posterior.h"
#include "evaluate/token_losses.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"
#include "model/generate/generate.h"
#include "proofs/hdee_parts.h"

namespace cairn::study {
namespace {

constexpr int64_t kVocab = 257, kLength = 64;

// A decoder with random weights, different enough from its neighbours that a posterior has something to say.
struct TinyExpert {
  model::DecoderShape shape;
  at::Tensor flat;
};

TinyExpert tiny(uint64_t seed, uint64_t which, int64_t embed) {
  TinyExpert made;
  made.shape.vocab = kVocab, made.shape.embed = embed, made.shape.layers = 2, made.shape.heads = 4, made.shape.kv_heads = 2;
  made.shape.head_dim = embed / 4, made.shape.mlp = 3 * embed, made.shape.length = 2 * kLength;
  const auto model = model::make_decoder(made.shape);
  made.flat = at::empty({model->elements()});
  base::Random(seed)
      .for_purpose("tiny expert")
      .for_index(which)
      .fill_normal({made.flat.mutable_data_ptr<float>(), static_cast<size_t>(made.flat.numel())});
  made.flat.mul_(0.15);
  return made;
}

// What a model says after each of these tokens: logs of probabilities [tokens, vocab], in double throughout.
at::Tensor log_softmax_of(const TinyExpert& expert, const std::vector<int32_t>& tokens) {
  const auto model = model::make_decoder(expert.shape);
  const model::FlatWeights weights(model->layout(), expert.flat.to(at::kDouble));
  model::Buffers buffers = model->make_buffers(at::kDouble);
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone, .random = {}, .needs = {false, false}};
  model::Values values;
  values.put("tokens", at::tensor(tokens, at::kInt).to(at::kLong).view({1, -1}));
  for (const auto& block : model->blocks()) block->plain(values, call);
  return at::log_softmax(values.take("logits").squeeze(0), -1);
}

// The ensemble as the product builds it.
class Built {
 public:
  Built(const std::vector<TinyExpert>& experts, const evaluate::MixtureOptions& options) {
    std::vector<model::DecoderShape> shapes;
    std::vector<at::Tensor> flat;
    for (const TinyExpert& one : experts) shapes.push_back(one.shape), flat.push_back(one.flat);
    model_ = evaluate::make_ensemble(shapes, options);
    weights_ = std::make_unique<model::FlatWeights>(model_->layout(), at::cat(flat));
    buffers_ = model_->make_buffers(at::kFloat);
  }

  // Logs of probabilities after each token.
  at::Tensor distributions(const std::vector<int32_t>& tokens) {
    const mesh::Axes alone;
    const model::Call call{.weights = *weights_, .buffers = buffers_, .axes = alone, .random = {}, .needs = {false, false}};
    model::Values values;
    values.put("tokens", at::tensor(tokens, at::kInt).to(at::kLong).view({1, -1}));
    for (const auto& block : model_->blocks()) block->forward(values, nullptr, call);
    return values.take("logits").squeeze(0);
  }

  // log p of each token but the first, as `cairn eval` judges them.
  std::vector<double> score(const std::vector<int32_t>& tokens) {
    const auto words = data::make_byte_tokenizer();
    const evaluate::EvaluatedModel evaluated{
        .model = *model_, .weights = *weights_, .buffers = buffers_, .tokenizer = *words, .vocab = kVocab, .length = 2 * kLength};
    const std::vector<evaluate::ScoredTokens> rows{{tokens, 1}};
    std::vector<double> logs;
    const std::vector<std::vector<float>> losses = evaluate::token_losses(evaluated, rows);
    for (const float loss : losses.front()) logs.push_back(-loss);
    return logs;
  }

  model::GeneratedText generate(const std::vector<int32_t>& prompt, int64_t tokens, uint64_t seed) {
    const std::vector<model::GenerateRequest> requests{{prompt, base::Random(seed).for_purpose("generate")}};
    return model::generate(*model_, *weights_, buffers_, requests,
                           {.tokens = tokens, .length_max = 2 * kLength, .sampling = {.temperature = 1, .top_k = 0}})
        .front();
  }

 private:
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::FlatWeights> weights_;
  model::Buffers buffers_;
};

double furthest(const at::Tensor& a, const at::Tensor& b) { return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>(); }

// log of the sum over experts of prior times the probability of the whole beginning: no running posterior at all.
std::vector<double> by_whole_beginnings(const std::vector<at::Tensor>& logs, const std::vector<double>& prior,
                                        const std::vector<int32_t>& tokens) {
  double all = 0;
  for (const double one : prior) all += one;
  std::vector<double> joint;
  for (const double one : prior) joint.push_back(std::log(one / all));
  const auto total = [&] {
    const double most = *std::max_element(joint.begin(), joint.end());
    double sum = 0;
    for (const double one : joint) sum += std::exp(one - most);
    return most + std::log(sum);
  };
  std::vector<double> found;
  double before = total();
  for (size_t t = 1; t < tokens.size(); ++t) {
    for (size_t j = 0; j < joint.size(); ++j) joint[j] += logs[j][static_cast<int64_t>(t) - 1][tokens[t]].item<double>();
    const double now = total();
    found.push_back(now - before);
    before = now;
  }
  return found;
}

void check_generation(const std::vector<TinyExpert>& experts, uint64_t seed, const std::vector<int32_t>& prompt, Findings& findings) {
  const struct {
    const char* name;
    evaluate::MixtureOptions options;
  } cases[] = {{"posterior", {.prior = {1, 2, 1}}},
               {"simple average", {.prior = {1, 1, 1}, .average = true}},
               {"two experts, refresh every 8 tokens", {.prior = {1, 1, 1}, .top_k = 2, .refresh = 8}},
               {"one expert, refresh every 8 tokens", {.prior = {1, 1, 1}, .top_k = 1, .refresh = 8}}};
  for (const auto& one : cases) {
    Built ensemble(experts, one.options);
    const model::GeneratedText written = ensemble.generate(prompt, kLength, seed);
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), written.ids.begin(), written.ids.end());
    const std::vector<double> scored = ensemble.score(all);
    double most = 0;
    for (size_t i = 0; i < written.ids.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(written.log_probabilities[i]) - scored[prompt.size() - 1 + i]));
    findings.at_most(fmt::format("1. {}: log p of generated tokens, written and scored, furthest apart", one.name), 0, most, 1e-4);
    const at::Tensor sums = ensemble.distributions(all).exp().sum(-1);
    findings.at_most(fmt::format("1. {}: probabilities of the next token sum to 1, furthest off", one.name), 0,
                     furthest(sums, at::full_like(sums, 1)), 1e-5);
  }
}

}  // namespace

void prove_hdee_exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  const at::NoGradGuard no_grad;
  log.info("exactness: three tiny models");
  const std::vector<TinyExpert> experts{tiny(options.seed, 0, 16), tiny(options.seed, 1, 24), tiny(options.seed, 2, 32)};
  // Half of the text is written by the second expert, so that the posterior moves.
  std::vector<int32_t> tokens{256};
  Built second({experts[1]}, {.prior = {1}});
  const model::GeneratedText written = second.generate(tokens, kLength, options.seed);
  tokens.insert(tokens.end(), written.ids.begin(), written.ids.end());
  std::vector<at::Tensor> logs;
  for (const TinyExpert& one : experts) logs.push_back(log_softmax_of(one, tokens));
  const std::vector<double> prior{1, 2, 3}, expected = by_whole_beginnings(logs, prior, tokens);

  Built ensemble(experts, {.prior = prior});
  const std::vector<double> scored = ensemble.score(tokens);
  double most = 0, total = 0, total_expected = 0;
  for (size_t t = 0; t < scored.size(); ++t) {
    most = std::max(most, std::abs(scored[t] - expected[t]));
    total += scored[t], total_expected += expected[t];
  }
  findings.at_most(fmt::format("1. log p of {} tokens against brute force in double: furthest of any token", scored.size()), 0, most, 1e-5);
  findings.at_most("1. log-likelihood of the sequence against brute force: relative difference", 0, std::abs(total / total_expected - 1),
                   1e-5);

  // The streaming form in double, on the experts' own numbers.
  std::vector<std::vector<double>> log_p(experts.size());
  for (size_t j = 0; j < experts.size(); ++j)
    for (size_t t = 1; t < tokens.size(); ++t) log_p[j].push_back(logs[j][static_cast<int64_t>(t) - 1][tokens[t]].item<double>());
  const evaluate::Mixed mixed = evaluate::mix({.prior = prior}, log_p);
  most = 0;
  for (size_t t = 0; t < expected.size(); ++t) most = std::max(most, std::abs(mixed.log_p[t] - expected[t]));
  findings.at_most("1. the streaming posterior in double against brute force: furthest of any token", 0, most, 1e-10);

  // Any other last token: the weights that it is judged with must not move, and over all of them p must sum to 1.
  double sum = 0, moved = 0;
  const size_t last = tokens.size() - 2;
  for (int32_t id = 0; id < kVocab; ++id) {
    std::vector<std::vector<double>> other = log_p;
    for (size_t j = 0; j < experts.size(); ++j) other[j][last] = logs[j][static_cast<int64_t>(last)][id].item<double>();
    const evaluate::Mixed of_other = evaluate::mix({.prior = prior}, other);
    sum += std::exp(of_other.log_p[last]);
    for (size_t j = 0; j < experts.size(); ++j) moved = std::max(moved, std::abs(of_other.log_q[last][j] - mixed.log_q[last][j]));
  }
  findings.at_most("1. the last token replaced by any other: weights that it is judged with move by", 0, moved, 0);
  findings.at_most("1. p of the last token, summed over all that could stand there: off 1 by", 0, std::abs(sum - 1), 1e-9);

  const at::Tensor alone = log_softmax_of(experts[1], tokens);
  findings.at_most("1. an ensemble of one against that expert: logs of probabilities furthest apart", 0,
                   furthest(Built({experts[1]}, {.prior = {1}}).distributions(tokens), alone), 1e-5);
  findings.at_most("1. an ensemble of two that are the same against one of them", 0,
                   furthest(Built({experts[1], experts[1]}, {.prior = {1, 3}}).distributions(tokens), alone), 1e-5);
  check_generation(experts, options.seed, {tokens.begin(), tokens.begin() + 11}, findings);

  // 5. The mean of logs is no distribution: by Jensen it falls short of 1 wherever experts differ.
  const at::Tensor mean_of_logs = (logs[0] + logs[1] + logs[2]) / 3;
  findings.at_most("5. the mean of logs, as others average: probabilities sum to at most (simple average sums to 1, above)", 1,
                   mean_of_logs.exp().sum(-1).max().item<double>(), 0.999);
  const at::Tensor mean = at::logsumexp(at::stack({logs[0], logs[1], logs[2]}), 0) - std::log(3.0);
  findings.at_most("5. simple average against the mean of probabilities in double, furthest apart", 0,
                   furthest(Built(experts, {.prior = {1, 1, 1}, .average = true}).distributions(tokens), mean), 1e-5);
}

}  // namespace cairn::study
