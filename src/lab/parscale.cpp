// `cairn study parscale FILE.csv`: fits the scaling law of parallel streams.
#include "base/files.h"
#include "base/terminal.h"
#include "lab/commands.h"
#include "study/parallel_law.h"

namespace cairn::lab {

int study_parscale(const cli::StudyArguments& a) {
  constexpr int64_t kTableBytesMax = 64 << 20;
  const std::vector<study::LawPoint> points = study::parse_law_points(base::read_file(a.recipe, kTableBytesMax), a.recipe);
  const study::LawFit fit = study::fit_parallel_law(points);
  base::Terminal().line(a.json ? study::to_json(fit, points) : study::to_tables(fit, points));
  return 0;
}

}  // namespace cairn::lab
