#include "router/control/cost_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::router {
namespace {

StepWork Decode(uint32_t num_sequences, uint64_t context) {
  StepWork work;
  for (uint32_t i = 0; i < num_sequences; ++i) work.Add(context, 1);
  work.num_outputs = num_sequences;
  return work;
}

StepWork Prefill(uint32_t num_tokens, uint64_t position = 0) {
  StepWork work;
  work.Add(position, num_tokens);
  work.num_outputs = 1;
  return work;
}

// Of a machine whose small steps wait for memory and whose large ones compute.
double TrueMs(const StepWork& work) {
  return std::max(3.0, 1.0 + 0.3 * work.num_tokens) +
         2e-5 * static_cast<double>(work.num_attended) + 0.05 * work.num_outputs;
}

StepWork RandomWork(std::mt19937* random) {
  StepWork work = Decode((*random)() % 17, 20 + (*random)() % 2000);
  if ((*random)() % 3 == 0 || work.num_tokens == 0) {
    work.Add((*random)() % 1000, 1 + (*random)() % 500);
    ++work.num_outputs;
  }
  return work;
}

double Error(const CostModel& model, const StepWork& work) {
  return std::abs(absl::ToDoubleMilliseconds(model.Predict(work)) / TrueMs(work) - 1);
}

double MedianError(const CostModel& model, std::mt19937* random) {
  std::vector<double> errors;
  for (int i = 0; i < 501; ++i) errors.push_back(Error(model, RandomWork(random)));
  std::nth_element(errors.begin(), errors.begin() + 250, errors.end());
  return errors[250];
}

TEST(StepWorkTest, CountsWhatEachTokenAttendsTo) {
  StepWork work = Prefill(4);
  EXPECT_EQ(work.num_attended, 1u + 2 + 3 + 4);
  work.Add(100, 2);
  EXPECT_EQ(work.num_attended, 10u + 101 + 102);
  EXPECT_EQ(work.num_tokens, 6u);
  StepWork huge;
  huge.Add(1 << 20, 1 << 16);
  EXPECT_EQ(huge.num_attended, (uint64_t{1} << 36) + (uint64_t{1} << 15) * ((1 << 16) + 1));
}

TEST(CostModelTest, KnowsNothingAtFirstAndThenTheOneItSaw) {
  CostModel model;
  EXPECT_EQ(model.Predict(Decode(8, 100)), absl::ZeroDuration());
  model.Observe(Decode(8, 100), absl::Milliseconds(10));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(model.Predict(Decode(8, 100))), 10, 0.1);
  // What was never seen lies between no more and as much a token: the scale of a deadline.
  EXPECT_GT(model.Predict(Prefill(64)), absl::Milliseconds(20));
  EXPECT_LT(model.Predict(Prefill(64)), absl::Milliseconds(80));
  EXPECT_GT(model.Predict(Decode(1, 100)), absl::Milliseconds(1.25));
  EXPECT_LT(model.Predict(Decode(1, 100)), absl::Milliseconds(10));
}

TEST(CostModelTest, TheScaleOfAMachineDoesNotMatter) {
  for (const double scale : {1e-3, 1.0, 1e4}) {
    CostModel model;
    model.Observe(Prefill(20), absl::Milliseconds(50 * scale));
    for (int i = 0; i < 5; ++i) model.Observe(Decode(1, 20 + i), absl::Milliseconds(50 * scale));
    EXPECT_NEAR(absl::ToDoubleMilliseconds(model.Predict(Decode(1, 25))) / scale, 50, 2) << scale;
  }
}

TEST(CostModelTest, LearnsAMachineThatIsSteady) {
  CostModel model;
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const StepWork work = RandomWork(&random);
    model.Observe(work, absl::Milliseconds(TrueMs(work)));
  }
  EXPECT_LT(MedianError(model, &random), 0.01);
}

