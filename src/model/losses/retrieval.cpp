#include "model/losses/retrieval.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/core/IListRef.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softmax.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

constexpr int64_t kScoreBytesMax = 256 << 20;  // of products of single tokens at a time

// The scores of all queries and passages of a batch, and the gradient of the loss with respect to them.
struct Scores {
  at::Tensor right, wrong;              // [B, B]: of query i and the right (wrong) passage of sample j
  at::Tensor right_slope, wrong_slope;  // undefined: no gradient is wanted
};

// What a loss is by sample, and the share of samples whose own passage has the best score.
struct BySample {
  at::Tensor loss, hit;
};

at::Tensor column(const at::Tensor& x) { return x.unsqueeze(1); }

class Retrieval final : public Objective {
 public:
  // `whole`: the loss over all passages of the batch too.
  Retrieval(const RetrievalLossOptions& options, bool whole) : o_(options), whole_(whole) {}

  Separates separates() const override { return whole_ ? Separates::nothing : Separates::samples; }
  std::vector<std::string> measures() const override {
    std::vector<std::string> names{"pair_loss", "pair_accuracy"};
    if (o_.in_batch_weight > 0) names.insert(names.end(), {"in_batch_loss", "in_batch_accuracy"});
    if (asks_teacher()) names.insert(names.end(), {"teacher_accuracy", "teacher_score"});
    return names;
  }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& /*axes*/) const override {
    const at::Tensor vectors = outputs.get("vectors");
    CAIRN_CHECK(vectors.dim() == 3 && vectors.size(1) == 3, "vectors of {} dims, {} by sample", vectors.dim(), vectors.size(1));
    const at::Tensor q = vectors.select(1, 0), p = vectors.select(1, 1), n = vectors.select(1, 2);
    const at::Tensor by_weight =
        batch.weights.defined() ? batch.weights.to(vectors.scalar_type()) : at::ones({q.size(0)}, vectors.options());
    const auto count = static_cast<int64_t>(measures().size());
    at::Tensor measured = at::full({count}, std::numeric_limits<double>::quiet_NaN(), vectors.options().dtype(at::kDouble));
    const at::Tensor right = (q * p).sum(1), wrong = (q * n).sum(1), margin = right - wrong;
    at::Tensor pair, slope;  // of the margin
    if (o_.pair_weight > 0) {
      const at::Tensor apart = margin - wanted_margin(batch).to(margin.scalar_type());
      pair = apart * apart, slope = 2 * apart;
    } else {
      pair = -at::log_sigmoid(margin), slope = -at::sigmoid(-margin);
    }
    measured[0] = pair.sum(at::kDouble), measured[1] = margin.gt(0).sum(at::kDouble);
    at::Tensor per_sample = whole_ ? o_.pair_weight * pair : pair;
    at::Tensor dmargin = (whole_ ? o_.pair_weight : 1.0) * slope * by_weight * weight;
    at::Tensor dvectors;
    if (gradients) dvectors = at::stack(std::vector<at::Tensor>{column(dmargin) * (p - n), column(dmargin) * q, -column(dmargin) * q}, 1);
    if (whole_ && o_.in_batch_weight > 0 && q.size(0) > 1) {
      Scores scores{.right = q.mm(p.t()), .wrong = q.mm(n.t()), .right_slope = {}, .wrong_slope = {}};
      const BySample found = in_batch(scores, batch, gradients != nullptr, measured);
      per_sample = per_sample + o_.in_batch_weight * found.loss;
      measured[2] = found.loss.sum(at::kDouble), measured[3] = found.hit.sum(at::kDouble);
      if (gradients) {
        const at::Tensor scale = column(by_weight) * (o_.in_batch_weight * weight);
        const at::Tensor dright = scores.right_slope * scale, dwrong = scores.wrong_slope * scale;
        dvectors.select(1, 0).add_(dright.mm(p)).add_(dwrong.mm(n));
        dvectors.select(1, 1).add_(dright.t().mm(q));
        dvectors.select(1, 2).add_(dwrong.t().mm(q));
      }
    }
    if (gradients) gradients->add("vectors", dvectors);
    per_sample = per_sample * by_weight;
    return {.sum = per_sample.sum(at::kDouble),
            .count = at::full({}, q.size(0), vectors.options().dtype(at::kLong)),
            .per_sample = per_sample,
            .per_sample_count = at::ones({q.size(0)}, vectors.options().dtype(at::kLong)),
            .measures = measured};
  }

 private:
  bool asks_teacher() const { return o_.in_batch_weight > 0 && o_.in_batch_loss != PassageLoss::labels; }

  static at::Tensor wanted_margin(const mesh::Batch& batch) {
    const at::Tensor& scores = batch.field("pair_scores");
    return scores.select(1, 0) - scores.select(1, 1);
  }

  BySample in_batch(Scores& scores, const mesh::Batch& batch, bool slopes, at::Tensor& measured) const {
    const int64_t b = scores.right.size(0);
    const at::Tensor own = at::arange(b, scores.right.options().dtype(at::kLong));
    if (asks_teacher()) {
      const at::Tensor teacher = batch.field("teacher_scores");
      CAIRN_CHECK(teacher.size(0) == b && teacher.size(1) == 2 * b, "teacher scores [{}, {}] of {} samples", teacher.size(0),
                  teacher.size(1), b);
      measured[4] = teacher.argmax(1).eq(own).sum(at::kDouble);
      const at::Tensor others = teacher.sum(1, /*keepdim=*/false, at::kDouble) - teacher.diagonal() - teacher.diagonal(b);
      measured[5] = others.sum() / (2.0 * static_cast<double>(b - 1));
    }
    const at::Tensor all = at::cat(std::vector<at::Tensor>{scores.right, scores.wrong}, 1);
    const at::Tensor hit = all.argmax(1).eq(own);
    if (o_.in_batch_loss == PassageLoss::margin_mse) return {margins(scores, batch.field("teacher_scores"), slopes), hit};
    const at::Tensor log_p = at::log_softmax(all, 1);
    at::Tensor wanted, loss;  // the distribution, and the cross entropy without what does not depend on the student
    if (o_.in_batch_loss == PassageLoss::labels) {
      wanted = at::zeros_like(all);
      wanted.diagonal().fill_(1);
      loss = -log_p.diagonal();
    } else {
      const at::Tensor teacher = batch.field("teacher_scores").to(all.scalar_type());
      const at::Tensor log_t = at::log_softmax(teacher, 1);
      wanted = log_t.exp();
      loss = (wanted * (log_t - log_p)).sum(1);
    }
    if (slopes) {
      const at::Tensor slope = log_p.exp() - wanted;
      scores.right_slope = slope.narrow(1, 0, b), scores.wrong_slope = slope.narrow(1, b, b);
    }
    return {loss, hit};
  }

  // The differences of margins, whose squares are the loss. The diagonal is the own pair's business.
  static at::Tensor margins(Scores& scores, const at::Tensor& teacher_scores, bool slopes) {
    const int64_t b = scores.right.size(0);
    const at::Tensor teacher = teacher_scores.to(scores.right.scalar_type());
    const at::Tensor own = column(scores.right.diagonal()) - column(teacher.diagonal());
    const at::Tensor others = 1 - at::eye(b, scores.right.options());
    const at::Tensor right = (own - (scores.right - teacher.narrow(1, 0, b))) * others;
    const at::Tensor wrong = (own - (scores.wrong - teacher.narrow(1, b, b))) * others;
    const double by = 1.0 / static_cast<double>(b - 1);
    if (slopes) {
      scores.right_slope = -right * by, scores.wrong_slope = -wrong * by;
      scores.right_slope.diagonal().add_((right + wrong).sum(1), by);
    }
    return ((right * right).sum(1) + (wrong * wrong).sum(1)) * (by / 2);
  }

  RetrievalLossOptions o_;
  bool whole_;
};

}  // namespace

