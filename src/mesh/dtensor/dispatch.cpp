// Every ATen operation on DTensors arrives here, below autograd: placements are chosen, operands redistributed, the operation runs on this
// rank's parts, and results become DTensors.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "mesh/dtensor/impl.h"
#include "mesh/dtensor/index_rules.h"
#include "mesh/dtensor/op_call.h"

namespace cairn::mesh {
namespace dispatch {
namespace {

using Linear = IndexRule::Linear;

// Tensors of an argument: itself, or those of a list.
void each_tensor(c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& one : value.toTensorVector()) all.push_back(one.defined() ? change(one) : one);
    value = c10::IValue(c10::List<at::Tensor>(all));
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector())
      all.push_back(one && one->defined() ? std::optional(change(*one)) : one);
    value = c10::IValue(all);
  }
}

std::vector<int64_t> broadcast_shape(const std::vector<PlacedOperand>& operands) {
  size_t dims = 0;
  for (const PlacedOperand& one : operands) dims = std::max(dims, one.shape.size());
  std::vector<int64_t> shape(dims, 1);
  for (const PlacedOperand& one : operands)
    for (size_t i = 0; i < one.shape.size(); ++i)
      if (int64_t& size = shape[dims - one.shape.size() + i]; one.shape[i] != 1) size = one.shape[i];
  return shape;
}

// --- operations with an index rule ---

struct ByIndex {
  IndexRule rule;
  std::vector<size_t> tensors;  // arguments that are operands
  std::vector<int64_t> shape;   // of the result
  bool mean = false;            // a mean over a split dim is a partial sum of weighted means
};

std::vector<size_t> tensor_arguments(const OpCall& call) {
  std::vector<size_t> places;
  for (size_t i = 0; i < call.arguments.size(); ++i)
    if (call.arguments[i].isTensor() && call.tensor(i).defined()) places.push_back(i);
  return places;
}

std::vector<PlacedOperand> operands_of(const OpCall& call, const std::vector<size_t>& places) {
  std::vector<PlacedOperand> operands;
  for (const size_t i : places) operands.push_back(operand_of(call.tensor(i)));
  return operands;
}

ByIndex elementwise(const OpCall& call, Linear linear, int64_t whole = -1) {
  ByIndex by{.rule = {}, .tensors = tensor_arguments(call), .shape = {}};
  const std::vector<PlacedOperand> operands = operands_of(call, by.tensors);
  by.rule = elementwise_rule(operands, linear);
  by.shape = broadcast_shape(operands);
  if (whole >= 0) {  // the argument that names the dim of a softmax
    const int64_t dim = call.arguments[static_cast<size_t>(whole)].toInt(), n = static_cast<int64_t>(by.shape.size());
    if (n > 0) by.rule.whole = by.rule.result[static_cast<size_t>(dim < 0 ? dim + n : dim)];
  }
  return by;
}

ByIndex reduction(const OpCall& call, bool by_dim, bool mean) {
  const PlacedOperand operand = operand_of(call.tensor(0));
  std::vector<int64_t> dims;
  if (by_dim && !call.arguments[1].isNone()) dims = call.arguments[1].toIntVector();
  const bool keep = by_dim && call.arguments[2].toBool();
  ByIndex by{.rule = reduction_rule(operand, dims, keep), .tensors = {0}, .shape = {}, .mean = mean};
  for (int64_t& dim : dims) dim = dim < 0 ? dim + call.tensor(0).dim() : dim;
  for (size_t i = 0; i < operand.shape.size(); ++i) {
    const bool reduced = dims.empty() || std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) != dims.end();
    if (!reduced || keep) by.shape.push_back(reduced ? 1 : operand.shape[i]);
  }
  return by;
}

ByIndex product(const OpCall& call, const char* a, const char* b, const char* result) {
  ByIndex by{.rule = {.operands = {a, b}, .result = result, .linear = Linear::each}, .tensors = {0, 1}, .shape = {}};
  for (const char subscript : by.rule.result) {
    const size_t in_first = by.rule.operands[0].find(subscript);
    by.shape.push_back(in_first != std::string::npos ? call.tensor(0).size(static_cast<int64_t>(in_first))
                                                     : call.tensor(1).size(static_cast<int64_t>(by.rule.operands[1].find(subscript))));
  }
  return by;
}

using IndexRules = std::map<std::string, std::function<ByIndex(const OpCall&)>>;

