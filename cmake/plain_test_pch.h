// The precompiled header of the tests without libtorch.
#pragma once
#include <gtest/gtest.h>

#include "plain_pch.h"
