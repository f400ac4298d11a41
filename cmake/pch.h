// The precompiled header of the rooms that see libtorch: built once, shared by all. Autograd is left out on purpose: a few files
// use it, and with it here every other file would cost two seconds more.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "kernels/aten.h"
