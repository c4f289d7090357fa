#include "tests/simulation/scenario.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/router_control/puppet_rank.h"
#include "tests/simulation/event_queue.h"

namespace shoal::simulation {
namespace {

using absl::Milliseconds;
using absl::Seconds;
using router::PuppetRank;

constexpr absl::Duration kSpan = Seconds(3);  // clients arrive and faults happen within

router::SchedulerOptions MakeSchedulerOptions(Random* random) {
  router::SchedulerOptions options;
  options.block_size = 4u << random->Below(3);
  options.num_blocks = random->Between(96, 480) / options.block_size;
  options.max_batch_seqs = random->Between(1, 8);
  options.max_batch_tokens = options.max_batch_seqs + random->Between(0, 56);
  options.max_seq_len = random->Between(64, 512);
  options.max_prefill_chunk = random->OneIn(4) ? random->Between(1, 9) : 0;
  options.max_queued_requests = random->OneIn(4) ? random->Between(0, 8) : 60;
  options.max_plans_in_flight = random->Between(1, 3);
  options.enable_prefix_cache = !random->OneIn(8);
  if (random->OneIn(4)) options.hash_mask = random->OneIn(2) ? 0x7 : 0x1;
  options.aging_interval = Milliseconds(200);
  options.stall_timeout = Seconds(10);
  return options;
}

router::GroupOptions MakeGroupOptions(Random* random) {
  router::GroupOptions options;
  options.tensor_parallel_size = random->Between(1, 3);
  options.pipeline_parallel_size = random->OneIn(3) ? random->Between(2, 3) : 1;
  options.version = "1";
  options.protocol_version = 1;
  options.join_timeout = Seconds(2);
  options.recovery_timeout = random->OneIn(4) ? Milliseconds(500) : Seconds(20);
  options.min_step_timeout = Milliseconds(500);
  options.warmup_step_timeout = Seconds(1);
  return options;
}

// Prompts of few families, so that they share beginnings; some continue another's answer.
std::vector<uint32_t> MakePrompt(Random* random, const std::vector<ClientPlan>& earlier,
                                 uint32_t max_tokens) {
  std::vector<uint32_t> prompt;
  if (!earlier.empty() && random->OneIn(3)) {
    const router::Request& turn = earlier[random->Below(earlier.size())].request;
    prompt = turn.token_ids;
    const std::vector<uint32_t> answer = PuppetRank::Solo(turn);
    prompt.insert(prompt.end(), answer.begin(), answer.end());
  } else if (random->OneIn(2)) {
    const uint32_t family = random->Below(3);
    for (uint32_t i = random->Between(1, 40); i > 0; --i) prompt.push_back(family * 7 + i % 5);
  }
  for (uint32_t i = random->Between(1, 24); i > 0; --i) prompt.push_back(random->Below(3));
  if (prompt.size() > max_tokens) prompt.resize(max_tokens);
  return prompt;
}

ClientPlan MakeClient(uint64_t seed, uint32_t number, const std::vector<ClientPlan>& earlier,
                      const router::SchedulerOptions& limits) {
  Random random(seed, 1000 + number);
  const uint32_t room = std::min(limits.max_seq_len, limits.num_blocks * limits.block_size);
  ClientPlan client;
  client.number = number;
  // Half of them come in bursts.
  client.arrival = random.OneIn(2) ? Milliseconds(500) * random.Below(6)
                                   : random.Between(absl::ZeroDuration(), kSpan);
  router::Request& request = client.request;
  request.sampling.seed = number;
  request.token_ids = MakePrompt(&random, earlier, room / 2);
  request.max_tokens = random.Between(0, std::min(room / 2, random.OneIn(3) ? 60u : 12u));
  request.priority = static_cast<router::Priority>(random.Below(3));
  if (random.OneIn(4)) request.eos_ids = {random.Below(PuppetRank::kNumTokens)};
  if (random.OneIn(6)) request.stop_token_ids = {random.Below(PuppetRank::kNumTokens)};
  if (random.OneIn(4)) request.sampling.min_tokens = random.Below(8);
  request.ignore_eos = random.OneIn(8);
  request.sampling.prompt_logprobs = random.OneIn(8);
  if (random.OneIn(8)) request.sampling.top_logprobs = 0;
  if (random.OneIn(8)) request.cache_salt = "salt";
  if (random.OneIn(4)) client.num_choices = random.Between(2, 3);
  if (random.OneIn(5)) client.time_limit = random.Between(Milliseconds(5), Seconds(2));
  if (random.OneIn(5)) {
    client.cancels_after = random.Between(absl::ZeroDuration(), Milliseconds(300));
  }
  if (random.OneIn(6)) client.stops_after = random.Between(1, 10);
  if (random.OneIn(10)) client.read_time = random.Between(Milliseconds(5), Milliseconds(50));
  client.fails = random.OneIn(30);
  client.is_poison = random.OneIn(60);
  return client;
}

Fault MakeFault(uint64_t seed, uint32_t number, uint32_t num_ranks) {
  Random random(seed, 2000 + number);
  // The first ones are the more frequent.
  constexpr Fault::Kind kKinds[] = {
      Fault::Kind::kKill,        Fault::Kind::kKill,       Fault::Kind::kKill,
      Fault::Kind::kFreeze,      Fault::Kind::kFreeze,     Fault::Kind::kSlow,
      Fault::Kind::kCut,         Fault::Kind::kCut,        Fault::Kind::kWrongStateHash,
      Fault::Kind::kWrongTokens, Fault::Kind::kWrongStep,  Fault::Kind::kRefuseJoin,
      Fault::Kind::kImpostor,    Fault::Kind::kRouterCrash};
  Fault fault;
  fault.kind = kKinds[random.Below(std::size(kKinds))];
  fault.time = random.Between(absl::ZeroDuration(), kSpan);
  fault.rank = random.Below(num_ranks);
  fault.duration = random.OneIn(2) ? random.Between(Milliseconds(1), Milliseconds(100))
                                   : random.Between(Milliseconds(100), Seconds(3));
  if (fault.kind == Fault::Kind::kFreeze && random.OneIn(3)) {
    fault.duration = absl::InfiniteDuration();
  }
  return fault;
}

const char* Name(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::kKill:
      return "kill";
    case Fault::Kind::kFreeze:
      return "freeze";
    case Fault::Kind::kSlow:
      return "slow";
    case Fault::Kind::kCut:
      return "cut";
    case Fault::Kind::kWrongStateHash:
      return "wrong state hash";
    case Fault::Kind::kWrongTokens:
      return "wrong tokens";
    case Fault::Kind::kWrongStep:
      return "wrong step";
    case Fault::Kind::kRefuseJoin:
      return "refuse join";
    case Fault::Kind::kImpostor:
      return "impostor";
    case Fault::Kind::kRouterCrash:
      return "router crash";
    case Fault::Kind::kDrain:
      return "drain";
  }
  return "?";
}

std::string ToString(const ClientPlan& client) {
  std::string line = absl::StrCat(
      "  client ", client.number, " at ", absl::FormatDuration(client.arrival), ": ",
      client.request.token_ids.size(), " prompt tokens, max_tokens ", client.request.max_tokens,
      ", priority ", static_cast<int>(client.request.priority));
  if (client.num_choices > 1) absl::StrAppend(&line, ", n ", client.num_choices);
  if (client.request.sampling.prompt_logprobs) absl::StrAppend(&line, ", prompt logprobs");
  if (client.time_limit != absl::InfiniteDuration()) {
    absl::StrAppend(&line, ", deadline after ", absl::FormatDuration(client.time_limit));
  }
  if (client.cancels_after != absl::InfiniteDuration()) {
    absl::StrAppend(&line, ", cancels after ", absl::FormatDuration(client.cancels_after));
  }
  if (client.stops_after > 0) absl::StrAppend(&line, ", stops after ", client.stops_after);
  if (client.read_time > absl::ZeroDuration()) absl::StrAppend(&line, ", reads slowly");
  if (client.fails) absl::StrAppend(&line, ", its rows fail");
  if (client.is_poison) absl::StrAppend(&line, ", kills ranks");
  return line;
}

}  // namespace

