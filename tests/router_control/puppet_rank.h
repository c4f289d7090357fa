#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/state_hash.h"
#include "router/control/plan.h"
#include "router/control/scheduler.h"

namespace shoal::router {

// What a rank would do with a plan, without a model. Its KV entry of a position is a fingerprint of
// all tokens up to there, so whatever is read shows whether it was computed from the right tokens.
// Every rule of a valid plan is checked; what breaks one is collected in errors().
//
// The "model" samples NextToken(log, sampling), so Solo() gives what a request must generate
// whatever happens around it.
class PuppetRank {
 public:
  static constexpr uint32_t kNumTokens = 50;  // vocabulary

  explicit PuppetRank(const SchedulerOptions& options);

  StepResult Execute(const StepPlan& plan);
  // A new process: no slots, no KV.
  void Restart();

  uint64_t state_hash() const { return hash_.value(); }
  const std::vector<std::string>& errors() const { return errors_; }
  uint64_t num_computed_tokens() const { return num_computed_tokens_; }
  uint32_t largest_batch() const { return largest_batch_; }  // rows

  // Rows of a request with this seed fail.
  void FailSeed(uint64_t seed, std::string error) { failures_[seed] = std::move(error); }
  void HealSeed(uint64_t seed) { failures_.erase(seed); }

  static uint32_t NextToken(absl::Span<const uint32_t> log, const SamplingParams& sampling);
  static float Logprob(absl::Span<const uint32_t> log, uint32_t token);
  // The tokens that the request still has to generate, the one that ends it included.
  static std::vector<uint32_t> Solo(const Request& request);

 private:
  struct Slot {
    std::vector<uint32_t> log;
    uint32_t num_prompt_tokens = 0;
    uint32_t position = 0;
    std::vector<uint32_t> table;
    SamplingParams sampling;
    bool sampled = false;
    uint32_t last_sample = 0;
  };

  void Start(const SequenceStart& start);
  RowOutput RunRow(const StepRow& row);
  void CheckBatch(const StepPlan& plan);
  void CheckRow(const StepRow& row, const Slot& slot);
  void Write(const Slot& slot, uint32_t position);
  void CheckPrefix(const Slot& slot, uint32_t slot_id);
  uint64_t* Entry(const Slot& slot, uint32_t position);
  void Error(std::string message);

  const SchedulerOptions options_;
  std::map<uint32_t, Slot> slots_;
  std::vector<uint64_t> kv_;  // [block][position in block], 0 = not written
  std::map<uint64_t, std::string> failures_;
  base::StateHash hash_;
  uint64_t step_ = 0;
  uint64_t num_computed_tokens_ = 0;
  uint32_t largest_batch_ = 0;
  std::vector<std::string> errors_;
};

}  // namespace shoal::router
