#include "cli/launch/run_decision.h"

#include "base/check.h"
#include "base/json.h"
#include "comm/world.h"

namespace cairn::cli {
namespace {

constexpr comm::Label kDecision{comm::Purpose::control, "the run's decision"};

}  // namespace

RunDecision broadcast_decision(comm::World& world, const std::function<RunDecision()>& decide) {
  std::string text;
  if (world.rank() == 0) {
    const RunDecision decision = decide();
    base::Json json{{"path", decision.run.path.string()}, {"resume", decision.run.resume}};
    if (decision.recipe) json["recipe"] = {{"text", decision.recipe->text}, {"name", decision.recipe->name}};
    text = base::compact(json);
  }
  auto bytes = static_cast<int64_t>(text.size());
  world.everyone().broadcast({&bytes, 1, comm::Dtype::i64}, 0, kDecision).wait();
  text.resize(static_cast<size_t>(bytes));
  world.everyone().broadcast({text.data(), bytes, comm::Dtype::u8}, 0, kDecision).wait();
  const base::Json json = base::parse_json(text);
  CAIRN_CHECK(json.is_object(), "rank 0 decided {} bytes that make no sense", bytes);
  RunDecision decision{{json["path"].get<std::string>(), json["resume"].get<bool>()}, std::nullopt};
  if (json.contains("recipe")) decision.recipe = {json["recipe"]["text"].get<std::string>(), json["recipe"]["name"].get<std::string>()};
  return decision;
}

}  // namespace cairn::cli
