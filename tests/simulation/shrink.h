#pragma once

#include <functional>

#include "tests/simulation/scenario.h"

namespace shoal::simulation {

// Leaves clients and faults out as long as `fails` still holds; what is left is needed, each one.
// REQUIRES: fails(scenario). Cost: about as many calls as there are clients and faults, squared in
// the worst case.
Scenario Shrink(Scenario scenario, const std::function<bool(const Scenario&)>& fails);

}  // namespace shoal::simulation
