#include "cli/launch/run_directory.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "comm/world.h"
#include "snapshot/folder.h"
#include "snapshot/snapshot.h"

namespace cairn::cli {
namespace {

constexpr comm::Label kDecision{comm::Purpose::control, "the run's decision"};

namespace fs = std::filesystem;

constexpr const char* kRuns = "runs";

bool is_run(const fs::path& path) { return fs::exists(path / "recipe.toml"); }

// Whether there is nothing but the lock of a run that was killed before it wrote anything.
bool is_unused(const fs::path& path) {
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().filename() != snapshot::kLockFile) return false;
  return true;
}

fs::path numbered(const std::string& name, int number) {
  return fs::path(kRuns) / (number == 1 ? name : fmt::format("{}-{}", name, number));
}

// When a run last wrote something.
fs::file_time_type last_written(const fs::path& run) {
  fs::file_time_type last = fs::file_time_type::min();
  std::error_code missing;
  for (const char* name : {"recipe.toml", "metrics.jsonl", "snapshots"}) {
    const fs::file_time_type time = fs::last_write_time(run / name, missing);
    if (!missing) last = std::max(last, time);
  }
  return last;
}

// Whether a folder is runs/NAME or runs/NAME-2, ...
bool has_name(const std::string& folder, const std::string& name) {
  if (folder == name) return true;
  if (!folder.starts_with(name + "-")) return false;
  const std::string number = folder.substr(name.size() + 1);
  return number.find_first_not_of("0123456789") == std::string::npos && !number.empty();
}

// The newest run in runs/; of this name unless that is empty. Empty where there is none.
fs::path newest_run(const std::string& name) {
  fs::path newest;
  std::error_code error;
  for (fs::directory_iterator it(kRuns, error), end; !error && it != end; it.increment(error)) {
    if (!name.empty() && !has_name(it->path().filename().string(), name)) continue;
    if (is_run(it->path()) && (newest.empty() || last_written(it->path()) > last_written(newest))) newest = it->path();
  }
  return newest;
}

bool names_run(const RunRequest& request) { return !request.recipe.empty() || !request.data.empty(); }

// The directory of the options --resume and --out; empty: neither names one.
RunDirectory given_directory(const RunRequest& request) {
  const bool is_auto = request.resume == "auto";
  if (!request.resume.empty() && !is_auto) return {.path = request.resume, .resume = true};
  if (!request.out.empty()) return {.path = request.out, .resume = is_auto && is_run(request.out)};
  if (is_auto) {
    const fs::path newest = newest_run(names_run(request) ? run_name(request) : "");
    if (!newest.empty()) return {.path = newest, .resume = true};
  }
  return {};
}

void check_given(const RunRequest& request) {
  const fs::path out = request.out, resumed = request.resume;
  if (!request.resume.empty() && request.resume != "auto") {
    if (!request.out.empty() && fs::weakly_canonical(out) != fs::weakly_canonical(resumed))
      base::fail_input("--out {} and --resume {} name different directories: a resumed run goes on where it is; leave --out away",
                       request.out, request.resume);
    if (!fs::is_directory(resumed)) base::fail_input("--resume {}: no such directory", request.resume);
    if (!is_run(resumed)) base::fail_input("--resume {}: not a run directory (no recipe.toml there)", request.resume);
  } else if (!request.out.empty() && fs::exists(out)) {
    if (!fs::is_directory(out)) base::fail_input("--out {}: is a file, not a directory", request.out);
    if (!request.resume.empty() && !is_run(out) && !is_unused(out))
      base::fail_input("--out {} --resume auto: not a run directory (no recipe.toml there)", request.out);
  }
}

void check_free(const RunRequest& request) {
  if (!request.out.empty() && request.resume.empty() && is_run(request.out))
    base::fail_input("--out {}: holds a run already; pass --resume auto to continue it, or choose another directory", request.out);
}

// The step of the newest snapshot that looks complete; 0 where there is none.
int64_t newest_step(const fs::path& run) {
  if (!is_run(run)) return 0;
  const std::optional<std::string> newest = snapshot::find_latest(run.string());
  return newest ? snapshot::parse_step_folder(*newest)->step : 0;
}

// The same for one of several islands: it can do without its own snapshots.
int64_t newest_step_of_island(const fs::path& run) {
  try {
    return newest_step(run);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::corrupt_file) throw;
    return 0;
  }
}

// Islands that step separately have directories island-1, island-2, ... in that of the first one.
void find_steps(RunDirectory& run) {
  const auto folder = [&](int island) { return run.path / fmt::format("island-{}", island); };
  const bool islands = fs::is_directory(folder(1));
  run.step = run.furthest = islands ? newest_step_of_island(run.path) : newest_step(run.path);
  for (int island = 1; fs::is_directory(folder(island)); ++island) {
    const int64_t step = newest_step_of_island(folder(island));
    run.step = std::min(run.step, step);
    run.furthest = std::max(run.furthest, step);
  }
}

