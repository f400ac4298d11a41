// Which of several streams each draw of a run comes from.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::data {

// Draw d of the run is draw `number` of stream `stream`: a function of the weights, the seed and d, found in a few steps for any d.
// Streams are interleaved evenly (multiples of the golden ratio, modulo 1): among any n draws in a row, each stream has its share to
// within a few draws, and exactly its share in 2^30 of them. Every stream's draws come in order, none is left out.
class Mixture {
 public:
  struct Draw {
    int64_t stream = 0;
    int64_t number = 0;
    bool operator==(const Draw&) const = default;
  };

  Mixture(std::span<const double> weights, uint64_t seed);  // weights above 0, in any unit

  Draw at(int64_t draw) const;
  // Draws of one stream among the first `draws` of the run: the stream's position.
  int64_t drawn(int64_t stream, int64_t draws) const;

 private:
  std::vector<int64_t> borders_;  // of each stream's share of 2^30, and the end
  int64_t phase_ = 0;
};

}  // namespace cairn::data
