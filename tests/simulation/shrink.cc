#include "tests/simulation/shrink.h"

#include <algorithm>
#include <cstddef>

namespace shoal::simulation {
namespace {

size_t SizeOf(const Scenario& scenario) { return scenario.clients.size() + scenario.faults.size(); }

// Without the parts [begin, end) of faults, then clients.
Scenario Without(const Scenario& scenario, size_t begin, size_t end) {
  Scenario rest = scenario;
  const size_t num_faults = scenario.faults.size();
  rest.faults.clear();
  rest.clients.clear();
  for (size_t i = 0; i < SizeOf(scenario); ++i) {
    if (i >= begin && i < end) continue;
    if (i < num_faults) {
      rest.faults.push_back(scenario.faults[i]);
    } else {
      rest.clients.push_back(scenario.clients[i - num_faults]);
    }
  }
  return rest;
}

}  // namespace

Scenario Shrink(Scenario scenario, const std::function<bool(const Scenario&)>& fails) {
  size_t chunk = std::max<size_t>(SizeOf(scenario) / 2, 1);
  while (true) {
    bool has_shrunk = false;
    for (size_t begin = 0; begin < SizeOf(scenario);) {
      Scenario rest = Without(scenario, begin, begin + chunk);
      if (fails(rest)) {
        scenario = std::move(rest);
        has_shrunk = true;
      } else {
        begin += chunk;
      }
    }
    if (chunk == 1 && !has_shrunk) return scenario;
    if (!has_shrunk) chunk = std::max<size_t>(chunk / 2, 1);
  }
}

}  // namespace shoal::simulation
