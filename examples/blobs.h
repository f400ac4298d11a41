// Points around the centres of some classes: something to classify.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/aten.h"
#include "task/mlp.h"
#include "task/task.h"

namespace cairn::examples {

struct Point {
  std::vector<float> x;
  int64_t label = 0;
};

// `distance` is that of the centres from the origin, in units of the deviation around them.
inline std::vector<Point> blobs(const base::Random& centres, const base::Random& points, int64_t n, int64_t classes, int64_t dims,
                                double distance) {
  std::vector<Point> all;
  for (int64_t i = 0; i < n; ++i) {
    Point& point = all.emplace_back(Point{std::vector<float>(static_cast<size_t>(dims)), i % classes});
    const base::Random own = points.for_index(static_cast<uint64_t>(i)), centre = centres.for_index(static_cast<uint64_t>(point.label));
    double norm = 0;
    for (uint64_t d = 0; d < static_cast<uint64_t>(dims); ++d) norm += centre.normal(d) * centre.normal(d);
    for (uint64_t d = 0; d < static_cast<uint64_t>(dims); ++d)
      point.x[d] = static_cast<float>(distance / std::sqrt(norm) * centre.normal(d) + own.normal(d));
  }
  return all;
}

// Cross entropy of a perceptron, and the share of points that it gets right.
inline task::Task<Point> classification() {
  task::Task<Point> task;
  task.collate = [](std::span<const Point> points) {
    std::vector<at::Tensor> x;
    std::vector<int64_t> labels;
    for (const Point& point : points) x.push_back(at::tensor(point.x)), labels.push_back(point.label);
    return task::batch_of({{"x", at::stack(x)}, {"label", at::tensor(labels, at::kLong)}});
  };
  task.loss = [](const base::Random&, const task::Params& params, const task::Batch& batch, bool) {
    return at::cross_entropy_loss(task::run_mlp(params, batch.field("x")), batch.field("label"));
  };
  task.predict = [](const base::Random&, const task::Params& params, const task::Batch& batch) -> task::Outputs {
    return {{"label", task::run_mlp(params, batch.field("x")).argmax(-1)}};
  };
  task.metric = [](std::span<const Point> points, const task::Outputs& outputs) -> task::Metrics {
    double right = 0;
    const int64_t* labels = outputs.at("label").const_data_ptr<int64_t>();
    for (size_t i = 0; i < points.size(); ++i) right += labels[i] == points[i].label;
    return {{"accuracy", right / static_cast<double>(points.size())}};
  };
  return task;
}

}  // namespace cairn::examples
