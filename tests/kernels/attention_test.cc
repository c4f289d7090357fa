#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/quant/kv_type.h"
#include "tests/kernels/kernel_fixture.h"

namespace shoal::kernels {
namespace {

constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8};

struct Sequence {
  int64_t cached = 0;  // tokens whose K and V are in the pages already
  int64_t rows = 0;    // tokens of this step
};

struct Shape {
  int32_t heads = 1;
  int32_t kv_heads = 1;
  int32_t head_dim = 64;
  KvType type = KvType::kF16;
};

// Sequences whose K and V were stored through KvStore into pages poisoned with NaN, in a random
// arrangement of blocks.
class AttentionStep {
 public:
  AttentionStep(Shape shape, std::vector<Sequence> sequences, uint32_t seed)
      : shape_(shape), sequences_(std::move(sequences)), random_(seed) {
    int32_t num_pages = 1;
    for (const Sequence& s : sequences_) {
      num_pages += static_cast<int32_t>((s.cached + s.rows + kPageTokens - 1) / kPageTokens);
    }
    std::vector<int32_t> pages(num_pages);
    std::iota(pages.begin(), pages.end(), 0);
    for (int32_t i = num_pages - 1; i > 0; --i) {
      std::swap(pages[i], pages[random_.Below(i + 1)]);
    }
    num_pages_ = num_pages;
    int32_t next = 0;
    for (const Sequence& s : sequences_) {
      const int64_t count = (s.cached + s.rows + kPageTokens - 1) / kPageTokens;
      tables_.emplace_back(pages.begin() + next, pages.begin() + next + count);
      next += static_cast<int32_t>(count);
      rows_ += s.rows;
      tokens_ += s.cached + s.rows;
    }
    const int64_t kv_width = int64_t{shape_.kv_heads} * shape_.head_dim;
    k_ = random_.Floats(tokens_ * kv_width, 2);
    v_ = random_.Floats(tokens_ * kv_width, 2);
    q_ = random_.Floats(rows_ * shape_.heads * shape_.head_dim, 2);
    for (int32_t head = 0; head < shape_.heads; ++head) {
      kv_head_of_.push_back(head * shape_.kv_heads / shape_.heads);
    }
  }

  // Result rows [rows][heads * head_dim] of the step.
  std::vector<float> Run(Backend& backend) {
    Store(backend);
    const int64_t width = int64_t{shape_.heads} * shape_.head_dim;
    std::vector<float> out(rows_ * width);
    Rows rows(sequences_, tables_, /*all=*/false);
    backend.Attention(Args(rows, q_.data(), out.data()));
    return out;
  }

  // Row `row` (of the step) of sequence `seq` on its own. REQUIRES: after Run(backend).
  std::vector<float> RunAlone(Backend& backend, int32_t seq, int64_t row) {
    const int64_t width = int64_t{shape_.heads} * shape_.head_dim;
    int64_t before = 0;
    for (int32_t s = 0; s < seq; ++s) {
      before += sequences_[s].rows;
    }
    const std::vector<std::vector<int32_t>> table = {tables_[seq]};
    Rows rows({{sequences_[seq].cached + row, 1}}, table, /*all=*/false);
    std::vector<float> out(width);
    backend.Attention(Args(rows, q_.data() + (before + row) * width, out.data()));
    return out;
  }

  const std::vector<Sequence>& sequences() const { return sequences_; }
  int64_t width() const { return int64_t{shape_.heads} * shape_.head_dim; }

 private:
  // A StepLayout with its memory: the step's rows, or all tokens.
  struct Rows {
    Rows(const std::vector<Sequence>& sequences, const std::vector<std::vector<int32_t>>& tables,
         bool all) {
      begin.push_back(0);
      for (size_t s = 0; s < sequences.size(); ++s) {
        const int64_t end = sequences[s].cached + sequences[s].rows;
        for (int64_t p = all ? 0 : sequences[s].cached; p < end; ++p) {
          positions.push_back(static_cast<int32_t>(p));
        }
        begin.push_back(static_cast<int32_t>(positions.size()));
        table_pointers.push_back(tables[s].data());
      }
      layout = {.rows = static_cast<int64_t>(positions.size()),
                .num_seqs = static_cast<int32_t>(sequences.size()),
                .seq_row_begin = begin.data(),
                .positions = positions.data(),
                .block_tables = table_pointers.data()};
    }
    std::vector<int32_t> begin, positions;
    std::vector<const int32_t*> table_pointers;
    StepLayout layout;
  };

  KvPages Pages() {
    return {.base = memory_.data(),
            .type = shape_.type,
            .num_pages = num_pages_,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim};
  }

