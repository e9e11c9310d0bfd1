// The goals that the project set itself, as far as one card can show them, and the level that the results reach.
#pragma once

#include <vector>

#include "gpu/results.h"

namespace deepinfer::bench {

// A goal whose rows were not all measured is left out.
std::vector<Goal> goals_of(const Results& results);

}  // namespace deepinfer::bench
