#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::v1 {
class ProcessTrace;
class TraceStepsResponse;
}  // namespace shoal::v1

namespace shoal::cli {

// The Trace Event Format of Chrome and Perfetto, a JSON object: one process each for the router and
// the ranks, "X" events in microseconds since the first. Plans that are with the ranks at the same
// time are on threads of their own, so that events of one thread nest. A counter says how large the
// batches are.
std::string ToChromeTrace(const v1::TraceStepsResponse& traces);

// What a process spent a step on.
struct TraceLine {
  std::string name;      // of spans: layers are one, "layer 3 MatMul" is MatMul
  double calls = 0;      // a step, on average
  double median_us = 0;  // over steps, of the sum of a step's calls
  double share = 0;      // of all steps' time; of the whole step's line: 1
};

// Of a step, medians over the steps whose size the trace knows.
struct TracedBatch {
  uint32_t num_sequences = 0;
  uint32_t num_tokens = 0;
};
TracedBatch MedianBatch(const v1::ProcessTrace& trace);

// The whole step first, then by share; last "between steps", from the end of a step to the begin of
// the next. A process without a span named "step", the router, has shares of the spans' own sum.
std::vector<TraceLine> Summarize(const v1::ProcessTrace& trace);

}  // namespace shoal::cli