  void Store(Backend& backend) {
    // 0x7fff7fff: NaN in f32, in both halves f16 and bf16, and as a scale of int8.
    const uint32_t poison = 0x7fff7fff;
    const int64_t bytes = num_pages_ * KvPageBytes(shape_.type, shape_.kv_heads, shape_.head_dim);
    memory_.resize(bytes / sizeof(float));
    for (float& word : memory_) {
      std::memcpy(&word, &poison, sizeof(word));
    }
    Rows rows(sequences_, tables_, /*all=*/true);
    backend.KvStore({.k = k_.data(),
                     .v = v_.data(),
                     .stride = int64_t{shape_.kv_heads} * shape_.head_dim,
                     .layout = rows.layout,
                     .pages = Pages()});
  }

  AttentionArgs Args(const Rows& rows, const float* q, float* out) {
    return {.q = q,
            .q_stride = width(),
            .heads = shape_.heads,
            .kv_head_of = kv_head_of_.data(),
            .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
            .layout = rows.layout,
            .pages = Pages(),
            .out = out,
            .out_stride = width()};
  }

  const Shape shape_;
  const std::vector<Sequence> sequences_;
  Random random_;
  int32_t num_pages_ = 0;
  int64_t rows_ = 0;
  int64_t tokens_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<float> k_, v_, q_, memory_;
  std::vector<int32_t> kv_head_of_;
};

// Borders of pages (16), tiles (64) and segments (512), decode rows and chunks that cross them.
const std::vector<Sequence>& Borders() {
  static const auto* const sequences = new std::vector<Sequence>{
      {0, 1},  {0, 5},  {14, 1},  {15, 1},  {15, 3},  {16, 1},  {62, 3},   {63, 1},
      {64, 2}, {0, 70}, {127, 2}, {510, 4}, {511, 1}, {512, 1}, {1021, 6}, {1030, 1}};
  return *sequences;
}

void ExpectAttentionAgrees(Shape shape, const std::vector<Sequence>& sequences) {
  SCOPED_TRACE(testing::Message() << shape.heads << " heads, " << shape.kv_heads << " KV heads of "
                                  << shape.head_dim << ", " << KvTypeName(shape.type));
  AttentionStep step(shape, sequences, shape.heads * 1000 + shape.head_dim);
  ExpectBackendsAgree([&](Backend& backend) { return step.Run(backend); },
                      {.absolute = 2e-6, .relative = 2e-6});
}

TEST(AttentionTest, AgreesWithReferenceAcrossPageTileAndSegmentBorders) {
  for (const KvType type : kKvTypes) {
    ASSERT_NO_FATAL_FAILURE(ExpectAttentionAgrees(
        {.heads = 3, .kv_heads = 1, .head_dim = 64, .type = type}, Borders()));
  }
}

// Few items and long contexts: items are cut by segments, which threads then join.
TEST(AttentionTest, LongContextsCutAmongThreadsGiveTheSameBits) {
  for (const KvType type : {KvType::kF16, KvType::kInt8}) {
    // All rows of the last sequence end in different segments but one.
    for (const std::vector<Sequence>& sequences :
         {std::vector<Sequence>{{2600, 1}}, {{4095, 1}, {40, 1}}, {{1500, 3}, {0, 2}}}) {
      ASSERT_NO_FATAL_FAILURE(ExpectAttentionAgrees(
          {.heads = 8, .kv_heads = 2, .head_dim = 32, .type = type}, sequences));
      ASSERT_NO_FATAL_FAILURE(ExpectAttentionAgrees(
          {.heads = 1, .kv_heads = 1, .head_dim = 32, .type = type}, sequences));
    }
  }
  // Rows of one item on both sides of a border between segments.
  ExpectAttentionAgrees({.heads = 2, .kv_heads = 1, .head_dim = 16}, {{2044, 8}});
}

TEST(AttentionTest, AgreesWithReferenceForEveryHeadSizeAndGrouping) {
  const std::vector<Sequence> sequences = {{0, 3}, {60, 6}, {130, 1}, {0, 33}};
  struct Heads {
    int32_t head_dim, group;
  };
  for (const Heads h : {Heads{32, 1},
                        {32, 4},
                        {64, 3},
                        {64, 8},
                        {80, 4},
                        {128, 1},
                        {128, 3},
                        {40, 4},
                        {8, 8},
                        {256, 1}}) {
    for (const KvType type : kKvTypes) {
      ASSERT_NO_FATAL_FAILURE(ExpectAttentionAgrees(
          {.heads = 2 * h.group, .kv_heads = 2, .head_dim = h.head_dim, .type = type}, sequences));
    }
  }
}

TEST(AttentionTest, MoreHeadsOfAGroupThanAnItemHoldsAreSplit) {
  ExpectAttentionAgrees({.heads = 40, .kv_heads = 1, .head_dim = 32}, {{20, 2}, {0, 1}});
}

// The same bits whatever else is in the step and however the prompt was cut.
void ExpectRowsAreIndependent(KvType type) {
  AttentionStep step({.heads = 4, .kv_heads = 2, .head_dim = 48, .type = type}, Borders(), 5);
  for (const NamedBackend& cpu : CpuBackends()) {
    const std::vector<float> together = step.Run(*cpu.backend);
    int64_t at = 0;
    for (size_t seq = 0; seq < Borders().size(); ++seq) {
      for (int64_t row = 0; row < Borders()[seq].rows; ++row, ++at) {
        const std::vector<float> alone =
            step.RunAlone(*cpu.backend, static_cast<int32_t>(seq), row);
        ASSERT_EQ(std::memcmp(alone.data(), together.data() + at * step.width(),
                              alone.size() * sizeof(float)),
                  0)
            << cpu.name << ": sequence " << seq << " row " << row << ", " << KvTypeName(type);
      }
    }
  }
}

TEST(AttentionTest, RowsDoNotDependOnEachOther) {
  for (const KvType type : kKvTypes) {
    ASSERT_NO_FATAL_FAILURE(ExpectRowsAreIndependent(type));
  }
}

TEST(AttentionTest, HasTheBitsOfNumericsIdCpu1) {
  AttentionStep step({.heads = 4, .kv_heads = 2, .head_dim = 48}, Borders(), 5);
  EXPECT_EQ(HashOfBits(step.Run(*CpuBackends().back().backend)), 15353832506023751571u);
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  // One key that dominates all others by far: the result is its value.
  const Shape shape{.heads = 1, .kv_heads = 1, .head_dim = 32, .type = KvType::kF32};
  std::vector<float> k(600 * 32, 0.0f), v(600 * 32, 1.0f), q(32, 100.0f), out(32);
  for (int d = 0; d < 32; ++d) {
    k[70 * 32 + d] = 100.0f;
    v[70 * 32 + d] = 7.0f;
  }
  std::vector<int32_t> table(38), positions(600), begin = {0, 600};
  std::iota(table.begin(), table.end(), 0);
  std::iota(positions.begin(), positions.end(), 0);
  const int32_t* tables[] = {table.data()};
  const int32_t kv_head_of[] = {0};
  for (const NamedBackend& cpu : CpuBackends()) {
    std::vector<float> memory(38 * 2 * 16 * 32);
    const KvPages pages{
        .base = memory.data(), .type = shape.type, .num_pages = 38, .kv_heads = 1, .head_dim = 32};
    StepLayout layout{.rows = 600,
                      .num_seqs = 1,
                      .seq_row_begin = begin.data(),
                      .positions = positions.data(),
                      .block_tables = tables};
    cpu.backend->KvStore(
        {.k = k.data(), .v = v.data(), .stride = 32, .layout = layout, .pages = pages});
    const int32_t last_begin[] = {0, 1};
    layout.rows = 1;
    layout.seq_row_begin = last_begin;
    layout.positions = positions.data() + 599;
    cpu.backend->Attention({.q = q.data(),
                            .q_stride = 32,
                            .heads = 1,
                            .kv_head_of = kv_head_of,
                            .scale = 1.0f,
                            .layout = layout,
                            .pages = pages,
                            .out = out.data(),
                            .out_stride = 32});
    EXPECT_THAT(out, testing::Each(7.0f)) << cpu.name;
  }
}

TEST(KvStoreTest, WritesTheSameBytesOnEveryBackend) {
  for (const KvType type : kKvTypes) {
    for (const int32_t head_dim : {8, 40, 64}) {
      const int64_t stride = 2 * head_dim + 3;
      Random random(head_dim);
      std::vector<float> k = random.Floats(20 * stride, 3), v = random.Floats(20 * stride, 3);
      k[0] = 1e-6f;                               // subnormal in f16
      k[1] = 1e6f;                                // too large for it
      k[2] = 1.00390625f;                         // halfway between two bf16: to the even one
      std::fill_n(&v[stride], head_dim, 1e-31f);  // a scale of 0 in int8
      const std::vector<int32_t> begin = {0, 7, 20};
      std::vector<int32_t> positions;
      for (int p = 30; p < 37; ++p) positions.push_back(p);
      for (int p = 10; p < 23; ++p) positions.push_back(p);
      const int32_t first[] = {5, 1, 3}, second[] = {0, 4};
      const int32_t* tables[] = {first, second};
      ExpectBackendsAgree(
          [&](Backend& backend) {
            std::vector<float> memory(6 * KvPageBytes(type, 2, head_dim) / 4, 1.0f);
            backend.KvStore({.k = k.data(),
                             .v = v.data(),
                             .stride = stride,
                             .layout = {.rows = 20,
                                        .num_seqs = 2,
                                        .seq_row_begin = begin.data(),
                                        .positions = positions.data(),
                                        .block_tables = tables},
                             .pages = {.base = memory.data(),
                                       .type = type,
                                       .num_pages = 6,
                                       .kv_heads = 2,
                                       .head_dim = head_dim}});
            // Compare bytes, not floats: pairs of f16 may look like NaN.
            const auto* bytes = reinterpret_cast<const uint8_t*>(memory.data());
            return std::vector<float>(bytes, bytes + memory.size() * 4);
          },
          {});
    }
  }
}

// What int8 cannot hold must not become a number.
TEST(KvStoreTest, ValuesThatAreNotFiniteStaySo) {
  constexpr int32_t kHeadDim = 24;
  const float infinity = std::numeric_limits<float>::infinity();
  const int32_t begin[] = {0, 2}, positions[] = {0, 1}, table[] = {0}, kv_head_of[] = {0};
  const int32_t* tables[] = {table};
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const KvType type : kKvTypes) {
      for (const NamedBackend& cpu : CpuBackends()) {
        std::vector<float> k(2 * kHeadDim, 1.0f), v(k), q(k), out(k);
        v[kHeadDim + 5] = bad;
        std::vector<float> memory(KvPageBytes(type, 1, kHeadDim) / 4);
        const KvPages pages{.base = memory.data(),
                            .type = type,
                            .num_pages = 1,
                            .kv_heads = 1,
                            .head_dim = kHeadDim};
        const StepLayout layout{.rows = 2,
                                .num_seqs = 1,
                                .seq_row_begin = begin,
                                .positions = positions,
                                .block_tables = tables};
        cpu.backend->KvStore(
            {.k = k.data(), .v = v.data(), .stride = kHeadDim, .layout = layout, .pages = pages});
        cpu.backend->Attention({.q = q.data(),
                                .q_stride = kHeadDim,
                                .heads = 1,
                                .kv_head_of = kv_head_of,
                                .scale = 1.0f,
                                .layout = layout,
                                .pages = pages,
                                .out = out.data(),
                                .out_stride = kHeadDim});
        EXPECT_TRUE(std::isfinite(out[5])) << cpu.name << ", " << KvTypeName(type);
        EXPECT_FALSE(std::isfinite(out[kHeadDim + 5])) << cpu.name << ", " << KvTypeName(type);
      }
    }
  }
}

