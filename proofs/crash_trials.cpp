#include "proofs/crash_trials.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/files/recording_disk.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "snapshot/snapshot.h"
#include "train/state/part_save.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStatesOfASave = 100;

// Parameters of odd sizes, the second split by columns. Every value says which step it belongs to.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
};
const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter> all{{"embed", {37, 6}}, {"fused", {5, 18}}, {"norm", {7}}, {"scale", {}}};
  return all;
}

at::Tensor values(const Parameter& of, int64_t step, int kind) {
  const at::Tensor all = at::arange(c10::multiply_integers(of.shape), at::kFloat);
  return (all * 0.001 + static_cast<double>(1000 * step + 100 * kind)).view(of.shape);
}

// What a rank of `ranks` has of a parameter: columns of the second, a flat range of the others; each cut at random.
std::vector<mesh::Fragment> fragments(const Parameter& of, int ranks, std::mt19937_64& random) {
  std::vector<mesh::Fragment> all;
  const bool columns = of.name == "fused";
  const int64_t size = columns ? of.shape[1] : c10::multiply_integers(of.shape);
  std::vector<int64_t> borders{0, size};
  for (int i = 1; i < ranks; ++i) borders.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1)));
  std::sort(borders.begin(), borders.end());
  for (size_t rank = 0; rank + 1 < borders.size(); ++rank) {
    mesh::Fragment one;
    for (const int64_t extent : of.shape) one.local_shard.dims.push_back({{0, extent}});
    one.elements = {borders[rank], borders[rank + 1]};
    if (columns) {
      one.local_shard.dims[1] = {one.elements};
      one.elements = {0, of.shape[0] * one.elements.length()};
    }
    all.push_back(std::move(one));
  }
  return all;
}

at::Tensor elements_of(const at::Tensor& whole, const mesh::Fragment& fragment) {
  return mesh::cut_out(whole, fragment.local_shard).reshape({-1}).narrow(0, fragment.elements.begin, fragment.elements.length()).clone();
}

// `mark`: the values are those of this step.
std::vector<train::RankSnapshot> parts_of(int64_t step, int64_t mark, int ranks, std::mt19937_64& random) {
  std::vector<train::RankSnapshot> all(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    train::RankSnapshot& one = all[static_cast<size_t>(rank)];
    one.part.rank = rank;
    one.part.writes_headers = rank == 0;
    for (const Parameter& of : parameters())
      one.part.shared["model"].tensors.push_back({.name = of.name, .dtype = snapshot::SafetensorsDtype::f32, .shape = of.shape});
  }
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& of = parameters()[i];
    const std::vector<mesh::Fragment> weights = fragments(of, ranks, random), moments = fragments(of, ranks, random);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (weights[rank].elements.length() > 0)
        all[rank].part.shared["model"].parts.push_back({i, weights[rank], elements_of(values(of, mark, 0), weights[rank])});
      if (moments[rank].elements.length() > 0)
        all[rank].part.own.push_back({"optimizer", of.name, of.shape, moments[rank], elements_of(values(of, mark, 1), moments[rank])});
    }
  }
  all[0].rest = snapshot::Contents{.step = step,
                                   .tensors = {{"sync", {{"round", at::full({3}, static_cast<double>(mark))}}}},
                                   .texts = {{"training/state.json", fmt::format("{{\"step\": {}}}", mark)}},
                                   .version = "1"};
  return all;
}

// Ranks write in a random order.
void save(const fs::path& run, int64_t step, int64_t mark, int ranks, int64_t keep, std::mt19937_64& random, const base::Disk& disk) {
  std::vector<train::RankSnapshot> parts = parts_of(step, mark, ranks, random);
  auto staging = std::make_unique<snapshot::StagingFolder>(run.string(), step, 0, disk);
  const std::string folder = staging->path().string();
  std::vector<std::unique_ptr<train::PartSave>> saves;
  for (int rank = 0; rank < ranks; ++rank)
    saves.push_back(std::make_unique<train::PartSave>(train::PartSave::Parts{.run_dir = run.string(),
                                                                             .folder = folder,
                                                                             .rank = rank,
                                                                             .ranks = ranks,
                                                                             .keep = keep,
                                                                             .staging = rank == 0 ? std::move(staging) : nullptr,
                                                                             .saved = std::move(parts[static_cast<size_t>(rank)]),
                                                                             .disk = disk}));
  std::vector<size_t> order(saves.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) saves[i]->write();
  saves[0]->commit();
}

struct Saved {
  int64_t step = 0, mark = 0;
  std::string name;
};

// Which snapshot a reader finds, every value of it compared; or what is wrong.
std::string found_in(const fs::path& run, const std::vector<Saved>& expected) {
  base::Log quiet = base::Log::quiet();
  try {
    const std::optional<snapshot::OpenSnapshot> found = snapshot::open_latest(run.string(), quiet);
    if (!found) return "none";
    for (const Saved& one : expected) {
      bool all = found->step() == one.step && found->text("training/state.json") == fmt::format("{{\"step\": {}}}", one.mark) &&
                 at::equal(found->tensor("sync", "round"), at::full({3}, static_cast<double>(one.mark)));
      for (const Parameter& of : parameters())
        all = all && at::equal(found->tensor("model", of.name), values(of, one.mark, 0)) &&
              at::equal(found->tensor("optimizer", of.name), values(of, one.mark, 1));
      if (all) return one.name;
    }
    return fmt::format("a mixture in {}", found->path());
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

CrashOutcome try_crashes(const CrashTrials& trials) {
  CrashOutcome outcome;
  std::mt19937_64 random(trials.seed);
  while (outcome.states < trials.states) {
    const fs::path run = trials.scratch / fmt::format("save-{}", outcome.saves);
    fs::create_directories(run);
    base::write_atomically(run / "recipe.toml", "");
    const int ranks = 1 + static_cast<int>(random() % 4);
    const auto keep = static_cast<int64_t>(1 + random() % 2);
    save(run, 10, 10, ranks, keep, random, base::real_disk());
    const base::RecordingDisk disk(run, trials.disk_lies);
    // Not always as many ranks as saved the old one; sometimes the same step again.
    const int64_t step = random() % 4 == 0 ? 10 : 20;
    save(run, step, 20, 1 + static_cast<int>(random() % 4), keep, random, disk);
    ++outcome.saves;
    outcome.changes += static_cast<int64_t>(disk.changes());
    for (int64_t i = 0; i < kStatesOfASave && outcome.states < trials.states; ++i, ++outcome.states) {
      const size_t done = i == 0 ? disk.changes() : random() % (disk.changes() + 1);
      const auto dies = random() % 4 == 0 ? base::RecordingDisk::Dies::process : base::RecordingDisk::Dies::machine;
      const fs::path left = trials.scratch / "left";
      fs::remove_all(left);
      fs::create_directories(left);
      disk.after_crash(
          done, dies, [&] { return random(); }, left);
      const std::string found = found_in(left, {{10, 10, "old"}, {step, 20, "new"}});
      outcome.old_found += found == "old";
      outcome.new_found += found == "new";
      const bool right = found == "new" || (found == "old" && done < disk.changes());
      if (!right) outcome.wrong.push_back(fmt::format("save {}, after {} of {} changes: {}", outcome.saves, done, disk.changes(), found));
    }
    fs::remove_all(run);
  }
  return outcome;
}

}  // namespace cairn::study
