// Grouped products as a loop over the groups; the rows of a group and their place.
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"

namespace cairn::kernels {

struct RowGroups::State {
  at::Tensor counts;
  std::optional<std::vector<int64_t>> host;
};

RowGroups::RowGroups(at::Tensor counts) : state_(std::make_shared<State>(State{std::move(counts), std::nullopt})) {
  CAIRN_CHECK(state_->counts.dim() == 1 && state_->counts.scalar_type() == at::kLong, "counts of groups are int64 [groups]");
}

RowGroups::RowGroups(const std::vector<int64_t>& counts)
    : RowGroups(at::tensor(at::IntArrayRef(counts), at::TensorOptions(at::kLong))) {
  state_->host = counts;
}

int64_t RowGroups::size() const { return state_->counts.size(0); }
const at::Tensor& RowGroups::counts() const { return state_->counts; }

const std::vector<int64_t>& RowGroups::host() const {
  if (!state_->host) {
    const at::Tensor here = state_->counts.to(at::kCPU).contiguous();
    const int64_t* const data = here.const_data_ptr<int64_t>();
    state_->host.emplace(data, data + here.numel());
  }
  return *state_->host;
}

int64_t RowGroups::rows() const { return std::accumulate(host().begin(), host().end(), int64_t{0}); }

namespace reference {
namespace {

// Calls act(group, first row, rows) for each group, also an empty one.
template <class Act>
void for_each_group(const RowGroups& groups, int64_t rows, const Act& act) {
  CAIRN_CHECK(groups.rows() == rows, "{} rows in groups that have {} together", rows, groups.rows());
  int64_t begin = 0;
  for (int64_t g = 0; g < groups.size(); ++g) {
    const int64_t count = groups.host()[static_cast<size_t>(g)];
    act(g, begin, count);
    begin += count;
  }
}

}  // namespace

void grouped_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups) {
  for_each_group(groups, x.size(0), [&](int64_t g, int64_t begin, int64_t count) {
    if (count > 0) kernels::linear(y.narrow(0, begin, count), x.narrow(0, begin, count), w.select(0, g));
  });
}

void grouped_linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, const RowGroups& groups) {
  for_each_group(groups, dy.size(0), [&](int64_t g, int64_t begin, int64_t count) {
    if (count > 0) kernels::linear_backward_input(dx.narrow(0, begin, count), dy.narrow(0, begin, count), w.select(0, g));
  });
}

void grouped_linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                    bool accumulate) {
  for_each_group(groups, dy.size(0), [&](int64_t g, int64_t begin, int64_t count) {
    if (count > 0)
      kernels::linear_backward_weight(dw.select(0, g), dy.narrow(0, begin, count), x.narrow(0, begin, count), accumulate);
    else if (!accumulate)
      dw.select(0, g).zero_();
  });
}

}  // namespace reference
}  // namespace cairn::kernels
