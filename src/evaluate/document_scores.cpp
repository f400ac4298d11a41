#include "evaluate/document_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/ranges.h>

#include "base/check.h"
#include "comm/group.h"
#include "evaluate/token_losses.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kBlockDocuments = 64;  // that are sorted by length and scored together, whatever the number of ranks
constexpr size_t kNamedDocuments = 10;
constexpr float kNoScore = -1;  // a document cannot have this one; scores are from 0 on

// What one document's score is computed from: the mean loss of some tokens, or a ratio of two of them.
struct ScoredDocument {
  int64_t document = 0;
  size_t whole = 0;            // its row; SIZE_MAX: it cannot have the score
  std::vector<bool> has_loss;  // of the scored tokens of that row
  size_t alone = SIZE_MAX;     // the row of its answer alone
};

double mean_loss(const std::vector<float>& losses, const std::vector<bool>& has_loss) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < losses.size(); ++i)
    if (has_loss.empty() || has_loss[i]) sum += static_cast<double>(losses[i]), count += 1;
  return sum / count;
}

class ScoresOfDocuments {
 public:
  ScoresOfDocuments(const EvaluatedModel& evaluated, const data::Pool& pool, bool ifd, int64_t max_tokens)
      : evaluated_(evaluated), pool_(pool), ifd_(ifd), max_tokens_(std::min(max_tokens, evaluated.length)) {
    context_ = evaluated.text_prefix;
    if (context_.empty()) context_.push_back(evaluated.begin ? *evaluated.begin : evaluated.tokenizer.end_of_text());
  }

  void add(int64_t document) {
    std::vector<int64_t> tokens;
    std::vector<bool> targets;
    pool_.read(document, max_tokens_, tokens, &targets);
    const auto first = static_cast<size_t>(std::ranges::find(targets, true) - targets.begin());
    ScoredDocument one{.document = document, .whole = rows_.size(), .has_loss = {}};
    if (first == tokens.size() || (ifd_ && first == 0)) {
      one.whole = SIZE_MAX;
      return documents_.push_back(std::move(one));
    }
    // A text begins after the prefix that the model knows; a conversation begins as its template writes it.
    ScoredTokens row{.tokens = first == 0 ? context_ : std::vector<int32_t>(), .first = 1};
    const size_t before = row.tokens.size();
    row.tokens.insert(row.tokens.end(), tokens.begin(), tokens.end());
    row.first = static_cast<int64_t>(std::max<size_t>(first + before, 1));
    for (auto i = static_cast<size_t>(row.first); i < row.tokens.size(); ++i) one.has_loss.push_back(targets[i - before]);
    rows_.push_back(std::move(row));
    if (ifd_) {
      one.alone = rows_.size();
      ScoredTokens alone{.tokens = context_, .first = static_cast<int64_t>(context_.size())};
      for (size_t i = first; i < tokens.size(); ++i)
        if (targets[i]) alone.tokens.push_back(static_cast<int32_t>(tokens[i]));
      rows_.push_back(std::move(alone));
    }
    documents_.push_back(std::move(one));
  }

  // Scores what was added, into a score for each document of the pool.
  void take(int64_t batch, std::vector<float>& into) {
    for (const ScoredTokens& row : rows_) evaluated_.check(row.tokens);
    const std::vector<std::vector<float>> losses = token_losses(evaluated_, rows_, batch);
    for (const ScoredDocument& one : documents_) {
      float& score = into[static_cast<size_t>(one.document)];
      score = kNoScore;
      if (one.whole == SIZE_MAX) continue;
      const double loss = mean_loss(losses[one.whole], one.has_loss);
      score = static_cast<float>(ifd_ ? loss / mean_loss(losses[one.alone], {}) : std::exp(loss));
    }
    rows_.clear();
    documents_.clear();
  }

 private:
  const EvaluatedModel& evaluated_;
  const data::Pool& pool_;
  bool ifd_;
  int64_t max_tokens_;
  std::vector<int32_t> context_;  // before a text without a prompt
  std::vector<ScoredTokens> rows_;
  std::vector<ScoredDocument> documents_;
};

template <typename IsBad>
void refuse_scores(const std::vector<float>& scores, const IsBad& is_bad, const char* why) {
  std::vector<size_t> shown;
  size_t bad = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!is_bad(scores[i])) continue;
    if (shown.size() < kNamedDocuments) shown.push_back(i);
    ++bad;
  }
  if (bad > 0)
    base::fail_input("documents {}{}: {}", fmt::join(shown, ", "),
                     bad > shown.size() ? fmt::format(" and {} more", bad - shown.size()) : "", why);
}

}  // namespace

std::vector<std::string> document_score_names() { return {"perplexity", "ifd"}; }

bool is_document_score(const std::string& name) {
  const std::vector<std::string> names = document_score_names();
  return std::ranges::find(names, name) != names.end();
}

std::vector<float> document_scores(const EvaluatedModel& evaluated, const data::Pool& pool, const std::string& name,
                                   const DocumentScoreOptions& options, comm::Group* ranks, const OnProgress& progress) {
  const bool ifd = name == "ifd";
  ScoresOfDocuments scores(evaluated, pool, ifd, options.max_tokens - static_cast<int64_t>(evaluated.text_prefix.size()) - 1);
  const int64_t documents = pool.documents(), together = kBlockDocuments * (ranks ? ranks->size() : 1);
  std::vector<float> all(static_cast<size_t>(documents), 0);
  for (int64_t round = 0; round < documents; round += together) {
    const int64_t first = std::min(documents, round + kBlockDocuments * (ranks ? ranks->rank() : 0));
    for (int64_t document = first; document < std::min(documents, first + kBlockDocuments); ++document) scores.add(document);
    scores.take(options.batch, all);
    if (progress) progress(std::min(documents, round + together), documents);
  }
  if (ranks)
    ranks->all_reduce({all.data(), documents, comm::Dtype::f32}, comm::Reduce::sum, {comm::Purpose::control, "scores"}).wait_host();
  refuse_scores(
      all, [](float score) { return score == kNoScore; },
      ifd ? "they have no prompt or no answer within --max-tokens, and ifd compares the two. Leave them out."
          : "no training target within --max-tokens. Leave them out.");
  refuse_scores(
      all, [](float score) { return !std::isfinite(score); }, "their losses are not finite. Use another --model.");
  return all;
}

}  // namespace cairn::evaluate