TEST(CostModelTest, LearnsAMachineThatIsNoisy) {
  CostModel model;
  std::mt19937 random(2);
  std::normal_distribution<double> noise(0, 0.1);
  for (int i = 0; i < 1000; ++i) {
    const StepWork work = RandomWork(&random);
    double factor = std::exp(noise(random));
    if (random() % 50 == 0) factor *= 30;  // another process had the machine
    model.Observe(work, absl::Milliseconds(TrueMs(work) * factor));
  }
  EXPECT_LT(MedianError(model, &random), 0.1);
}

TEST(CostModelTest, KeepsWhatItKnowsOfPromptsWhileNoneComes) {
  CostModel model;
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const StepWork work = RandomWork(&random);
    model.Observe(work, absl::Milliseconds(TrueMs(work)));
  }
  for (int i = 0; i < 20000; ++i) {
    const StepWork work = Decode(1 + i % 8, 100 + i % 1000);
    model.Observe(work, absl::Milliseconds(TrueMs(work)));
  }
  EXPECT_LT(Error(model, Prefill(400)), 0.1);
  EXPECT_LT(Error(model, Decode(4, 500)), 0.05);
}

TEST(CostModelTest, FollowsAMachineThatBecomesSlower) {
  CostModel model;
  std::mt19937 random(4);
  for (const double factor : {1.0, 2.5}) {
    for (int i = 0; i < 400; ++i) {
      const StepWork work = RandomWork(&random);
      model.Observe(work, absl::Milliseconds(factor * TrueMs(work)));
    }
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(model.Predict(Decode(8, 500))),
              2.5 * TrueMs(Decode(8, 500)), 0.5 * TrueMs(Decode(8, 500)));
}

TEST(CostModelTest, StaysSaneForEver) {
  CostModel model;
  std::mt19937 random(5);
  for (int i = 0; i < 200000; ++i) {
    StepWork work = RandomWork(&random);
    if (random() % 100 == 0) work.Add(0, 1 + random() % 200000);
    model.Observe(work, absl::Milliseconds(random() % 5000 == 0 ? 1e5 : TrueMs(work)));
    const absl::Duration predicted = model.Predict(work);
    ASSERT_GE(predicted, absl::ZeroDuration());
    ASSERT_LT(predicted, absl::Hours(1));
  }
  EXPECT_LT(MedianError(model, &random), 0.15);
}

TEST(CostModelTest, SaysHowMuchOfAPromptFitsBesideAStep) {
  CostModel model;
  std::mt19937 random(6);
  for (int i = 0; i < 300; ++i) {
    const StepWork work = RandomWork(&random);
    model.Observe(work, absl::Milliseconds(TrueMs(work)));
  }
  const StepWork decodes = Decode(8, 300);
  const uint32_t num_tokens = model.TokensWithin(absl::Milliseconds(50), decodes, 0, 512);
  StepWork together = decodes;
  together.Add(0, num_tokens);
  EXPECT_NEAR(TrueMs(together), 50, 3);
  EXPECT_EQ(model.TokensWithin(absl::Seconds(10), decodes, 0, 500), 500u);
  EXPECT_EQ(model.TokensWithin(absl::Milliseconds(1), decodes, 0, 512), 0u);
}

TEST(CostModelTest, ThePlanAfterALongStepIsMadeShortlyBeforeItsEnd) {
  CostModel model;
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(model.NextPlanTime(start, Decode(8, 10)), start) << "nothing is known";
  for (int i = 0; i < 50; ++i) model.Observe(Decode(8, 10), absl::Milliseconds(40));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(model.NextPlanTime(start, Decode(8, 10)) - start), 37,
              0.5);
  for (int i = 0; i < 50; ++i) model.Observe(Decode(1, 10), absl::Milliseconds(4));
  EXPECT_EQ(model.NextPlanTime(start, Decode(1, 10)), start) << "a short step";
}

}  // namespace
}  // namespace shoal::router
