// Which of several streams each draw of a run comes from.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::data {

// Draw d of the run is draw `number` of stream `stream`. It is a pure function of weights, seed and d, computed in O(log) time for any d.
// Streams are interleaved evenly: among any n consecutive draws, each stream has its share to within a few draws, and exactly its share in
// 2^30 of them. The draws of each stream are consecutive: none is left out.
class Mixture {
 public:
  struct Draw {
    int64_t stream = 0;
    int64_t number = 0;
    bool operator==(const Draw&) const = default;
  };

  Mixture(std::span<const double> weights, uint64_t seed);  // weights above 0, in any unit

  Draw at(int64_t draw) const;
  // The draws of one stream among the first `draws` of the run: the stream's position.
  int64_t drawn(int64_t stream, int64_t draws) const;

 private:
  std::vector<int64_t> borders_;  // stream i owns places borders_[i] .. borders_[i + 1] - 1 of 2^30
  int64_t phase_ = 0;
};

}  // namespace cairn::data
