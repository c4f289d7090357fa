#pragma once

#include <cstdint>
#include <vector>

namespace shoal::graph {

// A block of memory that is needed from instruction `first` to instruction `last`, both included.
struct BufferRequest {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct BufferPlan {
  std::vector<int64_t> offsets;  // of the requests, multiples of 64
  int64_t bytes = 0;             // peak
};

// Places blocks so that those that are needed at the same time do not overlap: the largest first,
// each at the lowest offset that is free over its whole life. O(n^2) in the number of requests.
BufferPlan PlanBuffers(const std::vector<BufferRequest>& requests);

}  // namespace shoal::graph