Scenario Scenario::Make(uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  Random random(seed, /*owner=*/1);
  scenario.options.scheduler = MakeSchedulerOptions(&random);
  scenario.options.group = MakeGroupOptions(&random);
  const router::GroupOptions& group = scenario.options.group;
  Random pace(seed, /*owner=*/1u << 20);
  if (pace.OneIn(2)) scenario.options.inter_token_target = Milliseconds(pace.Between(1, 40));
  scenario.options.scheduler.num_stages = group.pipeline_parallel_size;
  scenario.num_ranks = group.tensor_parallel_size * group.pipeline_parallel_size;
  scenario.step_time = random.Between(absl::Microseconds(200), Milliseconds(10));
  scenario.token_time = random.Between(absl::Microseconds(1), Milliseconds(1));
  const uint32_t num_clients = random.OneIn(8) ? random.Between(20, 40) : random.Between(1, 14);
  for (uint32_t i = 1; i <= num_clients; ++i) {
    scenario.clients.push_back(MakeClient(seed, i, scenario.clients, scenario.options.scheduler));
  }
  const uint32_t num_faults = random.OneIn(4) ? 0 : random.Between(1, 6);
  for (uint32_t i = 0; i < num_faults; ++i) {
    scenario.faults.push_back(MakeFault(seed, i, scenario.num_ranks));
  }
  if (random.OneIn(6)) {
    scenario.faults.push_back({.kind = Fault::Kind::kDrain,
                               .time = random.Between(Seconds(1), Seconds(4)),
                               .rank = 0,
                               .duration = random.Between(absl::ZeroDuration(), Seconds(30))});
  }
  return scenario;
}

std::string Scenario::ToString() const {
  const router::SchedulerOptions& limits = options.scheduler;
  std::string text = absl::StrCat(
      "  seed ", seed, ": tp ", options.group.tensor_parallel_size, ", pp ",
      options.group.pipeline_parallel_size, ", ", limits.num_blocks, " blocks of ",
      limits.block_size, ", ", limits.max_batch_seqs, " slots, ", limits.max_batch_tokens,
      " tokens a step, ", limits.max_plans_in_flight, " plans in flight, hash mask ",
      absl::Hex(limits.hash_mask), ", recovery timeout ",
      absl::FormatDuration(options.group.recovery_timeout), "\n");
  for (const ClientPlan& client : clients) {
    absl::StrAppend(&text, simulation::ToString(client), "\n");
  }
  for (const Fault& fault : faults) {
    absl::StrAppend(&text, "  ", Name(fault.kind), " at ", absl::FormatDuration(fault.time),
                    ", rank ", fault.rank, ", for ", absl::FormatDuration(fault.duration), "\n");
  }
  return text;
}

}  // namespace shoal::simulation
