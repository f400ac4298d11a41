#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/ledger.h"
#include "comm/link_model.h"
#include "sync/masha/masha.h"

namespace cairn::study {

// f_m(x, y) = x'A_m y + a_m'x + b_m'y + l|x|^2/2 - l|y|^2/2 with A_m = A_0 + 0.3 E_m: a saddle that differs from device to device.
struct Saddle {
  uint64_t seed = 1;
  int64_t side = 50;        // elements of x, and of y
  int64_t per_row = 0;      // nonzero elements in each row of A_0; 0: all
  int64_t per_row_own = 0;  // and of E_m
  double regular = 0.05;    // l
};

// One device's operator. Elements of A_0 and E_m have the variance that gives A_0 a largest singular value of about 2.
std::unique_ptr<sync::VariationalProblem> make_saddle(const Saddle& saddle, int64_t device);
// Zero. Small saddles are solved in double, so that rounding does not hide where compression leads; messages are float all the same.
at::Tensor start_of(const Saddle& saddle);
// The largest Lipschitz constant of the devices' operators, by power iteration.
double lipschitz(const Saddle& saddle, int devices);

// A way to solve it, on devices that are ranks of a virtual network.
struct SaddleRun {
  Saddle saddle;
  int devices = 10;
  double until = 1e-6;  // |F(z)| <= until |F(z0)|
  int64_t iterations_most = 20000;
  comm::LinkModel link = {};
  // Each iteration moves the point; the result is |F| where it stands, or NaN where this iteration does not tell. Collective.
  std::function<std::function<double()>(comm::Group& peers, sync::VariationalProblem& problem, at::Tensor start)> solver = {};
};
struct Solved {
  bool reached = false;
  int64_t iterations = 0;
  double least = 1;         // the smallest |F| / |F(z0)| seen
  double up = 0, down = 0;  // bytes that a device sent to the owners of ranges, and as an owner; the mean over devices
  double seconds = 0;       // virtual
  std::vector<std::pair<double, double>> course;  // bytes that a device has sent by then; |F| / |F(z0)|
  bool same_bits = true;                          // the devices' points
  int64_t control_bytes = 0;
};
Solved solve(const SaddleRun& run);

// The plain ways. Extragradient with whole messages; and with every message of each of its two evaluations cut down to random places.
std::function<std::function<double()>(comm::Group&, sync::VariationalProblem&, at::Tensor)> extragradient(double step);
std::function<std::function<double()>(comm::Group&, sync::VariationalProblem&, at::Tensor)> naive_extragradient(double step, double density,
                                                                                                                uint64_t seed);
std::function<std::function<double()>(comm::Group&, sync::VariationalProblem&, at::Tensor)> masha(const sync::MashaOptions& options,
                                                                                                  uint64_t seed);

// The step that the sheet's constants give.
double masha_step(double factor, double refresh, double lipschitz_constant, double up_density, int devices, double down_density = 1);

}  // namespace cairn::study
