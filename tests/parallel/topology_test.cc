#include "parallel/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::parallel {
namespace {

using ::testing::HasSubstr;

TEST(TopologyTest, NumbersRanksStageByStage) {
  const Topology topology = Topology::Create(3, 4).value();
  EXPECT_EQ(topology.world_size(), 12);
  int rank = 0;
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(topology.first_rank(stage), rank);
    for (int shard = 0; shard < 3; ++shard, ++rank) {
      EXPECT_EQ(topology.rank_of(stage, shard), rank);
      EXPECT_EQ(topology.stage_of(rank), stage);
      EXPECT_EQ(topology.shard_of(rank), shard);
      EXPECT_EQ(topology.is_first_stage(rank), stage == 0);
      EXPECT_EQ(topology.is_last_stage(rank), stage == 3);
    }
  }
  EXPECT_TRUE(topology.same_stage(3, 5));
  EXPECT_FALSE(topology.same_stage(2, 3));
}

TEST(TopologyTest, RefusesImpossibleSizesAndNamesThem) {
  for (const int tp : {-1, 0, 9, 1 << 30}) {
    const absl::Status status = Topology::Create(tp, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tp;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(tp, " is not in 1..8")));
  }
  for (const int pp : {-1, 0, 513, 1 << 30}) {
    const absl::Status status = Topology::Create(2, pp).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pp;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(pp, " is not in 1..512")));
  }
  EXPECT_TRUE(Topology::Create(8, 128).ok());
}

}  // namespace
}  // namespace shoal::parallel
