#include "evaluate/document_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/ranges.h>

#include "base/check.h"
#include "evaluate/token_losses.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kDocumentsAtOnce = 256;
constexpr size_t kNamedDocuments = 10;

// What one document's score is computed from: the mean loss of some tokens, or a ratio of two of them.
struct ScoredDocument {
  size_t whole = 0;            // its row
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
    if (first == tokens.size() || (ifd_ && first == 0)) return bad_.push_back(document);
    ScoredDocument one{.whole = rows_.size(), .has_loss = {}};
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

  void take(int64_t batch, std::vector<float>& into) {
    for (const ScoredTokens& row : rows_) evaluated_.check(row.tokens);
    const std::vector<std::vector<float>> losses = token_losses(evaluated_, rows_, batch);
    for (const ScoredDocument& one : documents_) {
      const double loss = mean_loss(losses[one.whole], one.has_loss);
      into.push_back(static_cast<float>(ifd_ ? loss / mean_loss(losses[one.alone], {}) : std::exp(loss)));
    }
    rows_.clear();
    documents_.clear();
  }

  void refuse_bad() const {
    if (bad_.empty()) return;
    const std::vector<int64_t> shown(bad_.begin(), bad_.begin() + static_cast<std::ptrdiff_t>(std::min(bad_.size(), kNamedDocuments)));
    base::fail_input("documents {}{}: {}", fmt::join(shown, ", "),
                     bad_.size() > shown.size() ? fmt::format(" and {} more", bad_.size() - shown.size()) : "",
                     ifd_ ? "they have no prompt or no answer within --max-tokens, and ifd compares the two. Leave them out."
                          : "no training target within --max-tokens. Leave them out.");
  }

 private:
  const EvaluatedModel& evaluated_;
  const data::Pool& pool_;
  bool ifd_;
  int64_t max_tokens_;
  std::vector<int32_t> context_;  // before a text without a prompt
  std::vector<ScoredTokens> rows_;
  std::vector<ScoredDocument> documents_;
  std::vector<int64_t> bad_;
};

}  // namespace

std::vector<std::string> document_score_names() { return {"perplexity", "ifd"}; }

bool is_document_score(const std::string& name) {
  const std::vector<std::string> names = document_score_names();
  return std::ranges::find(names, name) != names.end();
}

std::vector<float> document_scores(const EvaluatedModel& evaluated, const data::Pool& pool, const std::string& name, int64_t first,
                                   int64_t count, int64_t max_tokens, int64_t batch, const OnProgress& progress) {
  ScoresOfDocuments scores(evaluated, pool, name == "ifd", max_tokens - static_cast<int64_t>(evaluated.text_prefix.size()) - 1);
  std::vector<float> found;
  for (int64_t done = 0; done < count;) {
    const int64_t some = std::min(kDocumentsAtOnce, count - done);
    for (int64_t document = first + done; document < first + done + some; ++document) scores.add(document);
    scores.take(batch, found);
    done += some;
    if (progress) progress(done, count);
  }
  scores.refuse_bad();
  return found;
}

}  // namespace cairn::evaluate
