#include "task/tensor_rules.h"

#include <algorithm>
#include <optional>

#include <ATen/core/ivalue.h>

#include "kernels/aten.h"

namespace cairn::task {
namespace {

// What the trace knows about a tensor.
struct Origin {
  std::vector<size_t> parameters = {};  // it is these parameters (stacked, if several), rearranged
  std::vector<int64_t> dims = {};       // of those: which of their dims each dim is; -1: none
  std::optional<size_t> product = {};   // it was made by this product, and by elementwise operations since
};

// A product with a parameter.
struct Product {
  std::vector<size_t> parameters;
  bool by_outputs = true;  // else by inputs
};

class Trace final : public mesh::DTensorObserver {
 public:
  Trace(const Params& params, int ranks) : params_(params), ranks_(ranks), rules_(params.size()) {}

  void add(size_t parameter, const at::Tensor& leaf) {
    Origin origin{.parameters = {parameter}};
    for (int64_t i = 0; i < leaf.dim(); ++i) origin.dims.push_back(i);
    put(leaf, std::move(origin));
  }

  void saw(const std::string& operation, const std::vector<c10::IValue>& arguments, const at::Tensor& result) override {
    if (find(result)) return;  // of an operation that was taken apart
    const std::vector<at::Tensor> operands = tensors_of(arguments);
    if (operands.empty()) return;
    if (operation == "mm" || operation == "bmm" || operation == "mv") return saw_product(operands, result);
    if (operation == "index_select" || operation == "embedding") return saw_lookup(operands.front());
    if (operation == "cat") return saw_stack(operands, result);
    if (const Origin* from = find(operands.front()); from && !from->parameters.empty() && from->product == std::nullopt) {
      if (std::optional<Origin> moved = rearranged(*from, operation, arguments, operands, result)) return put(result, std::move(*moved));
    }
    saw_elementwise(operands, result);
  }

  std::map<std::string, TensorRule> rules() const {
    std::map<std::string, TensorRule> all;
    for (size_t i = 0; i < rules_.size(); ++i)
      all[params_.all()[i].name] = rules_[i].value_or(TensorRule{-1, "replicated: no rule is for it"});
    return all;
  }

 private:
  const Origin* find(const at::Tensor& tensor) const {
    const auto found = origins_.find(tensor.unsafeGetTensorImpl());
    return found == origins_.end() ? nullptr : &found->second;
  }
  void put(const at::Tensor& tensor, Origin origin) {
    kept_.push_back(tensor);  // so that its address is not used again
    origins_[tensor.unsafeGetTensorImpl()] = std::move(origin);
  }

  static std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& arguments) {
    std::vector<at::Tensor> all;
    for (const c10::IValue& one : arguments) {
      if (one.isTensor() && one.toTensor().defined()) all.push_back(one.toTensor());
      if (one.isTensorList())
        for (const at::Tensor& item : one.toTensorVector()) all.push_back(item);
    }
    return all;
  }

  // The first rule for a parameter counts.
  void decide(const std::vector<size_t>& parameters, int64_t dim, const char* rule) {
    for (const size_t p : parameters) {
      if (rules_[p]) continue;
      const at::Tensor& whole = params_.all()[p].tensor;
      if (dim >= 0 && whole.size(dim) < ranks_)
        rules_[p] = TensorRule{-1, "replicated: fewer indices than ranks"};
      else
        rules_[p] = TensorRule{dim, rule};
    }
  }

  // Whether the outputs of a product are split.
  bool is_split(const Origin& value) const {
    return value.product && products_[*value.product].by_outputs && rules_[products_[*value.product].parameters.front()]->dim >= 0;
  }

  void saw_product(const std::vector<at::Tensor>& operands, const at::Tensor& result) {
    const Origin *a = find(operands[0]), *b = find(operands[1]);
    const bool right = b && !b->parameters.empty(), left = !right && a && !a->parameters.empty();
    if (!right && !left) {  // of an attention: its result has the heads of the values
      const Origin* of = b && b->product ? b : a;
      if (of) put(result, *of);
      return;
    }
    const Origin &weight = right ? *b : *a, *value = right ? a : b;
    const size_t n = weight.dims.size();
    if (n < 2) return;
    const int64_t inner = weight.dims[right ? n - 2 : n - 1], outer = weight.dims[right ? n - 1 : n - 2];
    const bool second = value && is_split(*value);
    if (inner < 0 || outer < 0) return;
    const std::vector<size_t> parameters = weight.parameters;
    decide(parameters, second ? inner : outer, second ? "R1: second of a pair, by inputs" : "R1: first of a pair, by outputs");
    products_.push_back({parameters, rules_[parameters.front()]->dim == outer});
    put(result, {.product = products_.size() - 1});
  }

