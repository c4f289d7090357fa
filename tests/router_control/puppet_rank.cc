#include "tests/router_control/puppet_rank.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace shoal::router {
namespace {

uint64_t Fingerprint(absl::Span<const uint32_t> tokens) {
  uint64_t hash = 1;
  for (uint32_t token : tokens) hash = base::CombineHash(hash, token);
  return hash;
}

}  // namespace

PuppetRank::PuppetRank(const SchedulerOptions& options)
    : options_(options), kv_(size_t{options.num_blocks} * options.block_size) {}

void PuppetRank::Restart() {
  slots_.clear();
  std::fill(kv_.begin(), kv_.end(), 0);
  hash_.Clear();
  step_ = 0;
}

void PuppetRank::Error(std::string message) {
  errors_.push_back(absl::StrCat("step ", step_, ": ", message));
}

uint32_t PuppetRank::NextToken(absl::Span<const uint32_t> log, const SamplingParams& sampling) {
  const uint64_t key = base::CombineHash(sampling.seed, sampling.choice);
  return base::CombineHash(key, Fingerprint(log)) % kNumTokens;
}

float PuppetRank::Logprob(absl::Span<const uint32_t> log, uint32_t token) {
  return -static_cast<float>(base::CombineHash(Fingerprint(log), token) % 1000) / 100;
}

std::vector<uint32_t> PuppetRank::Solo(const Request& request) {
  std::vector<uint32_t> log = request.token_ids;
  const size_t num_prompt =
      request.num_prompt_tokens > 0 ? request.num_prompt_tokens : request.token_ids.size();
  while (log.size() < num_prompt + request.max_tokens) {
    const uint32_t token = NextToken(log, request.sampling);
    log.push_back(token);
    const auto has = [token](const std::vector<uint32_t>& ids) {
      return std::find(ids.begin(), ids.end(), token) != ids.end();
    };
    const bool ends = (has(request.eos_ids) && !request.ignore_eos) || has(request.stop_token_ids);
    if (ends && log.size() - num_prompt > request.sampling.min_tokens) break;
  }
  return {log.begin() + request.token_ids.size(), log.end()};
}

uint64_t* PuppetRank::Entry(const Slot& slot, uint32_t position) {
  const uint32_t block = slot.table[position / options_.block_size];
  return &kv_[size_t{block} * options_.block_size + position % options_.block_size];
}

StepResult PuppetRank::Execute(const StepPlan& plan) {
  if (step_ != 0 && plan.step != step_ + 1)
    Error(absl::StrCat("follows ", step_, " but is ", plan.step));
  step_ = plan.step;
  for (uint32_t slot : plan.ended_slots) {
    if (slots_.erase(slot) == 0) Error(absl::StrCat("slot ", slot, " ends and is not live"));
    hash_.OnEnd(slot);
  }
  for (const SequenceStart& start : plan.starts) Start(start);
  CheckBatch(plan);
  StepResult result{.step = plan.step, .outputs = {}};
  for (const StepRow& row : plan.rows) result.outputs.push_back(RunRow(row));
  if (hash_.value() != plan.state_hash) Error("the state hash differs");
  return result;
}

void PuppetRank::Start(const SequenceStart& start) {
  if (slots_.contains(start.slot)) Error(absl::StrCat("slot ", start.slot, " starts twice"));
  if (start.slot >= options_.max_batch_seqs) Error(absl::StrCat("slot ", start.slot, " is large"));
  if (start.num_cached_tokens >= start.token_ids.size()) Error("a start has nothing to compute");
  if (start.num_cached_tokens % options_.block_size != 0) Error("a cached block is not full");
  if (start.block_ids.size() * options_.block_size < start.token_ids.size()) Error("small table");
  slots_[start.slot] = {.log = start.token_ids,
                        .num_prompt_tokens = start.num_prompt_tokens,
                        .position = start.num_cached_tokens,
                        .table = start.block_ids,
                        .sampling = start.sampling};
  hash_.OnStart(start.slot, start.num_cached_tokens, start.block_ids);
}

void PuppetRank::CheckBatch(const StepPlan& plan) {
  uint64_t num_tokens = 0;
  std::set<uint32_t> slots;
  for (const StepRow& row : plan.rows) {
    num_tokens += row.num_tokens;
    if (!slots.insert(row.slot).second) Error(absl::StrCat("slot ", row.slot, " has two rows"));
  }
  if (num_tokens > options_.max_batch_tokens) Error(absl::StrCat(num_tokens, " tokens"));
  if (plan.rows.size() > options_.max_batch_seqs) Error(absl::StrCat(plan.rows.size(), " rows"));
  if (plan.rows.empty()) Error("no rows");
  largest_batch_ = std::max(largest_batch_, static_cast<uint32_t>(plan.rows.size()));
}