std::string note_of(const RunRequest& request, const RunDirectory& run) {
  if (request.resume != "auto" || run.resume) return {};
  if (!request.out.empty()) return fmt::format("--resume auto: there is no run in {} yet: a new one starts", request.out);
  const fs::path other = newest_run("");
  return fmt::format("--resume auto: there is no run{} in {}/ to continue{}: a new one starts",
                     names_run(request) ? " of " + run_name(request) : "", kRuns,
                     other.empty() ? "" : fmt::format(" (--resume {} continues that one)", other.string()));
}

void look_at(const RunRequest& request, RunDirectory& run) {
  run.note = note_of(request, run);
  if (run.resume) find_steps(run);
}

}  // namespace

std::string run_name(const RunRequest& request) {
  if (!request.recipe.empty()) return fs::path(request.recipe).stem().string();
  if (request.data.empty()) return "stories";
  std::error_code error;
  fs::path path = fs::absolute(request.data, error).lexically_normal();  // "." and ".." have names of their own
  for (; !path.empty() && path != path.root_path(); path = path.parent_path()) {
    std::string name;
    for (const char c : path.stem().string())
      name += std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || (c & 0x80) ? c : '-';
    const bool pattern = path.filename().string().find_first_of("*?[{") != std::string::npos;
    while (pattern && name.find("--") != std::string::npos) name.erase(name.find("--"), 1);
    while (name.ends_with('-')) name.pop_back();
    name.erase(0, name.find_first_not_of("-."));
    if (!name.empty()) return name;
  }
  return "data";
}

RunDirectory find_run_directory(const RunRequest& request) {
  check_given(request);
  check_free(request);
  RunDirectory run = given_directory(request);
  if (run.path.empty()) {
    int free = 1;
    while (fs::exists(numbered(run_name(request), free))) ++free;
    run.path = numbered(run_name(request), free);
  }
  look_at(request, run);
  return run;
}

ClaimedRun claim_run_directory(const RunRequest& request) {
  check_given(request);
  ClaimedRun claimed{.run = given_directory(request), .lock = nullptr};
  if (!claimed.run.path.empty()) {
    claimed.lock = std::make_unique<snapshot::RunLock>(claimed.run.path);
    check_free(request);  // only now: a run that started a moment ago holds the lock
    if (!request.out.empty()) claimed.run.resume = !request.resume.empty() && is_run(claimed.run.path);
  }
  for (int number = 1; !claimed.lock; ++number) {
    claimed.run.path = numbered(run_name(request), number);
    claimed.lock = snapshot::RunLock::make_new(claimed.run.path);
  }
  look_at(request, claimed.run);
  if (const snapshot::LockOwner& before = claimed.lock->abandoned(); before.process > 0 && claimed.run.note.empty())
    claimed.run.note = fmt::format("{} was used by process {} on {} since {}, which was killed; if it still runs there, stop it",
                                   claimed.run.path.string(), before.process, before.host, before.since);
  return claimed;
}

RunDecision broadcast_decision(comm::World& world, const std::function<RunDecision()>& decide) {
  std::string text;
  if (world.rank() == 0) {
    const RunDecision decision = decide();
    base::Json json{{"path", decision.run.path.string()}, {"resume", decision.run.resume},
                    {"step", decision.run.step},          {"furthest", decision.run.furthest},
                    {"note", decision.run.note},          {"saved", decision.saved},
                    {"folder", decision.folder.string()}, {"day", decision.day}};
    if (decision.recipe) json["recipe"] = {{"text", decision.recipe->text}, {"name", decision.recipe->name}};
    text = base::compact(json);
  }
  auto bytes = static_cast<int64_t>(text.size());
  world.everyone().broadcast({&bytes, 1, comm::Dtype::i64}, 0, kDecision).wait();
  text.resize(static_cast<size_t>(bytes));
  world.everyone().broadcast({text.data(), bytes, comm::Dtype::u8}, 0, kDecision).wait();
  const base::Json json = base::parse_json(text);
  CAIRN_CHECK(json.is_object(), "rank 0 decided {} bytes that make no sense", bytes);
  RunDecision decision{.run = {json["path"].get<std::string>(), json["resume"].get<bool>(), json["step"].get<int64_t>(),
                               json["furthest"].get<int64_t>(), json["note"].get<std::string>()},
                       .recipe = std::nullopt,
                       .saved = json["saved"].get<bool>(),
                       .folder = json["folder"].get<std::string>(),
                       .day = json["day"].get<std::string>()};
  if (json.contains("recipe")) decision.recipe = {json["recipe"]["text"].get<std::string>(), json["recipe"]["name"].get<std::string>()};
  return decision;
}

}  // namespace cairn::cli