  // Parameters that a product reads as one.
  void saw_stack(const std::vector<at::Tensor>& operands, const at::Tensor& result) {
    Origin all;
    for (const at::Tensor& one : operands) {
      const Origin* origin = find(one);
      if (!origin || origin->parameters.empty()) return saw_elementwise(operands, result);
      all.parameters.insert(all.parameters.end(), origin->parameters.begin(), origin->parameters.end());
      all.dims = origin->dims;
    }
    put(result, std::move(all));
  }

  void saw_lookup(const at::Tensor& table) {
    if (const Origin* origin = find(table); origin && !origin->parameters.empty() && !origin->dims.empty() && origin->dims[0] == 0)
      decide(origin->parameters, 0, "table, by rows");
  }

  // A result of elementwise operations has the width of the product among its operands; parameters among them are biases.
  void saw_elementwise(const std::vector<at::Tensor>& operands, const at::Tensor& result) {
    const Origin *made = nullptr, *weights = nullptr;
    for (const at::Tensor& one : operands) {
      const Origin* origin = find(one);
      if (origin && origin->product && (!made || !is_split(*made))) made = origin;
      if (origin && !origin->parameters.empty() && one.sizes() == result.sizes()) weights = origin;
    }
    if (!made) {
      if (weights) put(result, *weights);
      return;
    }
    const Origin from = *made;
    for (const at::Tensor& one : operands) {
      const Origin* origin = find(one);
      if (!origin || origin->parameters.empty() || origin->dims.empty()) continue;
      const int64_t last = origin->dims.back();
      if (is_split(from) && last >= 0) decide(origin->parameters, last, "R1: with what it is added to");
    }
    put(result, from);
  }

  // A parameter after an operation that moves its dims and nothing else.
  static std::optional<Origin> rearranged(const Origin& from, const std::string& operation, const std::vector<c10::IValue>& arguments,
                                          const std::vector<at::Tensor>& operands, const at::Tensor& result) {
    Origin to = from;
    const auto n = static_cast<int64_t>(from.dims.size());
    const auto dim = [&](size_t argument, int64_t dims) {
      const int64_t at = arguments[argument].toInt();
      return at < 0 ? at + dims : at;
    };
    if (operation == "t" && n == 2) {
      std::swap(to.dims[0], to.dims[1]);
    } else if (operation == "transpose.int") {
      std::swap(to.dims[static_cast<size_t>(dim(1, n))], to.dims[static_cast<size_t>(dim(2, n))]);
    } else if (operation == "permute") {
      const std::vector<int64_t> order = arguments[1].toIntVector();
      for (size_t i = 0; i < order.size(); ++i) to.dims[i] = from.dims[static_cast<size_t>(order[i] < 0 ? order[i] + n : order[i])];
    } else if (operation == "unsqueeze") {
      to.dims.insert(to.dims.begin() + dim(1, n + 1), -1);
    } else if (operation == "expand") {
      to.dims.insert(to.dims.begin(), static_cast<size_t>(result.dim() - n), -1);
    } else if (operation != "detach" && operation != "alias" && operation != "clone" && operation != "_to_copy") {
      const bool same = result.dim() == n && operands.size() == 1 && result.sizes() == operands.front().sizes();
      if (!same) return std::nullopt;
    }
    return to;
  }

  const Params& params_;
  int ranks_;
  std::vector<std::optional<TensorRule>> rules_;  // by parameter
  std::vector<Product> products_;
  std::map<const c10::TensorImpl*, Origin> origins_;
  std::vector<at::Tensor> kept_;
};

// While it exists, the trace sees the operations of an axis.
class Observing {
 public:
  Observing(mesh::DTensorAxis& axis, Trace& trace) : axis_(axis) { axis_.observe(&trace); }
  ~Observing() { axis_.observe(nullptr); }
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  mesh::DTensorAxis& axis_;
};

}  // namespace

std::map<std::string, TensorRule> tensor_rules(const std::shared_ptr<mesh::DTensorAxis>& axis, const Params& params,
                                               const std::function<void(const Params&)>& loss) {
  Trace trace(params, axis->size());
  mesh::NamedTensors leaves;
  for (size_t i = 0; i < params.size(); ++i) {
    const mesh::NamedTensor& one = params.all()[i];
    leaves.push_back({one.name, mesh::dtensor_from_local(axis, one.tensor, mesh::Replicate{}, one.tensor.sizes().vec()).requires_grad_()});
    trace.add(i, leaves.back().tensor);
  }
  const Observing observing(*axis, trace);
  loss(leaves);
  return trace.rules();
}

}  // namespace cairn::task
