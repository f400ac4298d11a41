// The precompiled header of the rooms that see libtorch: built once, shared by all. Autograd is left out on purpose: a few files
// use it, and with it here every other file would cost two seconds more.
#pragma once
#include "plain_pch.h"

#include "kernels/aten.h"
