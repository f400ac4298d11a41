#pragma once
#include "study/curves_svg.h"
