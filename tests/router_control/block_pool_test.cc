#include "router/control/block_pool.h"

#include <random>

#include "gtest/gtest.h"
#include "router/control/block_table.h"

namespace shoal::router {
namespace {

using Tokens = std::vector<uint32_t>;

// Sequences that come, compute and go. Words of a little language: Admit, Compute, Leave.
class BlockPoolTest : public testing::Test {
 protected:
  struct Writer {
    Tokens log;
    BlockTable table;
  };

  explicit BlockPoolTest(BlockPoolOptions options = {.num_blocks = 8, .block_size = 4})
      : pool_(options) {}
  void TearDown() override { pool_.CheckInvariants(); }

  PrefixMatch Find(const Tokens& log, absl::string_view salt = "") {
    BlockTable probe(&pool_, salt);
    return probe.Find(log, static_cast<uint32_t>(log.size()));
  }

  uint32_t NumCached(const Tokens& log, absl::string_view salt = "") {
    return static_cast<uint32_t>(Find(log, salt).block_ids.size()) * pool_.block_size();
  }

  std::unique_ptr<Writer> Admit(Tokens log, absl::string_view salt = "") {
    auto writer =
        std::make_unique<Writer>(Writer{.log = std::move(log), .table = BlockTable(&pool_, salt)});
    const uint32_t limit = static_cast<uint32_t>(writer->log.size()) - 1;
    writer->table.Admit(writer->log, writer->table.Find(writer->log, limit));
    return writer;
  }

  void Run(Tokens log, absl::string_view salt = "") {
    auto writer = Admit(std::move(log), salt);
    writer->table.Commit(writer->log, static_cast<uint32_t>(writer->log.size()));
  }

  static Tokens Count(uint32_t first, uint32_t n) {
    Tokens tokens(n);
    for (uint32_t i = 0; i < n; ++i) tokens[i] = first + i;
    return tokens;
  }

