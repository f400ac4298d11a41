// Scores experts and ensembles on the held-out text of domains.
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

// log p of every token, [sequence][token], in nats.
using TokenLogProbs = std::vector<std::vector<double>>;

struct DomainLogProbs {
  TokenLogProbs development, test;
};

// Scores a saved model on the held-out text of each domain. Refuses a model with another tokenizer (by its hash) or another number of
// parameters.
std::map<std::string, DomainLogProbs> score_model(const std::filesystem::path& model, const std::vector<DomainText>& domains,
                                                  uint64_t tokenizer, int64_t parameters, const at::Device& device, base::Log& log);

// Adds the domain "mixture": the sequences of all domains in turn.
inline constexpr const char* kMixture = "mixture";
void add_mixture(std::map<std::string, DomainLogProbs>& by_domain);

// Mean of -log p, over all tokens.
double loss_of(const TokenLogProbs& logs);

// An ensemble on one domain.
struct DomainResult {
  double loss = 0;                                    // nats a token
  std::vector<double> prior;                          // the prior that was used
  std::vector<double> posterior;                      // of each expert, mean over tokens
  std::vector<std::vector<double>> by_position = {};  // [position][expert], mean over sequences
  std::vector<std::vector<int64_t>> likeliest = {};   // [sequence][position]: index of the most probable expert
};

// `experts[j]` comes from score_model. The prior is fitted on the development sequences; results are of the test sequences.
DomainResult score_ensemble(const std::vector<const DomainLogProbs*>& experts, const EnsembleOptions& options);

}  // namespace cairn::study
