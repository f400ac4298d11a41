#include "model/supernet/elastic_block.h"

#include <utility>

#include "base/check.h"
#include "model/supernet/subnet.h"

namespace cairn::model {
namespace {

class ElasticBlock final : public Block {
 public:
  ElasticBlock(std::unique_ptr<Block> block, int64_t stage, int64_t place)
      : block_(std::move(block)), stage_(stage), place_(place), card_(block_->card()) {
    CAIRN_CHECK(card_.reads.size() == 1 && card_.writes.size() == 1, "{} reads {} values and writes {}", card_.name, card_.reads.size(),
                card_.writes.size());
    card_.sliceable = false;
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    if (runs(call)) return block_->forward(values, keep, call);
    values.put(card_.writes.front(), values.get(card_.reads.front()));
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    if (runs(call)) return block_->backward_input(gradients, saved, call);
    gradients.add(card_.reads.front(), gradients.take(card_.writes.front()));
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    if (runs(call)) return block_->backward_weight(std::move(saved), into, call);
    for (const BlockOp& operation : card_.operations)  // they count as zero
      for (const mesh::ParamId& id : operation.parameters) into.skip(id);
  }

  void plain(Values& values, const Call& call) const override {
    if (runs(call)) return block_->plain(values, call);
    values.put(card_.writes.front(), values.get(card_.reads.front()));
  }

 private:
  bool runs(const Call& call) const { return runs_in(call, stage_, place_); }

  std::unique_ptr<Block> block_;
  int64_t stage_, place_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_elastic_block(std::unique_ptr<Block> block, int64_t stage, int64_t place) {
  return std::make_unique<ElasticBlock>(std::move(block), stage, place);
}

}  // namespace cairn::model