  BlockPool pool_;
};

TEST_F(BlockPoolTest, CountsEveryBlockOnce) {
  EXPECT_EQ(pool_.num_free(), 8u);
  auto writer = Admit(Count(1, 9));
  EXPECT_EQ(pool_.num_free(), 5u);
  EXPECT_EQ(pool_.num_held(), 3u);
  writer->table.Commit(writer->log, 9);
  writer.reset();
  EXPECT_EQ(pool_.num_held(), 0u);
  EXPECT_EQ(pool_.num_cached(), 2u) << "the full blocks";
  EXPECT_EQ(pool_.num_free(), 6u);
}

TEST_F(BlockPoolTest, FindsOnlyWhatWasComputed) {
  auto writer = Admit(Count(1, 12));
  writer->table.Commit(writer->log, 7);
  EXPECT_EQ(NumCached(Count(1, 12)), 4u);
  EXPECT_TRUE(Find(Count(1, 12)).pending.has_value());
  writer->table.Commit(writer->log, 12);
  EXPECT_EQ(NumCached(Count(1, 12)), 12u);
  EXPECT_EQ(NumCached(Count(1, 11)), 8u);
  EXPECT_EQ(NumCached(Count(2, 12)), 0u);
}

TEST_F(BlockPoolTest, PendingBlocksEndWithTheirOwner) {
  auto writer = Admit(Count(1, 12));
  writer->table.Commit(writer->log, 4);
  const PrefixMatch::Pending pending = *Find(Count(1, 12)).pending;
  EXPECT_TRUE(pool_.IsPending(pending));
  EXPECT_TRUE(writer->table.Owns(pending));
  writer.reset();
  EXPECT_FALSE(pool_.IsPending(pending));
  EXPECT_EQ(NumCached(Count(1, 12)), 4u);
  EXPECT_FALSE(Find(Count(1, 12)).pending.has_value());
}

TEST_F(BlockPoolTest, PendingMeansThisLifeOfTheBlock) {
  auto writer = Admit(Count(1, 4));
  const PrefixMatch::Pending pending = *Find(Count(1, 4)).pending;
  writer.reset();
  auto next = Admit(Count(1, 4));
  ASSERT_EQ(Find(Count(1, 4)).pending->block_id, pending.block_id);
  EXPECT_FALSE(pool_.IsPending(pending));
}

TEST_F(BlockPoolTest, SharedBlocksAreHeldOnce) {
  Run(Count(1, 8));
  auto one = Admit(Count(1, 9));
  auto two = Admit(Count(1, 9));
  EXPECT_EQ(pool_.num_held(), 4u) << "two shared, one each";
  EXPECT_EQ(one->table.block_ids()[1], two->table.block_ids()[1]);
  one.reset();
  EXPECT_EQ(pool_.num_held(), 3u);
}

TEST_F(BlockPoolTest, EvictsTailsOfTheLeastRecentlyUsedFirst) {
  Run(Count(1, 12));    // 3 blocks
  Run(Count(100, 12));  // 3 blocks
  Run(Count(1, 8));     // the first again, without its tail
  auto writer = Admit(Count(200, 16));
  EXPECT_EQ(NumCached(Count(1, 12)), 8u) << "its tail is the oldest";
  EXPECT_EQ(NumCached(Count(100, 12)), 8u);
  auto another = Admit(Count(300, 8));
  EXPECT_EQ(NumCached(Count(1, 12)), 8u) << "used last";
  EXPECT_EQ(NumCached(Count(100, 12)), 0u);
}

TEST_F(BlockPoolTest, SaltsDoNotShare) {
  Run(Count(1, 8), "tenant a");
  EXPECT_EQ(NumCached(Count(1, 8), "tenant a"), 8u);
  EXPECT_EQ(NumCached(Count(1, 8), "tenant b"), 0u);
  EXPECT_EQ(NumCached(Count(1, 8)), 0u);
}

TEST_F(BlockPoolTest, TheSameBlockAfterAnotherPrefixIsAnotherBlock) {
  Tokens log = Count(1, 4);
  const Tokens tail = Count(50, 4);
  log.insert(log.end(), tail.begin(), tail.end());
  Run(log);
  Tokens other = Count(9, 4);
  other.insert(other.end(), tail.begin(), tail.end());
  EXPECT_EQ(NumCached(other), 0u);
  EXPECT_EQ(NumCached(tail), 0u);
}

TEST_F(BlockPoolTest, TheNewestTwinLeadsToTheNewestContinuation) {
  Run(Count(1, 8));
  Tokens longer = Count(1, 8);  // its last prompt block is computed again, then it goes on
  auto writer = Admit(longer);
  writer->table.Commit(writer->log, 8);
  writer->log.insert(writer->log.end(), {70, 71, 72, 73});
  writer->table.Grow(12);
  writer->table.Commit(writer->log, 12);
  longer = writer->log;
  writer.reset();
  pool_.CheckInvariants();
  EXPECT_EQ(NumCached(longer), 12u);
}

TEST_F(BlockPoolTest, ClearForgetsEverything) {
  Run(Count(1, 12));
  pool_.Clear();
  EXPECT_EQ(pool_.num_free(), 8u);
  EXPECT_EQ(NumCached(Count(1, 12)), 0u);
}

class CollidingBlockPoolTest : public BlockPoolTest {
 protected:
  CollidingBlockPoolTest() : BlockPoolTest({.num_blocks = 64, .block_size = 4, .hash_mask = 0x3}) {}
};

TEST_F(CollidingBlockPoolTest, ACollisionIsNotAHit) {
  for (uint32_t i = 0; i < 20; ++i) Run(Count(10 * i, 12));
  pool_.CheckInvariants();
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(NumCached(Count(10 * i, 12)), 12u);
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(NumCached(Count(10 * i + 1, 12)), 0u);
  EXPECT_EQ(NumCached(Count(0, 4), "salt"), 0u);
}

// Sequences with shared prefixes come, grow and go at random. After every operation the books
// balance, and what Find promises was computed by someone with the same tokens.
TEST(BlockPoolRandomTest, BooksBalanceAfterEveryOperation) {
  std::mt19937 random(1);
  BlockPool pool({.num_blocks = 24, .block_size = 4, .hash_mask = 0x7});
  struct Writer {
    Tokens log;
    uint32_t num_computed;
    std::string salt;
    BlockTable table;
  };
  std::vector<std::unique_ptr<Writer>> writers;
  std::vector<Tokens> contents(24);  // of computed blocks: every token from the start on
  const auto note = [&](const Writer& writer) {
    const std::vector<uint32_t> ids = writer.table.block_ids();
    for (uint32_t i = 0; (i + 1) * 4 <= writer.num_computed; ++i) {
      contents[ids[i]].assign(writer.log.begin(), writer.log.begin() + (i + 1) * 4);
      contents[ids[i]].push_back(writer.salt.empty() ? 1000 : 1001);
    }
  };
  uint64_t num_hits = 0;
  for (int op = 0; op < 20000; ++op) {
    const uint32_t kind = random() % 4;
    if (kind == 0 && writers.size() < 6) {
      Tokens log(1 + random() % 20);
      for (uint32_t& token : log) token = random() % 2;
      const std::string salt = random() % 3 == 0 ? "salt" : "";
      auto writer = std::make_unique<Writer>(
          Writer{.log = log, .num_computed = 0, .salt = salt, .table = BlockTable(&pool, salt)});
      const PrefixMatch match = writer->table.Find(log, static_cast<uint32_t>(log.size()) - 1);
      for (size_t i = 0; i < match.block_ids.size(); ++i) {
        Tokens expected(log.begin(), log.begin() + (i + 1) * 4);
        expected.push_back(salt.empty() ? 1000 : 1001);
        ASSERT_EQ(contents[match.block_ids[i]], expected) << "operation " << op;
        ++num_hits;
      }
      const uint32_t needed = pool.num_blocks_for(static_cast<uint32_t>(log.size())) -
                              static_cast<uint32_t>(match.block_ids.size()) +
                              match.num_unreferenced;
      if (needed <= pool.num_available()) {
        writer->table.Admit(log, match);
        writer->num_computed = static_cast<uint32_t>(match.block_ids.size()) * 4;
        writers.push_back(std::move(writer));
      }
    } else if (kind == 1 && !writers.empty()) {  // compute a part
      Writer& writer = *writers[random() % writers.size()];
      const uint32_t left = static_cast<uint32_t>(writer.log.size()) - writer.num_computed;
      writer.num_computed += random() % (left + 1);
      writer.table.Commit(writer.log, writer.num_computed);
      note(writer);
    } else if (kind == 2 && !writers.empty()) {  // generate
      Writer& writer = *writers[random() % writers.size()];
      if (writer.num_computed == writer.log.size() && pool.num_available() > 0) {
        writer.log.push_back(random() % 2);
        writer.table.Grow(++writer.num_computed);
        writer.table.Commit(writer.log, writer.num_computed);
        note(writer);
      }
    } else if (kind == 3 && !writers.empty() && random() % 2 == 0) {
      writers.erase(writers.begin() + random() % writers.size());
    }
    pool.CheckInvariants();
  }
  EXPECT_GT(num_hits, 300u);
  writers.clear();
  pool.CheckInvariants();
  EXPECT_EQ(pool.num_held(), 0u);
}

TEST(BlockPoolDeathTest, AFullPoolIsTheCallersFault) {
  BlockPool pool({.num_blocks = 1});
  const BlockRef held = pool.Allocate();
  EXPECT_DEATH(pool.Allocate(), "every block is held");
}

}  // namespace
}  // namespace shoal::router
