#include "proofs/data_pictures.h"

#include <fmt/format.h>

#include "data/samples/multigrid_schedule.h"
#include "study/curves_svg.h"

namespace cairn::study {

void draw_multigrid_schedule(const ProofOptions& options) {
  if (options.pictures.empty()) return;
  constexpr double kFullBatch = 16;
  data::GridFacts facts{.frames = 16, .size = 32, .epochs = 30};
  facts.options.stages = {12, 22};
  CurvesPicture picture{.title = "Clips of 16 frames of 32 x 32, 30 epochs, stages at 12 and 22",
                        .across = "epochs",
                        .up = "frames, size, clips of a batch",
                        .logarithmic_up = true,
                        .curves = {{"frames of a clip", curve_colour(0), {}},
                                   {"size of the long cycle: height and width of a clip", curve_colour(1), {}},
                                   {"clips of a batch, mean of the short cycle", curve_colour(2), {}}}};
  for (const data::GridPhase& phase : data::multigrid_schedule(facts)) {
    const double values[] = {static_cast<double>(phase.base.frames), static_cast<double>(phase.base.size),
                             kFullBatch * phase.mean_batch_factor()};
    for (size_t i = 0; i < picture.curves.size(); ++i)
      for (const int64_t epoch : {phase.first_epoch, phase.end_epoch})
        picture.curves[i].points.emplace_back(static_cast<double>(epoch), values[i]);
  }
  write_curves(options.pictures, "multigrid-schedule", picture);
}

void draw_retrieval_cells(const ProofOptions& options, const std::vector<RetrievalCells>& of_seeds) {
  static constexpr std::array kNames{"random batches, pairs alone", "random batches, with the in-batch loss",
                                     "topical batches, pairs alone", "topical batches, with the in-batch loss"};
  CurvesPicture picture{.title = "Ranking of held-out queries", .across = "inner seeds", .up = "MRR@10"};
  for (size_t cell = 0; cell < kNames.size(); ++cell) {
    Curve& curve = picture.curves.emplace_back(Curve{kNames[cell], curve_colour(cell), {}});
    for (size_t seed = 0; seed < of_seeds.size(); ++seed) curve.points.emplace_back(static_cast<double>(seed), of_seeds[seed][cell]);
  }
  write_curves(options.pictures, "tas-balanced-mrr", picture);
}

}  // namespace cairn::study
