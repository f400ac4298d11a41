#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

namespace cairn::data {
struct SampleShape;
}

namespace cairn::train {

// How long the steps took, by the shape of their samples, where a run changes it.
class ShapeTimes {
 public:
  // A step with samples of the data set's own shape is not kept.
  void add(const data::SampleShape& shape, int64_t samples, double seconds, double data_wait_s);
  // A table with one line for each shape, costliest batches last; empty without shapes.
  std::string table() const;

 private:
  struct Times {
    int64_t steps = 0;
    double seconds = 0, data_wait_s = 0;
  };
  std::map<std::tuple<int64_t, int64_t, int64_t>, Times> by_shape_;  // frames, size, samples
};

}  // namespace cairn::train
