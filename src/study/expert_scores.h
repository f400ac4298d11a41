// How experts and their ensembles foresee the held-out text of domains.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "evaluate/ensemble/posterior.h"
#include "study/domain_text.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

// log p of every token, [sequence][token].
using TokenLogProbs = std::vector<std::vector<double>>;

struct DomainLogProbs {
  TokenLogProbs development, test;
};

// What a saved model gives the held-out text of each domain, by domain. A model whose tokenizer is another than `tokenizer` (its hash), or
// that has another number of parameters than `parameters`, is refused.
std::map<std::string, DomainLogProbs> score_model(const std::filesystem::path& model, const std::vector<DomainText>& domains,
                                                  uint64_t tokenizer, int64_t parameters, const at::Device& device, base::Log& log);

// The sequences of all domains in turn, as one more domain: a stream in which nobody knows what comes next.
inline constexpr const char* kMixture = "mixture";
void add_mixture(std::map<std::string, DomainLogProbs>& by_domain);

// Mean of -log p, over all tokens.
double loss_of(const TokenLogProbs& logs);

// An ensemble on one domain.
struct DomainResult {
  double loss = 0;                                    // nats a token
  std::vector<double> prior;                          // that it began with
  std::vector<double> posterior;                      // of each expert, the mean over tokens
  std::vector<std::vector<double>> by_position = {};  // [position][expert], the mean over sequences
  std::vector<std::vector<int64_t>> likeliest = {};   // [sequence][position]: which expert
};

// `experts[j]`: what score_model gave. The prior is found on the development sequences, as the options say; results are of the others.
DomainResult score_ensemble(const std::vector<const DomainLogProbs*>& experts, const EnsembleOptions& options);

}  // namespace cairn::study
