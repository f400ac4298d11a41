#include "cli/launch/run_directory.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "comm/world.h"

namespace cairn::cli {
namespace {

constexpr comm::Label kDecision{comm::Purpose::control, "the run's decision"};

bool is_run(const std::filesystem::path& path) { return std::filesystem::exists(path / "recipe.toml"); }

std::filesystem::path numbered(const std::string& name, int number) {
  return std::filesystem::path("runs") / (number == 1 ? name : fmt::format("{}-{}", name, number));
}

}  // namespace

RunDirectory choose_run_directory(const std::string& out, const std::string& resume, const std::string& name) {
  if (!resume.empty() && resume != "auto") {
    const std::filesystem::path path = resume;
    if (!out.empty() && std::filesystem::weakly_canonical(out) != std::filesystem::weakly_canonical(path))
      base::fail_input("--out {} and --resume {} name different directories: a resumed run goes on where it is; leave --out away", out,
                       resume);
    if (!std::filesystem::is_directory(path)) base::fail_input("--resume {}: no such directory", resume);
    if (!is_run(path)) base::fail_input("--resume {}: not a run directory (no recipe.toml there)", resume);
    return {path, true};
  }
  if (!out.empty()) {
    const std::filesystem::path path = out;
    if (std::filesystem::exists(path) && !std::filesystem::is_directory(path))
      base::fail_input("--out {}: is a file, not a directory", out);
    if (is_run(path) && resume.empty())
      base::fail_input("--out {}: holds a run already; pass --resume auto to continue it, or choose another directory", out);
    if (!resume.empty() && std::filesystem::exists(path) && !std::filesystem::is_empty(path) && !is_run(path))
      base::fail_input("--out {} --resume auto: not a run directory (no recipe.toml there)", out);
    return {path, !resume.empty() && is_run(path)};
  }
  int free = 1;
  while (std::filesystem::exists(numbered(name, free))) ++free;
  if (resume == "auto") {
    for (int number = free - 1; number >= 1; --number)
      if (is_run(numbered(name, number))) return {numbered(name, number), true};
  }
  return {numbered(name, free), false};
}

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