void PuppetRank::CheckRow(const StepRow& row, const Slot& slot) {
  const uint32_t end = slot.position + row.num_tokens;
  const bool continues = row.source != StepRow::Source::kLog;
  const bool names_token = row.source == StepRow::Source::kToken;
  if (continues && names_token != (options_.num_stages > 1))
    Error("a continuation of another kind");
  if (names_token && row.token_id != slot.last_sample) {
    Error(absl::StrCat("slot ", row.slot, " is told token ", row.token_id, ", not ",
                       slot.last_sample));
  }
  if (row.num_tokens == 0) Error("an empty row");
  if (end > slot.log.size()) Error(absl::StrCat("slot ", row.slot, " runs past its log"));
  if (continues != slot.sampled) Error(absl::StrCat("slot ", row.slot, " has the wrong source"));
  if (continues && (row.num_tokens != 1 || end != slot.log.size())) Error("a long continuation");
  if (!continues && options_.max_prefill_chunk > 0 && row.num_tokens > options_.max_prefill_chunk) {
    Error(absl::StrCat("a chunk of ", row.num_tokens));
  }
  if (end > slot.table.size() * options_.block_size) Error("the table is too short");
  if (std::set<uint32_t>(slot.table.begin(), slot.table.end()).size() != slot.table.size()) {
    Error(absl::StrCat("slot ", row.slot, " has a block twice"));
  }
  for (uint32_t block : slot.table) {
    if (block >= options_.num_blocks) Error(absl::StrCat("block ", block, " is out of range"));
  }
}

// Everything before the slot's position is read: it must be this log's.
void PuppetRank::CheckPrefix(const Slot& slot, uint32_t slot_id) {
  uint64_t hash = 1;
  for (uint32_t i = 0; i < slot.position; ++i) {
    hash = base::CombineHash(hash, slot.log[i]);
    const uint64_t found = *Entry(slot, i);
    if (found != hash) {
      Error(absl::StrCat("slot ", slot_id, " reads position ", i, " from block ",
                         slot.table[i / options_.block_size],
                         found == 0 ? ", never written" : ", written from other tokens"));
      return;
    }
  }
}

void PuppetRank::Write(const Slot& slot, uint32_t position) {
  const uint32_t block = slot.table[position / options_.block_size];
  for (const auto& [other_id, other] : slots_) {
    if (&other == &slot) continue;
    if (std::find(other.table.begin(), other.table.end(), block) != other.table.end()) {
      Error(absl::StrCat("block ", block, " is written while slot ", other_id, " has it too"));
    }
  }
  *Entry(slot, position) = Fingerprint(absl::MakeConstSpan(slot.log).subspan(0, position + 1));
  ++num_computed_tokens_;
}

RowOutput PuppetRank::RunRow(const StepRow& row) {
  RowOutput output{
      .slot = row.slot, .token_ids = {}, .logprobs = {}, .prompt_logprobs = {}, .error = {}};
  const auto it = slots_.find(row.slot);
  if (it == slots_.end()) {
    Error(absl::StrCat("slot ", row.slot, " is not live"));
    return output;
  }
  Slot& slot = it->second;
  slot.table.insert(slot.table.end(), row.new_block_ids.begin(), row.new_block_ids.end());
  if (row.source == StepRow::Source::kToken) slot.log.push_back(row.token_id);
  CheckRow(row, slot);
  CheckPrefix(slot, row.slot);
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    const uint32_t position = slot.position + i;
    Write(slot, position);
    if (row.outputs == StepRow::Outputs::kAll && position + 1 < slot.num_prompt_tokens) {
      const auto before = absl::MakeConstSpan(slot.log).subspan(0, position + 1);
      const uint32_t next = slot.log[position + 1];
      output.prompt_logprobs.push_back({.chosen = {next, Logprob(before, next)}, .top = {}});
    }
  }
  slot.position += row.num_tokens;
  hash_.OnBlocks(row.slot, row.new_block_ids);
  hash_.OnAdvance(row.slot, row.num_tokens);
  if (slot.position == slot.log.size() && row.outputs != StepRow::Outputs::kNone) {
    const uint32_t token = NextToken(slot.log, slot.sampling);
    output.token_ids = {token};
    if (slot.sampling.top_logprobs >= 0) {
      output.logprobs = {{.chosen = {token, Logprob(slot.log, token)}, .top = {}}};
    }
    // In a pipeline the first stage does not know it.
    if (options_.num_stages == 1) slot.log.push_back(token);
    slot.last_sample = token;
    slot.sampled = true;
  } else if (row.outputs == StepRow::Outputs::kLast) {
    Error(absl::StrCat("slot ", row.slot, " samples before the end of its log"));
  }
  if (const auto failure = failures_.find(slot.sampling.seed); failure != failures_.end()) {
    output = {.slot = row.slot,
              .token_ids = {},
              .logprobs = {},
              .prompt_logprobs = {},
              .error = failure->second};
  }
  return output;
}

}  // namespace shoal::router
