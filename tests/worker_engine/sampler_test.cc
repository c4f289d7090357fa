#include "worker/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "parallel/local_transport.h"

namespace shoal::worker {
namespace {

constexpr uint32_t kVocab = 1000;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(uint32_t seed, uint32_t vocab = kVocab) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// One row: its logits, its parameters and the log before it.
struct Row {
  std::vector<float> logits = {};
  base::SamplingParams params = {};
  std::vector<uint32_t> log = {1, 2, 3};
  uint32_t num_prompt_tokens = 2;
  bool score = false;
  uint32_t target = 0;
};

std::vector<SampleResult> RunOnShard(const std::vector<Row>& rows, std::vector<uint32_t> begins,
                                     int shard, parallel::Transport* transport) {
  std::vector<SampleRequest> requests;
  for (const Row& row : rows) {
    SampleRequest request;
    request.logits =
        absl::MakeConstSpan(row.logits).subspan(begins[shard], begins[shard + 1] - begins[shard]);
    request.params = &row.params;
    request.log = row.log;
    request.num_prompt_tokens = row.num_prompt_tokens;
    request.score = row.score;
    request.target = row.target;
    requests.push_back(request);
  }
  Sampler sampler(begins, shard, 64);
  std::vector<SampleResult> results;
  const absl::Status status = sampler.Run(requests, transport, &results);
  EXPECT_TRUE(status.ok()) << status;
  return results;
}

std::vector<SampleResult> RunAlone(const std::vector<Row>& rows, uint32_t vocab = kVocab) {
  return RunOnShard(rows, {0, vocab}, 0, nullptr);
}

TEST(SamplerTest, GreedyTakesTheBestAndTiesGoToTheLowestId) {
  Row row{.logits = RandomLogits(1)};
  row.params.temperature = 0;
  row.logits[700] = 50;
  row.logits[300] = 50;
  EXPECT_EQ(RunAlone({row})[0].token_id, 300u);
}

TEST(SamplerTest, TinyTemperatureIsGreedy) {
  for (float temperature : {1e-7f, 1e-5f, 1e-4f}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      Row row{.logits = RandomLogits(seed)};
      row.params.temperature = temperature;
      row.params.seed = seed;
      Row greedy = row;
      greedy.params.temperature = 0;
      Row nucleus = row;
      nucleus.params.top_p = 0.9f;
      const auto results = RunAlone({row, greedy, nucleus});
      EXPECT_EQ(results[0].token_id, results[1].token_id);
      EXPECT_EQ(results[2].token_id, results[1].token_id);
    }
  }
}

TEST(SamplerTest, DrawsFollowTheSoftmax) {
  Row row{.logits = {0, 1, 2, -kInfinity}};
  row.params.temperature = 0.5f;
  std::vector<int> counts(4, 0);
  constexpr int kDraws = 20000;
  std::vector<Row> rows(1, row);
  for (int i = 0; i < kDraws; ++i) {
    rows[0].params.seed = i;
    ++counts[RunAlone(rows, 4)[0].token_id];
  }
  const double z = 1 + std::exp(2.0) + std::exp(4.0);
  EXPECT_NEAR(counts[0] / double{kDraws}, 1 / z, 0.01);
  EXPECT_NEAR(counts[1] / double{kDraws}, std::exp(2.0) / z, 0.01);
  EXPECT_NEAR(counts[2] / double{kDraws}, std::exp(4.0) / z, 0.01);
  EXPECT_EQ(counts[3], 0);
}

// The set of tokens that ever come out over many seeds.
std::vector<uint32_t> Drawn(Row row, uint32_t vocab) {
  std::vector<uint32_t> drawn;
  for (int i = 0; i < 3000; ++i) {
    row.params.seed = i;
    drawn.push_back(RunAlone({row}, vocab)[0].token_id);
  }
  std::sort(drawn.begin(), drawn.end());
  drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
  return drawn;
}

TEST(SamplerTest, TopKTopPAndMinPKeepWhatTheySay) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  Row row{.logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f), std::log(0.125f)}};
  Row top_k = row;
  top_k.params.top_k = 3;  // the tie at 0.125 goes to the lowest id
  EXPECT_EQ(Drawn(top_k, 4), (std::vector<uint32_t>{0, 1, 2}));
  Row top_p = row;
  top_p.params.top_p = 0.74f;
  EXPECT_EQ(Drawn(top_p, 4), (std::vector<uint32_t>{1, 2}));
  Row min_p = row;
  min_p.params.min_p = 0.3f;  // of 0.5: at least 0.15
  EXPECT_EQ(Drawn(min_p, 4), (std::vector<uint32_t>{1, 2}));
  Row both = row;
  both.params.top_k = 2;
  both.params.top_p = 0.6f;  // 0.5 / 0.75 of the kept: the best alone reaches it
  EXPECT_EQ(Drawn(both, 4), (std::vector<uint32_t>{1}));
  EXPECT_EQ(Drawn(row, 4), (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(SamplerTest, PenaltiesAndBiasChangeTheBest) {
  Row row{.logits = std::vector<float>(kVocab, 0)};
  row.params.temperature = 0;
  row.logits[1] = 3;     // in the prompt
  row.logits[3] = 2.9f;  // in the output
  row.logits[9] = 2.8f;
  row.log = {1, 2, 3, 3};
  row.num_prompt_tokens = 2;
  EXPECT_EQ(RunAlone({row})[0].token_id, 1u);
  Row repetition = row;
  repetition.params.repetition_penalty = 1.5f;
  EXPECT_EQ(RunAlone({repetition})[0].token_id, 9u);
  Row presence = row;
  presence.logits[1] = 0;
  presence.params.presence_penalty = 0.2f;
  EXPECT_EQ(RunAlone({presence})[0].token_id, 9u);
  Row frequency = row;
  frequency.logits[1] = 0;
  frequency.params.frequency_penalty = 0.04f;  // once would leave 2.86, twice 2.82
  EXPECT_EQ(RunAlone({frequency})[0].token_id, 3u);
  frequency.params.frequency_penalty = 0.06f;
  EXPECT_EQ(RunAlone({frequency})[0].token_id, 9u);
  Row bias = row;
  bias.params.logit_bias = {{500, 4.0f}};
  EXPECT_EQ(RunAlone({bias})[0].token_id, 500u);
}

TEST(SamplerTest, EndsAreBannedBelowMinTokens) {
  Row row{.logits = RandomLogits(3)};
  row.params.temperature = 0;
  row.logits[7] = 100;
  row.params.end_ids = {7};
  row.params.min_tokens = 2;  // one was generated
  EXPECT_NE(RunAlone({row})[0].token_id, 7u);
  row.log.push_back(5);
  EXPECT_EQ(RunAlone({row})[0].token_id, 7u);
}

TEST(SamplerTest, LogprobsAreOfTheModelsOwnDistribution) {
  Row row{.logits = RandomLogits(4)};
  row.params.top_logprobs = 5;
  row.params.top_k = 1;
  row.params.temperature = 0.3f;
  const SampleResult result = RunAlone({row})[0];
  double sum = 0;
  for (float logit : row.logits) sum += std::exp(double{logit});
  ASSERT_TRUE(result.has_logprobs);
  ASSERT_EQ(result.logprobs.top.size(), 5u);
  EXPECT_EQ(result.logprobs.chosen.token_id, result.token_id);
  EXPECT_EQ(result.logprobs.top[0].token_id, result.token_id);
  for (const base::TokenLogprob& top : result.logprobs.top) {
    EXPECT_NEAR(top.logprob, row.logits[top.token_id] - std::log(sum), 1e-5);
  }
  Row score = row;
  score.score = true;
  score.target = 123;
  EXPECT_NEAR(RunAlone({score})[0].logprobs.chosen.logprob, row.logits[123] - std::log(sum), 1e-5);
}

TEST(SamplerTest, TheBestTokensAreThoseOfAFullSort) {
  std::mt19937 random(7);
  for (const uint32_t vocab : {1u, 63u, 64u, 65u, 1000u, 5000u}) {
    for (const uint32_t num_values : {2u, 50u, 1000000u}) {  // few values: many ties
      std::vector<float> logits(vocab);
      for (float& logit : logits) {
        logit = static_cast<float>(random() % num_values) / num_values;
        if (random() % 3 == 0) logit = -kInfinity;
      }
      logits[random() % vocab] = 0.5f;
      std::vector<uint32_t> ids(vocab);
      std::iota(ids.begin(), ids.end(), 0u);
      std::stable_sort(ids.begin(), ids.end(),
                       [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
      Distribution distribution(vocab);
      for (const uint32_t num_top : {1u, 20u, 64u, 300u, 6000u}) {
        const auto top = distribution.Logprobs(logits, 0, static_cast<int>(num_top)).top;
        ASSERT_EQ(top.size(), std::min(num_top, vocab));
        for (size_t i = 0; i < top.size(); ++i) {
          ASSERT_EQ(top[i].token_id, ids[i]) << vocab << " tokens, place " << i;
        }
      }
    }
  }
}

TEST(SamplerTest, NonFiniteLogitsFailTheirRowAlone) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    Row good{.logits = RandomLogits(5)};
    Row poisoned = good;
    poisoned.logits[999] = bad;
    Row whole = poisoned;
    whole.params.top_p = 0.5f;
    const auto results = RunAlone({good, poisoned, whole});
    EXPECT_TRUE(results[0].finite);
    EXPECT_FALSE(results[1].finite);
    EXPECT_FALSE(results[2].finite);
  }
}

std::vector<Row> MixedRows() {
  std::vector<Row> rows;
  for (uint32_t i = 0; i < 24; ++i) {
    Row row{.logits = RandomLogits(100 + i)};
    row.log = {i, 2, 3, 700, 700, 2};
    row.params.seed = i * 17;
    row.params.temperature = i % 4 == 0 ? 0 : 0.25f * static_cast<float>(i);
    if (i % 3 == 1) row.params.top_k = 40;
    if (i % 5 == 2) row.params.top_p = 0.9f;
    if (i % 7 == 3) row.params.min_p = 0.05f;
    if (i % 2 == 1) row.params.repetition_penalty = 1.3f;
    if (i % 6 == 4) row.params.frequency_penalty = 0.5f;
    if (i % 8 == 5) row.params.top_logprobs = 3;
    row.score = i == 20;
    row.target = 77;
    rows.push_back(row);
  }
  return rows;
}

TEST(SamplerTest, ShardsDrawWhatOneRankDraws) {
  const std::vector<Row> rows = MixedRows();
  const std::vector<SampleResult> alone = RunAlone(rows);
  const std::vector<std::vector<uint32_t>> cuts = {
      {0, 512, kVocab}, {0, 256, 768, kVocab}, {0, 256, 512, 768, kVocab}, {0, kVocab, kVocab}};
  for (const std::vector<uint32_t>& begins : cuts) {
    const int size = static_cast<int>(begins.size()) - 1;
    auto transports = parallel::NewLocalTransports({.size = size});
    ASSERT_TRUE(transports.ok()) << transports.status();
    std::vector<std::vector<SampleResult>> results(size);
    std::vector<std::thread> threads;
    for (int s = 0; s < size; ++s) {
      threads.emplace_back(
          [&, s] { results[s] = RunOnShard(rows, begins, s, (*transports)[s].get()); });
    }
    for (std::thread& thread : threads) thread.join();
    for (int s = 0; s < size; ++s) {
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(results[s][i].token_id, alone[i].token_id) << "row " << i << " tp " << size;
        EXPECT_EQ(results[s][i].logprobs.chosen.logprob, alone[i].logprobs.chosen.logprob);
        EXPECT_EQ(results[s][i].logprobs.top.size(), alone[i].logprobs.top.size());
      }
    }
  }
}

TEST(SamplerTest, NeighboursDoNotMatter) {
  const std::vector<Row> rows = MixedRows();
  const std::vector<SampleResult> together = RunAlone(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(RunAlone({rows[i]})[0].token_id, together[i].token_id) << i;
  }
}

TEST(SamplerTest, ChoicesOfOneSeedDiffer) {
  Row row{.logits = std::vector<float>(kVocab, 0)};
  std::vector<Row> rows(8, row);
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i].params.choice = i;
  std::vector<uint32_t> ids;
  for (const SampleResult& result : RunAlone(rows)) ids.push_back(result.token_id);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace
}  // namespace shoal::worker