std::unique_ptr<Objective> make_retrieval(const RetrievalLossOptions& options) { return std::make_unique<Retrieval>(options, true); }
std::unique_ptr<Objective> make_retrieval_pairs(const RetrievalLossOptions& options) { return std::make_unique<Retrieval>(options, false); }

at::Tensor late_interaction(const at::Tensor& queries, const at::Tensor& query_lengths, const at::Tensor& passages,
                            const at::Tensor& passage_lengths) {
  const int64_t m = queries.size(0), ql = queries.size(1), n = passages.size(0), pl = passages.size(1), embed = queries.size(2);
  const auto inside = [](const at::Tensor& lengths, int64_t length) {
    return at::arange(length, lengths.options()).unsqueeze(0).lt(lengths.unsqueeze(1));
  };
  const at::Tensor flat = passages.reshape({n * pl, embed}).to(at::kFloat).t();
  const at::Tensor outside = inside(passage_lengths, pl).logical_not().view({1, n, pl});
  const at::Tensor counts = inside(query_lengths, ql).to(at::kFloat);
  const at::Tensor scores = at::empty({m, n}, queries.options().dtype(at::kFloat));
  const int64_t rows = std::max<int64_t>(1, kScoreBytesMax / (4 * ql * n * pl));
  for (int64_t first = 0; first < m; first += rows) {
    const int64_t count = std::min(rows, m - first);
    const at::Tensor products =
        queries.narrow(0, first, count).reshape({count * ql, embed}).to(at::kFloat).mm(flat).view({count * ql, n, pl});
    const at::Tensor best = products.masked_fill_(outside, -std::numeric_limits<float>::infinity()).amax(2).view({count, ql, n});
    scores.narrow(0, first, count).copy_((best * counts.narrow(0, first, count).unsqueeze(2)).sum(1));
  }
  return scores;
}

}  // namespace cairn::model
