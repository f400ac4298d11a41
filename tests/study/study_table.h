// Small labelled tables and worlds of one process, for tests of studies.
#pragma once
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "harness/scratch_folder.h"

namespace cairn::study {

// Rows of `features` normal numbers, a column "group" (row mod 4), a column "right" and the label: the class of the largest of the first
// three features; every `wrong`-th row has the next class instead (0: none).
inline std::filesystem::path write_study_table(const harness::ScratchFolder& folder, const std::string& name, int64_t rows, uint64_t seed,
                                               int64_t wrong = 0, int64_t features = 4, int64_t classes = 3) {
  const base::Random random = base::Random(seed).for_name(name);
  std::string text;
  for (int64_t k = 0; k < features; ++k) text += fmt::format("x{},", k);
  text += "group,right,wrong,label\n";
  for (int64_t i = 0; i < rows; ++i) {
    int64_t label = 0;
    double best = -1e9;
    for (int64_t k = 0; k < features; ++k) {
      const double x = random.for_index(static_cast<uint64_t>(i)).normal(static_cast<uint64_t>(k));
      text += fmt::format("{:.6f},", x);
      if (k < classes && x > best) best = x, label = k;
    }
    const bool bad = wrong > 0 && i % wrong == wrong - 1;
    text += fmt::format("{},{},{},{}\n", i % 4, label, bad ? 1 : 0, bad ? (label + 1) % classes : label);
  }
  return folder.file(name, text);
}

inline comm::LocalOptions quiet_study_ranks() {
  comm::LocalOptions options;
  options.world = [](int) {
    comm::WorldOptions world;
    world.log = base::Log::quiet();
    return world;
  };
  return options;
}

inline void on_study_ranks(int ranks, const std::function<void(comm::World&)>& body) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, quiet_study_ranks()).run(body))
    if (error) std::rethrow_exception(error);
}

// What an act was refused with, or "accepted".
template <typename Act>
std::string answer_to(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace cairn::study