TEST(KvTypeTest, NamesAreParsedAndOthersRefused) {
  for (const KvType type : kKvTypes) {
    const auto parsed = ParseKvType(KvTypeName(type));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, type);
  }
  EXPECT_THAT(
      std::string(ParseKvType("int4").status().message()),
      testing::AllOf(testing::HasSubstr("\"int4\""), testing::HasSubstr("f16, bf16, int8 or f32")));
}

TEST(RopeTest, AgreesWithReferenceInBothStyles) {
  for (const RopeStyle style : {RopeStyle::kAdjacent, RopeStyle::kHalves}) {
    for (const int32_t head_dim : {8, 32, 64, 80, 128}) {
      for (const int32_t rope_dim : {head_dim, head_dim / 2}) {
        const int64_t rows = 9;
        const int64_t stride = 3 * head_dim + 1;
        Random random(head_dim);
        const std::vector<float> x = random.Floats(rows * stride);
        const std::vector<float> table = random.Floats(40 * rope_dim);
        const int32_t positions[] = {0, 1, 5, 39, 3, 2, 7, 8, 9};
        ExpectBackendsAgree(
            [&](Backend& backend) {
              std::vector<float> turned = x;
              backend.Rope({.x = turned.data(),
                            .x_stride = stride,
                            .rows = rows,
                            .heads = 3,
                            .head_dim = head_dim,
                            .rope_dim = rope_dim,
                            .style = style,
                            .positions = positions,
                            .table = table.data()});
              return turned;
            },
            {.absolute = 2e-7, .relative = 2e-7});
      }
    }
  }
}

}  // namespace
}  // namespace shoal::kernels
