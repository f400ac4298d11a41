#include "data/loader.h"

#include <any>

#include "base/actors/runtime.h"
#include "base/check.h"

namespace cairn::data {
namespace {

struct Made {
  mesh::Batch batch;
  std::exception_ptr failure;
};

constexpr int kMaking = 0, kTaking = 1;  // queues

}  // namespace

Loader::Loader(Make make, int64_t first, int64_t end, int64_t ahead) : make_(std::move(make)), end_(end), asked_(first) {
  CAIRN_CHECK(ahead >= 1 && first <= end, "steps {} to {}, {} ahead", first, end, ahead);
  base::ActorGraph graph;
  graph.add_queue({.name = "make batches"});
  graph.add_queue({.name = "take batches"});
  const int maker = graph.add_actor({.name = "loader", .queue = kMaking, .turns = end - first});
  const int taker = graph.add_actor({.name = "step", .queue = kTaking});
  graph.add_register({.name = "batches", .writer = maker, .readers = {taker}, .count = static_cast<int>(ahead)});
  const auto do_make = [this, first](base::TurnBuffers& turn) -> std::optional<base::PendingTurn> {
    Made made;
    try {
      if (!failed_) made.batch = make_(first + turn.tag());
    } catch (...) {
      made.failure = std::current_exception();
      failed_ = true;
    }
    turn.output(0) = std::move(made);
    return std::nullopt;
  };
  const auto do_take = [this](base::TurnBuffers& turn) -> std::optional<base::PendingTurn> {
    auto& made = std::any_cast<Made&>(turn.input(0));
    taken_ = std::move(made.batch);
    failure_ = made.failure;
    return std::nullopt;
  };
  actors_ =
      std::make_unique<base::ActorRuntime>(std::move(graph), std::vector<base::ActorBody>{do_make, do_take}, std::vector<int>{kTaking});
}

Loader::~Loader() = default;

mesh::Batch Loader::next() {
  if (failure_) std::rethrow_exception(failure_);  // every further call fails the same way
  CAIRN_CHECK(asked_ < end_, "asked for step {}, and the loader ends before step {}", asked_, end_);
  actors_->turn_here(kTaking);
  if (failure_) std::rethrow_exception(failure_);
  ++asked_;
  return std::move(taken_);
}

}  // namespace cairn::data
