// The precompiled header of the tests that see libtorch.
#pragma once
#include <gtest/gtest.h>

#include "pch.h"
