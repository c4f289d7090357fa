#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "router/control/block_table.h"
#include "router/control/request.h"

namespace shoal::router {

// A place in the total order of requests; smaller goes first. Constant while a sequence runs.
struct OrderKey {
  int rank = 1;  // 0 = preempted so often that it is not preempted again
  // Which aging interval the request arrived in, less its priority: a priority is worth one
  // interval of waiting, so nobody waits for ever.
  int64_t level = 0;
  absl::Time deadline;
  absl::Time arrival;
  uint64_t number = 0;  // order of submission, unique

  friend bool operator<(const OrderKey& a, const OrderKey& b) {
    return std::tie(a.rank, a.level, a.deadline, a.arrival, a.number) <
           std::tie(b.rank, b.level, b.deadline, b.arrival, b.number);
  }
};

// A request inside the scheduler: its token log, its progress, its blocks. Owned by the Scheduler.
struct Sequence {
  static constexpr uint32_t kNoSlot = ~uint32_t{0};
  enum class State {
    kWaiting,
    kRunning,  // has a slot and blocks
    kEnded,    // its terminal event is out; still holds them because plans are with the ranks
  };

  Sequence(Request accepted, BlockPool* pool)
      : request(std::move(accepted)), table(pool, request.cache_salt) {}

  // The token log: the prompt and all that was generated. The last sampled token has no KV yet.
  std::vector<uint32_t>& log() { return request.token_ids; }
  const std::vector<uint32_t>& log() const { return request.token_ids; }
  uint32_t log_size() const { return static_cast<uint32_t>(request.token_ids.size()); }
  uint32_t num_generated() const { return log_size() - request.num_prompt_tokens; }
  // The most tokens that ever need KV: the last one generated is not fed back.
  uint32_t max_kv_tokens() const {
    return request.num_prompt_tokens + std::max(request.max_tokens, 1u) - 1;
  }
  uint32_t max_prompt_logprobs() const {
    return request.sampling.prompt_logprobs ? request.num_prompt_tokens - 1 : 0;
  }
  // A prefix beyond this must be computed even if the cache has it.
  uint32_t max_cached_tokens() const {
    return num_prompt_logprobs < max_prompt_logprobs() ? num_prompt_logprobs : log_size() - 1;
  }
  bool is_suspect() const { return num_losses >= 2; }

  // The log once all that is planned is done: its last token may not be known yet.
  uint32_t planned_log_size() const { return is_decoding ? num_planned + 1 : log_size(); }
  // Whether one more row can follow those that are planned. A sequence whose last token by
  // max_tokens is on its way has none; one that meets a stop token was planned once too often.
  bool has_more_to_plan() const {
    return is_decoding ? num_planned < max_kv_tokens() : num_planned < log_size();
  }

  Request request;
  OrderKey key;
  State state = State::kWaiting;
  BlockTable table;
  uint32_t slot = kNoSlot;
  uint32_t num_computed = 0;         // tokens whose KV the ranks have, as far as they answered
  uint32_t num_planned = 0;          // and those of the rows that are with the ranks
  uint32_t num_in_flight = 0;        // plans with the ranks that have a row of it
  bool is_decoding = false;          // the last planned row samples, or the last one computed did
  bool has_failed = false;           // a row of it failed: what later ones compute is worthless
  uint32_t num_prompt_logprobs = 0;  // already delivered
  uint32_t num_preemptions = 0;

  // While waiting: the block that another sequence computes for both.
  std::optional<PrefixMatch::Pending> waits_for;
  // While computing a prefix that sequences ahead of it wait for: the first of those.
  std::optional<OrderKey> inherited_key;
  const OrderKey& prefill_key() const {
    return inherited_key.has_value() && *inherited_key < key ? *inherited_key : key;
  }

  uint32_t num_losses = 0;   // successive losses of the group that had it in the running plan
  uint32_t trial_until = 0;  // as a suspect: cleared when this many tokens are computed

  uint32_t num_cached_tokens = 0;
  absl::Time admitted = absl::InfiniteFuture();
  absl::Time first_token = absl::InfiniteFuture();
};

}  // namespace shoal::router