const IndexRules& index_rules() {
  static const IndexRules rules = [] {
    IndexRules all;
    for (const char* name : {"abs",
                             "exp",
                             "log",
                             "sqrt",
                             "rsqrt",
                             "reciprocal",
                             "tanh",
                             "relu",
                             "sigmoid",
                             "silu",
                             "gelu",
                             "sin",
                             "cos",
                             "sign",
                             "erf",
                             "threshold_backward",
                             "tanh_backward",
                             "sigmoid_backward",
                             "silu_backward",
                             "gelu_backward",
                             "pow.Tensor_Scalar",
                             "pow.Tensor_Tensor",
                             "clamp",
                             "clamp_min",
                             "clamp_max",
                             "minimum",
                             "maximum",
                             "where.self",
                             "masked_fill.Scalar",
                             "add.Scalar",
                             "sub.Scalar",
                             "rsub.Scalar",
                             "eq.Scalar",
                             "ne.Scalar",
                             "lt.Scalar",
                             "le.Scalar",
                             "gt.Scalar",
                             "ge.Scalar",
                             "eq.Tensor",
                             "ne.Tensor",
                             "lt.Tensor",
                             "le.Tensor",
                             "gt.Tensor",
                             "ge.Tensor",
                             "logical_and",
                             "logical_or",
                             "logical_not",
                             "bitwise_not",
                             "isfinite",
                             "isnan"})
      all[name] = [](const OpCall& call) { return elementwise(call, Linear::no); };
    for (const char* name : {"add.Tensor", "sub.Tensor", "neg", "clone", "_to_copy", "mul.Scalar", "div.Scalar", "detach", "alias"})
      all[name] = [](const OpCall& call) { return elementwise(call, Linear::jointly); };
    all["mul.Tensor"] = [](const OpCall& call) { return elementwise(call, Linear::each); };
    all["div.Tensor"] = [](const OpCall& call) { return elementwise(call, Linear::first); };
    all["_softmax"] = all["_log_softmax"] = [](const OpCall& call) { return elementwise(call, Linear::no, 1); };
    all["_softmax_backward_data"] = all["_log_softmax_backward_data"] = [](const OpCall& call) { return elementwise(call, Linear::no, 2); };
    all["sum.dim_IntList"] = [](const OpCall& call) { return reduction(call, true, false); };
    all["mean.dim"] = [](const OpCall& call) { return reduction(call, true, true); };
    all["sum"] = [](const OpCall& call) { return reduction(call, false, false); };
    all["mean"] = [](const OpCall& call) { return reduction(call, false, true); };
    all["mm"] = [](const OpCall& call) { return product(call, "mk", "kn", "mn"); };
    all["bmm"] = [](const OpCall& call) { return product(call, "bmk", "bkn", "bmn"); };
    all["mv"] = [](const OpCall& call) { return product(call, "mk", "k", "m"); };
    all["dot"] = [](const OpCall& call) { return product(call, "k", "k", ""); };
    return all;
  }();
  return rules;
}

// A mean of this rank's part as its term of the mean over all ranks.
at::Tensor weighted_mean(const at::Tensor& local_mean, const at::Tensor& local, const at::Tensor& whole) {
  if (local.numel() == 0) return at::zeros_like(local_mean);
  return local_mean * (static_cast<double>(local.numel()) / static_cast<double>(whole.numel()));
}

at::Tensor run_by_index(const OpCall& call, const ByIndex& by) {
  const PlacementChoice choice = choose_placements(by.rule, operands_of(call, by.tensors), call.ranks());
  Values arguments = call.arguments;
  for (size_t i = 0; i < by.tensors.size(); ++i) arguments[by.tensors[i]] = brought(call, call.tensor(by.tensors[i]), choice.operands[i]);
  at::Tensor local = run_for_tensor(call, arguments);
  const bool was_partial = is_partial(choice.operands.front());
  if (by.mean && is_partial(choice.result) && !was_partial) local = weighted_mean(local, arguments[0].toTensor(), call.tensor(0));
  return made(call, local, choice.result, by.shape);
}

// --- everything else ---

bool writes(const OpCall& call, size_t argument) {
  const c10::AliasInfo* alias = call.op.schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

// Gathers all operands and runs the operation whole on every rank. What it writes in place is replicated from then on.
Values run_whole(const OpCall& call) {
  Values arguments = call.arguments;
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // DTensors, and their whole value
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool written_to = writes(call, i);
    each_tensor(arguments[i], [&](const at::Tensor& one) {
      at::Tensor whole = brought(call, one, Replicate{});
      if (written_to && dtensor_impl(one)) {
        whole = whole.clone();  // what shares its memory does not change
        written.emplace_back(one, whole);
      }
      return whole;
    });
  }
  Values results = run(call, arguments);
  for (const auto& [tensor, whole] : written) dtensor_impl(tensor)->replace(whole, Replicate{});
  for (c10::IValue& result : results)
    each_tensor(result, [&](const at::Tensor& one) {
      for (const auto& [tensor, whole] : written)
        if (one.is_same(whole)) return tensor;
      for (const c10::IValue& argument : arguments)  // a plain tensor that was written to
        if (argument.isTensor() && one.is_same(argument.toTensor()) && !written.empty()) return one;
      return made(call, one, Replicate{}, one.sizes().vec());
    });
  return results;
}

Values dispatched(const OpCall& call) {
  bool in_place = false;
  for (size_t i = 0; i < call.arguments.size(); ++i) in_place = in_place || writes(call, i);
  if (in_place) return run_whole(call);
  if (const auto rule = index_rules().find(call.name); rule != index_rules().end()) return {run_by_index(call, rule->second(call))};
  if (const std::optional<at::Tensor> result = rearranged(call)) return {*result};
  return run_whole(call);
}

void dispatch_dtensor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const size_t count = op.schema().arguments().size();
  OpCall call{.op = op, .name = op.schema().name(), .arguments = Values(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end())};
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (call.name.starts_with("aten::")) call.name = call.name.substr(6);
  if (!op.schema().overload_name().empty()) call.name += "." + op.schema().overload_name();
  for (c10::IValue& argument : call.arguments)
    each_tensor(argument, [&](const at::Tensor& one) {
      if (const DTensorImpl* impl = dtensor_impl(one); impl && !call.axis) call.axis = impl->axis();
      return one;
    });
  CAIRN_CHECK(call.axis, "{} has no DTensor among its operands", call.name);
  Values results = dispatched(call);
  if (DTensorObserver* observer = call.axis->observer(); observer && !results.empty() && results.front().isTensor())
    observer->saw(call.name, call.arguments, results.front().toTensor());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace
}  // namespace dispatch

void register_dtensor_dispatch() {
  static const auto registered = [] {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", std::make_optional(kDTensorKey), __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch::dispatch_dtensor>());
    return library;
  }();
  static_cast<void>(registered);
}

}  // namespace cairn::mesh
