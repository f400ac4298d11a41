#include "parallel/layout/settle_context.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/attention.h"
#include "mesh/box.h"
#include "model/families/config.h"
#include "model/model.h"
#include "parallel/batch/context_batch.h"

namespace cairn::parallel {
namespace {

// Query heads and key heads of one rank along tp.
struct LocalHeads {
  int64_t queries, keys;
};

LocalHeads local_heads(const model::DecoderShape& shape, int tp, int rank) {
  const int64_t group = shape.heads / shape.kv_heads;
  if (tp > shape.kv_heads) return {mesh::even_part(shape.heads, tp, rank).length(), 1};  // ranks hold key heads together
  const int64_t keys = mesh::even_part(shape.kv_heads, tp, rank).length();
  return {keys * group, keys};
}

}  // namespace

std::string settle_context(Plan& plan, const model::Model& model, const ContextBatch& batch, const model::ContextLinks& links) {
  const int cp = plan.mesh.extent("cp"), tp = plan.mesh.extent("tp");
  if (cp == 1) return {};
  if (plan.context.balanced && batch.length > 1 && batch.length < 2 * cp)
    base::fail_input("mesh.cp = {}: sequences of {} positions are shorter than the {} chunks of a balanced split: use mesh.cp = {}", cp,
                     batch.length, 2 * cp, std::max<int64_t>(1, batch.length / 2));
  const std::string config = model.config_json();
  if (config.empty()) {  // nothing is known of its heads
    plan.context.automatic = false;
    return {};
  }
  const model::DecoderShape shape = model::parse_config(config, "the model");
  if (!plan.context.automatic) {
    for (int rank = 0; rank < tp; ++rank) model::check(plan.context.method, cp, local_heads(shape, tp, rank).queries);
    return {};
  }
  const LocalHeads heads = local_heads(shape, tp, 0);
  const kernels::AttentionOptions options{.window = batch.length > shape.window ? shape.window : 0};
  const model::ContextChoices choices = model::choose_context({.batch = batch.sequences,
                                                               .kv_heads = heads.keys,
                                                               .head_dim = shape.head_dim,
                                                               .element_bytes = batch.element_bytes,
                                                               .documents = batch.documents,
                                                               .heads = heads.queries},
                                                              options, make_context_split(batch.length, cp, plan.context.balanced), links);
  for (const model::ContextChoice& choice : choices.all) {
    const bool works = [&] {
      for (int rank = 0; rank < tp; ++rank) {
        const int64_t queries = local_heads(shape, tp, rank).queries;
        if (queries % (choice.method.form == model::ContextForm::ulysses ? cp : choice.method.ulysses) != 0) return false;
      }
      return true;
    }();
    if (!works) continue;
    plan.context.method = choice.method;
    plan.context.automatic = false;
    return choices.why;
  }
  CAIRN_CHECK(false, "no form of context attention works on {} ranks", cp);
  return {};
}

}  // namespace cairn::parallel
